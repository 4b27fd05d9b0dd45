"""The predicted time of the whole model: fused nodes, and the other nodes, which ONNX Runtime runs
with and without fusing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def estimates(
    graph: gs.Graph,
    predictions: Mapping[str, Sequence[Prediction]],
    archs: Sequence[int],
    at: Point,
) -> tuple[Estimate, ...]:
    """An estimate of a rewritten graph for each of `archs`; `predictions` are those of fused nodes,
    by name."""
    found = []
    for number in archs:
        fused = [p for several in predictions.values() for p in several if p.arch == number]
        ours, theirs = sum(p.best_known_us for p in fused), sum(p.ort_us for p in fused)
        for node in graph.nodes:
            if node.name not in predictions:
                us = node_us(node, get(number), at)
                ours += us
                theirs += 0 if _only_ours(node) else us
        found.append(Estimate(number, ours, theirs))
    return tuple(found)


def _only_ours(node: gs.Node) -> bool:
    """True for a layout conversion, which the original model does not have."""
    return node.domain == DOMAIN and not node.attrs.get("source_nodes")
