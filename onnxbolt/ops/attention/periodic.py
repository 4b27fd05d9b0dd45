"""Masks that nodes make of constants alone, and that are the same again after some batches: Swin's
bias per head plus its mask per window, [1, heads, S, T] + [windows, 1, S, T].

Exporters expand the windows' mask to all batches, windows x images, and add both in each inference.
Kernels read one constant [windows, heads, S, T] by the batch modulo its length.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.candidates import Refusal
from onnxbolt.graph.edit import constant_values, producer
from onnxbolt.graph.tracing import traced, unknown
from onnxbolt.ops.attention.found import AttentionAnchor, Mask, Masking
from onnxbolt.patterns.types import Match

_MOST = 2**26  # elements of a mask that is computed here


def past(match: Callable[[gs.Node], Match]) -> Callable[[gs.Node], Match]:
    """`match`, whose anchors read masks made of constants alone as one constant."""

    def wider(node: gs.Node) -> Match:
        found = match(node)
        if found is None or isinstance(found, Refusal):
            return found
        anchor, links = found
        assert isinstance(anchor, AttentionAnchor)
        attention = dataclasses.replace(anchor.attention, mask=folded(anchor.attention.mask))
        return dataclasses.replace(anchor, attention=attention), links

    return wider


def folded(mask: Mask) -> Mask:
    """The mask as a constant with its period; itself if it has one batch, or other nodes than those
    of constants make it."""
    tensor = mask.tensor
    if mask.kind is not Masking.ADDED or tensor is None or tensor.shape is None:
        return mask
    if len(tensor.shape) != 4 or tensor.shape[0] == 1 or not isinstance(tensor.dtype, np.dtype):
        return mask
    if not hasattr(tensor, "folded"):  # the pattern is asked several times
        values = repeated(tensor)
        tensor.folded = None if values is None else _constant(tensor, _shortest(values))
    if tensor.folded is None:
        return mask
    period = int(tensor.folded.shape[0])
    return dataclasses.replace(mask, tensor=tensor.folded, period=period if period > 1 else 0)


def _constant(mask: gs.Tensor, values: np.ndarray) -> gs.Constant | None:
    """None if all batches differ."""
    if values.shape[0] == mask.shape[0]:
        return None
    return gs.Constant(f"{mask.name}_folded", np.ascontiguousarray(values.astype(mask.dtype)))


@traced(unknown)
def repeated(tensor: gs.Tensor) -> np.ndarray | None:
    """The values of a tensor that nodes make of constants alone: index i of its first axis is index
    i modulo the values' length, and other axes broadcast. None for any other tensor."""
    values, node = constant_values(tensor), producer(tensor)
    if values is not None:
        return values if values.dtype.kind == "f" and values.ndim else None
    rule = None if node is None or node.domain else _RULES.get(node.op)
    if node is None or rule is None or tensor.shape is None:
        return None
    found = rule(node)
    return None if found is None or found.size > _MOST else found


def _shortest(values: np.ndarray) -> np.ndarray:
    """The first part of an array that it repeats along its first axis."""
    count = len(values)
    for period in range(1, count // 2 + 1):
        if count % period == 0:
            parts = values.reshape(-1, period, *values.shape[1:])
            if (parts == values[:period]).all():
                return values[:period]
    return values


def _sum(node: gs.Node) -> np.ndarray | None:
    """Addends with other periods are repeated up to a common one."""
    found = [repeated(tensor) for tensor in node.inputs]
    rank = len(node.outputs[0].shape)
    parts = [_shortest(_of_rank(values, rank)) for values in found if values is not None]
    if len(parts) < len(found):
        return None
    period = math.lcm(*map(len, parts))
    whole = [np.tile(part, (period // len(part), *[1] * (rank - 1))) for part in parts]
    total: np.ndarray = whole[0].astype(np.float32) + whole[1].astype(np.float32)
    return total


def _expand(node: gs.Node) -> np.ndarray | None:
    values = repeated(node.inputs[0])
    return None if values is None else _of_rank(values, len(node.outputs[0].shape))


def _of_rank(values: np.ndarray, rank: int) -> np.ndarray:
    return values.reshape(*[1] * (rank - values.ndim), *values.shape)


def _reshape(node: gs.Node) -> np.ndarray | None:
    """The first two axes become one."""
    values, old, new = repeated(node.inputs[0]), node.inputs[0].shape, node.outputs[0].shape
    if values is None or old is None or len(old) != len(new) + 1 or list(old[2:]) != list(new[1:]):
        return None
    if len(values) != 1 or values.shape[1] not in (1, old[1]):
        return None
    return values[0]


def _cast(node: gs.Node) -> np.ndarray | None:
    return repeated(node.inputs[0])


_RULES: dict[str, Callable[[gs.Node], np.ndarray | None]] = {
    "Add": _sum,
    "Cast": _cast,
    "Expand": _expand,
    "Reshape": _reshape,
}
