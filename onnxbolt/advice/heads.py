"""Head sizes in whole instructions of tensor cores: 64 or 80 instead of 72, say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_graphsurgeon as gs

from onnxbolt.advice.axes import Axis, UntiedError, grown
from onnxbolt.advice.change import SAME, Change, Edit, Obstacle
from onnxbolt.advice.draft import Draft
from onnxbolt.advice.ties import Ties
from onnxbolt.graph.edit import producer

_UNIT = 16  # elements of a head that one instruction multiplies
_FARTHEST = 8  # nodes between a product of attention and the axis of its heads


@dataclass(frozen=True)
class Heads(Edit):
    """Attention with heads of another size; the number of heads and the model's width stay."""

    kind: ClassVar[str] = "heads"

    size: int
    to: int
    starts: tuple[Axis, ...]  # the axes of queries, keys and values that hold a head's elements
    places: tuple[str, ...]

    @classmethod
    def find(cls, draft: Draft) -> Iterator[Change | Obstacle]:
        found: dict[int, dict[Axis, gs.Node]] = {}
        for node in draft.graph.nodes:
            for axis in _head_axes(node):
                size = draft.tensor(axis.tensor).shape[axis.number]
                if isinstance(size, int) and size > _UNIT and size % _UNIT:
                    found.setdefault(size, {}).setdefault(axis, node)
        for size, axes in found.items():
            for to in (size // _UNIT * _UNIT, -(-size // _UNIT) * _UNIT):
                ties = Ties(draft.graph)
                try:
                    ties.follow({axis: grown(size, to) for axis in axes})
                except UntiedError as reason:
                    node = next(iter(axes.values()))
                    yield Obstacle(cls.kind, node.provenance, f"heads keep their size: {reason}")
                    break
                names = (name for each in axes.values() for name in each.provenance)
                yield cls(size, to, tuple(axes), tuple(dict.fromkeys(names)))

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.size}/{self.to}"

    @property
    def words(self) -> str:
        return f"use heads of {self.to} elements instead of {self.size}"

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.places

    @property
    def results(self) -> str:
        return "those of smaller heads" if self.needs_retraining else SAME

    @property
    def needs_retraining(self) -> bool:
        return self.to < self.size

    def edit(self, draft: Draft) -> None:
        ties = Ties(draft.graph)
        ties.follow({axis: grown(self.size, self.to) for axis in self.starts})
        ties.apply()


def _head_axes(node: gs.Node) -> Iterator[Axis]:
    """The axes of a head's elements in the operands of an attention that ends at `node`: its second
    product, or an Attention of four axes."""
    if node.domain:
        return
    if node.op == "Attention":
        if all(t.shape is not None and len(t.shape) == 4 for t in node.inputs[:3]):
            yield from (Axis(t.name, 3) for t in node.inputs[:3])
        return
    if node.op != "MatMul" or isinstance(node.inputs[1], gs.Constant):
        return
    scores = _scores(node.inputs[0])
    if scores is None:
        return
    for tensor, back in ((scores.inputs[0], 1), (scores.inputs[1], 2), (node.inputs[1], 1)):
        if tensor.shape is not None and len(tensor.shape) > 2:
            yield Axis(tensor.name, len(tensor.shape) - back)


def _scores(weights: gs.Tensor) -> gs.Node | None:
    """The product of queries and keys whose softmax `weights` is."""
    node, softmax = producer(weights), False
    for _ in range(_FARTHEST):
        if node is None or node.domain:
            return None
        if node.op == "MatMul":
            two = not any(isinstance(t, gs.Constant) for t in node.inputs)
            return node if softmax and two else None
        softmax = softmax or node.op == "Softmax"
        node = producer(node.inputs[0])
    return None
