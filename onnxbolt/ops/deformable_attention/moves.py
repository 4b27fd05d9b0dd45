"""The movement of values by a few nodes, found by computing them with numbers in place of tensors.

Exporters write the same movement of values in many ways. Two computations that give the same for
numbers that all differ move them alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import constant_integers, constant_values, producer

BATCH = 2  # in place of a symbolic size
_MOST_STEPS = 16  # nodes between a tensor and one that is given; exporters take about six


class Moves:
    """Computes tensors from those that are given. `nodes` are the nodes that it has computed, each
    behind those that it reads."""

    def __init__(self) -> None:
        self.nodes: dict[gs.Node, None] = {}
        self._known: dict[str, np.ndarray] = {}

    def give(self, tensor: gs.Tensor, values: np.ndarray) -> None:
        """Let a tensor have these values."""
        self._known[tensor.name] = values

    def of(self, tensor: gs.Tensor, steps: int = 2 * _MOST_STEPS) -> np.ndarray | None:
        """A tensor's values; None if it cannot be computed from those that are given, by so many
        nodes behind one another."""
        if (known := self._known.get(tensor.name)) is not None:
            return known
        if (constant := constant_values(tensor)) is not None:
            return constant
        node = producer(tensor)
        compute = _COMPUTED.get(node.op) if node is not None and not node.domain else None
        if node is None or compute is None or not steps:
            return None
        inputs = [self.of(t, steps - 1) for t in node.inputs[: _reads(node)]]
        if any(values is None for values in inputs):
            return None
        try:
            found = compute(node, [values for values in inputs if values is not None])
        except (IndexError, ValueError):  # shapes or parameters that do not fit, or are computed
            return None
        for output, values in zip(node.outputs, found, strict=True):
            self._known[output.name] = values
        self.nodes[node] = None
        return self._known.get(tensor.name)


def source(tensor: gs.Tensor) -> gs.Tensor:
    """The tensor whose values `tensor` has in another order: the first one that is not moved, of
    those that each node reads first."""
    for _ in range(_MOST_STEPS):
        node = producer(tensor)
        if node is None or node.domain or node.op not in MOVING:
            break
        tensor = node.inputs[0]
    return tensor


def sizes_of(tensor: gs.Tensor) -> list[int] | None:
    """A tensor's shape with BATCH in place of a symbolic first size; None if others are unknown."""
    shape = tensor.shape
    if not shape or any(not isinstance(size, int) or size < 1 for size in shape[1:]):
        return None
    return [shape[0] if isinstance(shape[0], int) else BATCH, *map(int, shape[1:])]


Computed = Callable[[gs.Node, Sequence[np.ndarray]], Sequence[np.ndarray]]


def _integers(node: gs.Node, index: int) -> list[int]:
    found = constant_integers(node, index)
    if found is None:
        raise ValueError(f"input {index} is no constant")
    return [int(value) for value in found]


def _reads(node: gs.Node) -> int:
    """How many of its first inputs are values, not parameters."""
    return len(node.inputs) if node.op in ("Concat", "Mul") else 1


def _reshape(node: gs.Node, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    target = constant_integers(node, 1)
    if target is None:  # computed sizes, which inference may know
        sizes = node.outputs[0].shape or ()
        target = [size if isinstance(size, int) else -1 for size in sizes]
    kept = [inputs[0].shape[i] if size == 0 else int(size) for i, size in enumerate(target)]
    return [inputs[0].reshape(kept)]


def _slice(node: gs.Node, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    starts, ends = _integers(node, 1), _integers(node, 2)
    axes = _integers(node, 3) if len(node.inputs) > 3 else range(len(starts))
    steps = _integers(node, 4) if len(node.inputs) > 4 else [1] * len(starts)
    cut = [slice(None)] * inputs[0].ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        cut[axis] = slice(start, end, step)
    return [inputs[0][tuple(cut)]]


def _split(node: gs.Node, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    axis = int(node.attrs.get("axis", 0))
    if len(node.inputs) < 2:
        return np.split(inputs[0], len(node.outputs), axis)
    return np.split(inputs[0], np.cumsum(_integers(node, 1))[:-1], axis)


def _gather(node: gs.Node, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    index = constant_values(node.inputs[1])
    if index is None:
        raise ValueError("its indices are no constants")
    return [np.take(inputs[0], index, int(node.attrs.get("axis", 0)))]


def _axes(node: gs.Node) -> list[int]:
    return list(node.attrs["axes"]) if "axes" in node.attrs else _integers(node, 1)


def _squeeze(node: gs.Node, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    return [np.squeeze(inputs[0], tuple(_axes(node)))]


def _unsqueeze(node: gs.Node, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    return [np.expand_dims(inputs[0], tuple(_axes(node)))]


def _flatten(node: gs.Node, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    shape, axis = inputs[0].shape, int(node.attrs.get("axis", 1))
    return [inputs[0].reshape(math.prod(shape[:axis]), -1)]


def _sum(node: gs.Node, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    keeps = bool(node.attrs.get("keepdims", 1))
    return [inputs[0].sum(tuple(_axes(node)), keepdims=keeps)]


_MOVED: dict[str, Computed] = {
    "Cast": lambda node, inputs: inputs,
    "Flatten": _flatten,
    "Gather": _gather,
    "Identity": lambda node, inputs: inputs,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": lambda node, inputs: [inputs[0].transpose(node.attrs.get("perm"))],
    "Unsqueeze": _unsqueeze,
}
MOVING = frozenset(_MOVED)
_COMPUTED: dict[str, Computed] = {
    **_MOVED,
    "Concat": lambda node, inputs: [np.concatenate(inputs, int(node.attrs["axis"]))],
    "Mul": lambda node, inputs: [inputs[0] * inputs[1]],
    "ReduceSum": _sum,
}
