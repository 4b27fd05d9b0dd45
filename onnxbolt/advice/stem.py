"""Inputs of 4 or 8 channels instead of 3: padded pixels can be read by whole words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from onnxbolt.advice.axes import Axis, UntiedError, grown
from onnxbolt.advice.change import Change, Edit, Obstacle
from onnxbolt.advice.draft import Draft
from onnxbolt.advice.ties import Ties

_CHANNELS = (4, 8)


@dataclass(frozen=True)
class Stem(Edit):
    """A graph input with more channels, which callers fill with zeros."""

    kind: ClassVar[str] = "stem"

    name: str  # the graph input
    size: int
    to: int
    start: Axis  # channels of the tensor that the first convolution reads
    places: tuple[str, ...]

    @classmethod
    def find(cls, draft: Draft) -> Iterator[Change | Obstacle]:
        inputs, done = {tensor.name for tensor in draft.graph.inputs}, set[tuple[str, int]]()
        for node in draft.graph.nodes:
            if node.op != "Conv" or node.domain or int(node.attrs.get("group", 1)) > 1:
                continue
            x = node.inputs[0]
            size = x.shape[1] if x.shape is not None and len(x.shape) > 2 else None
            if not isinstance(size, int) or size >= max(_CHANNELS) or x.name in done:
                continue
            for to in (channels for channels in _CHANNELS if channels > size):
                ties, start = Ties(draft.graph, inputs), Axis(x.name, 1)
                try:
                    ties.follow({start: grown(size, to)})
                except UntiedError as reason:
                    yield Obstacle(cls.kind, node.provenance, f"channels stay: {reason}")
                    break
                padded = [axis.tensor for axis in ties.changes if axis.tensor in inputs]
                if len(padded) != 1 or (padded[0], to) in done:
                    break
                done.add((padded[0], to))
                names = (name for each in ties.nodes for name in each.provenance)
                yield cls(padded[0], size, to, start, tuple(dict.fromkeys(names)))

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.name}/{self.to}"

    @property
    def words(self) -> str:
        return (
            f"give {self.name} {self.to} channels instead of {self.size}; callers fill the new ones"
            " with zeros"
        )

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.places

    def edit(self, draft: Draft) -> None:
        ties = Ties(draft.graph, {self.name})
        ties.follow({self.start: grown(self.size, self.to)})
        ties.apply()
