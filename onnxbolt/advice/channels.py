"""Channels in multiples of 8 or 16: kernels then read and write 16 bytes at a time, and groups of
channels have kernels at all (Bolt, section 3.3, third principle)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_graphsurgeon as gs

from onnxbolt import grouped
from onnxbolt.advice.axes import Axis, Positions, UntiedError, grown
from onnxbolt.advice.change import SAME, Change, Edit, Obstacle
from onnxbolt.advice.draft import Draft
from onnxbolt.advice.ties import Ties
from onnxbolt.dtypes import DType

_MULTIPLES = (8, 16)
_MOST_TRIES = 4  # divisions into equal parts that one change goes through


@dataclass(frozen=True)
class Widening:
    """One layer's channels, which decide those of all layers that are tied to them."""

    axis: Axis
    size: int
    to: int
    parts: int  # equal parts, such as groups, each of which grows

    @property
    def positions(self) -> Positions:
        return grown(self.size, self.to, self.parts)


@dataclass(frozen=True)
class Channels(Edit):
    """Layers with more channels, whose weights are zero."""

    kind: ClassVar[str] = "channels"

    multiple: int
    widenings: tuple[Widening, ...]
    places: tuple[str, ...]
    alters: tuple[str, ...]

    @classmethod
    def find(cls, draft: Draft) -> Iterator[Change | Obstacle]:
        yielded = set[tuple[Widening, ...]]()  # 46 channels become 48 by either multiple
        for multiple in _MULTIPLES:
            found, done = list[tuple[Widening, Ties]](), set[Axis]()
            for node, axis in _layers(draft.graph):
                size = draft.tensor(axis.tensor).shape[axis.number]
                aligned = isinstance(size, int) and size % multiple == 0
                if axis in done or (aligned and _has_kernel(node, node.inputs[1])):
                    continue
                done.add(axis)
                try:
                    widening, ties = _followed(draft.graph, node, axis, multiple)
                except UntiedError as reason:
                    if multiple == min(_MULTIPLES):
                        yield Obstacle(cls.kind, node.provenance, f"channels stay: {reason}")
                    continue
                done.update(ties.changes)
                found.append((widening, ties))
            widenings = tuple(widening for widening, _ in found)
            if found and widenings not in yielded:
                yielded.add(widenings)
                nodes = (node for _, ties in found for node in ties.nodes)
                yield cls(
                    multiple,
                    widenings,
                    tuple(dict.fromkeys(name for node in nodes for name in node.provenance)),
                    tuple(dict.fromkeys(reason for _, ties in found for reason in ties.alters)),
                )

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.multiple}"

    @property
    def words(self) -> str:
        sizes = dict.fromkeys((each.size, each.to) for each in self.widenings)
        return "use " + ", ".join(f"{to} channels instead of {size}" for size, to in sizes)

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.places

    @property
    def results(self) -> str:
        return self.alters[0] if self.alters else SAME

    @property
    def needs_retraining(self) -> bool:
        return bool(self.alters)

    def edit(self, draft: Draft) -> None:
        ties = Ties(draft.graph)
        ties.follow({each.axis: each.positions for each in self.widenings})
        ties.apply()


def _layers(graph: gs.Graph) -> Iterator[tuple[gs.Node, Axis]]:
    """The products of constant weights, each with the axis of its weight that results have, and
    grouped convolutions that have no kernel with the axis of the channels that they read."""
    for node in graph.nodes:
        if node.domain or len(node.inputs) < 2 or not isinstance(node.inputs[1], gs.Constant):
            continue
        x, weight = node.inputs[:2]
        number = {
            "Conv": 0,
            "ConvTranspose": 1,
            "Gemm": 0 if node.attrs.get("transB", 0) else 1,
            "MatMul": len(weight.shape) - 1,
        }.get(node.op)
        if number is None:
            continue
        if not _has_kernel(node, weight) and isinstance(x, gs.Variable) and x.shape is not None:
            yield node, Axis(x.name, 1)
        yield node, Axis(weight.name, number)


def _has_kernel(node: gs.Node, weight: gs.Constant) -> bool:
    groups, dtype = int(node.attrs.get("group", 1)), DType.of(weight.dtype)
    if groups == 1 or node.op != "Conv" or dtype is None or tuple(weight.shape[:2]) == (groups, 1):
        return True
    half = DType.F16 if dtype is DType.F32 else dtype  # precision makes them 16 bits wide
    return grouped.serves(groups, int(weight.shape[1]) * groups, int(weight.shape[0]), half)


def _followed(graph: gs.Graph, node: gs.Node, axis: Axis, multiple: int) -> tuple[Widening, Ties]:
    """The least widening to a multiple that can be followed. Raises UntiedError."""
    size, parts = Ties(graph).size(axis), 1
    if not _has_kernel(node, node.inputs[1]):
        parts = int(node.attrs.get("group", 1))
    for _ in range(_MOST_TRIES):
        each = -(-size // (parts * multiple)) * multiple
        widening, ties = Widening(axis, size, each * parts, parts), Ties(graph)
        try:
            ties.follow({axis: widening.positions})
        except UntiedError as reason:
            wanted = math.lcm(parts, reason.parts)
            if wanted == parts or size % wanted:
                raise
            parts = wanted
            continue
        return widening, ties
    raise UntiedError("layers that share these channels divide them in different ways")
