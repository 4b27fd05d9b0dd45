"""The predicted time of the whole model: fused nodes, and the other nodes, which ONNX Runtime runs
with and without fusing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxbolt.archs import get
from onnxbolt.ops.functions import DOMAIN
from onnxbolt.plan.choose import Prediction
from onnxbolt.plan.node_times import node_us
from onnxbolt.plan.ranges import Point


@dataclass(frozen=True)
class Estimate:
    """Microseconds of one run on an architecture, kernels one after the other: of the optimized
    model, and of the original one by ONNX Runtime's CUDA execution provider (`ort_us`)."""

    arch: int
    ours_us: float
    ort_us: float

    @property
    def gain(self) -> float:
        return self.ort_us / self.ours_us if self.ours_us else 1.0


def other_times(
    graph: gs.Graph, fused: Collection[str], archs: Sequence[int], at: Point
) -> dict[str, tuple[float, ...]]:
    """Predicted microseconds, for each of `archs`, of the nodes of a rewritten graph that are not
    among `fused`, by name."""
    return {
        node.name: tuple(node_us(node, get(number), at) for number in archs)
        for node in graph.nodes
        if node.name not in fused
    }


def estimates(
    graph: gs.Graph,
    predictions: Mapping[str, Sequence[Prediction]],
    others: Mapping[str, Sequence[float]],
    archs: Sequence[int],
) -> tuple[Estimate, ...]:
    """An estimate of a rewritten graph for each of `archs`, from the predictions of its fused nodes
    and the `other_times`."""
    only_ours = {node.name for node in graph.nodes if _only_ours(node)}
    found = []
    for place, number in enumerate(archs):
        fused = [p for several in predictions.values() for p in several if p.arch == number]
        rest = {name: times[place] for name, times in others.items()}
        theirs = sum(us for name, us in rest.items() if name not in only_ours)
        found.append(
            Estimate(
                number,
                sum(p.best_known_us for p in fused) + sum(rest.values()),
                sum(p.ort_us for p in fused) + theirs,
            )
        )
    return tuple(found)


def _only_ours(node: gs.Node) -> bool:
    """True for a layout conversion, which the original model does not have."""
    return node.domain == DOMAIN and not node.attrs.get("source_nodes")
