"""Axes that change their size together: a layer's channels, the weights behind it, residuals.

From some axes that change, `Ties` follows the graph's nodes (tie_rules.py) until no further axis
has to change. Added positions of constants are filled so that nothing else changes its value: a
layer's new channels are computed by weights of zero, and whoever reads them multiplies them by
zero.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.advice.axes import NEW, Axis, Positions, UntiedError, unchanged
from onnxbolt.advice.tie_rules import adjust, implied
from onnxbolt.graph.edit import derived, pinned

_MOST_TURNS = 64  # changes of one axis before its ties count as contradictory


class Ties:
    """All axes that change with some given ones, and how each does."""

    def __init__(self, graph: gs.Graph, open_inputs: Collection[str] = ()) -> None:
        """`open_inputs`: graph inputs that may change; no other graph input or output may."""
        self.graph = graph
        self.tensors: dict[str, gs.Tensor] = graph.tensors()
        self.changes: dict[Axis, Positions] = {}
        self.alters: list[str] = []
        self.fills: dict[Axis, float] = {}
        self._open = frozenset(open_inputs)

    def of(self, axis: Axis) -> Positions:
        """The axis' positions after the change."""
        found = self.changes.get(axis)
        return unchanged(self.size(axis)) if found is None else found

    def size(self, axis: Axis) -> int:
        """The axis' size before the change. Raises UntiedError if it is no number."""
        shape = self.tensors[axis.tensor].shape
        size = shape[axis.number] if shape is not None else None
        if not isinstance(size, int):
            raise UntiedError(f"the size of {axis.tensor} is unknown")
        return size

    def follow(self, start: Mapping[Axis, Positions]) -> None:
        """Change `start`, and whatever has to change with it. Raises UntiedError."""
        waiting, turns = deque[Axis](), Counter[Axis]()

        def change(axis: Axis, positions: Positions) -> None:
            if self.of(axis) == positions:
                return
            turns[axis] += 1
            if turns[axis] > _MOST_TURNS:
                raise UntiedError(f"axes that are tied to {axis.tensor} contradict one another")
            self._check(axis)
            self.changes[axis] = positions
            waiting.append(axis)

        for axis, positions in start.items():
            change(axis, positions)
        while waiting:
            axis = waiting.popleft()
            tensor = self.tensors[axis.tensor]
            for node in dict.fromkeys((*tensor.inputs, *tensor.outputs)):
                for other, positions in implied(node, axis, self):
                    change(other, positions)

    def _check(self, axis: Axis) -> None:
        """Raises UntiedError if the axis' tensor is not the graph's own to change."""
        tensor = self.tensors[axis.tensor]
        if tensor.name in self._open:
            return
        if any(tensor is each for each in self.graph.inputs):
            raise UntiedError(f"{tensor.name} is an input of the graph")
        if any(tensor is each for each in self.graph.outputs):
            raise UntiedError(f"{tensor.name} is an output of the graph")
        if pinned(self.graph, tensor):
            raise UntiedError(f"a body of control flow reads {tensor.name}")

    @property
    def nodes(self) -> tuple[gs.Node, ...]:
        """All nodes of changed tensors, those with changed constants first."""
        constants = (self.tensors[axis.tensor] for axis in self.changes)
        readers = (n for t in constants if isinstance(t, gs.Constant) for n in t.outputs)
        return tuple(dict.fromkeys((*readers, *self._touched())))

    def apply(self) -> None:
        """Change the graph: constants, attributes and shapes."""
        for node in dict.fromkeys(self._touched()):
            adjust(self.graph, node, self)
        for axis, positions in self.changes.items():
            tensor = self.tensors[axis.tensor]
            shape = list(tensor.shape)
            shape[axis.number] = len(positions)
            if isinstance(tensor, gs.Constant):
                fill = self.fills.get(axis, 0.0)
                take = partial(_taken, axis=axis.number, positions=positions, fill=fill)
                tensor.values = derived(tensor, take, tensor.dtype, shape)
            else:
                tensor.shape = shape

    def _touched(self) -> Iterator[gs.Node]:
        for axis in self.changes:
            tensor = self.tensors[axis.tensor]
            yield from (*tensor.inputs, *tensor.outputs)


def _taken(values: np.ndarray, axis: int, positions: Positions, fill: float) -> np.ndarray:
    """The values at these positions of an axis, and `fill` at new ones."""
    chosen = np.asarray(positions)
    taken = np.take(values, np.maximum(chosen, 0), axis)
    places: list[slice | np.ndarray] = [slice(None)] * values.ndim
    places[axis] = chosen == NEW
    taken[tuple(places)] = fill
    return taken
