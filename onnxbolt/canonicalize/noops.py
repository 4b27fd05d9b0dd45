"""Remove nodes that compute nothing.

    Identity(x) = x;  Dropout(x) = x in inference;  Slice of everything = x;
    Transpose(x) by the identity permutation = x;  Transpose(Transpose(x)) by the reverse of the
    first permutation = x;  Reshape(x) to x's own shape = x;
    Cast(x) to x's own type = x;  Pad(x) by zeros = x;
    Concat(x) = Sum(x) = Max(x) = Min(x) = Mean(x) = x;
    x + 0 = 0 + x = x - 0 = x;  x * 1 = 1 * x = x / 1 = x,
    if the constant does not widen x's shape.

Graph outputs keep their names (graph/bypass.py). Weights that PyTorch's exporter shares through
Identity nodes stay shared.

Unused second outputs (Dropout's mask, MaxPool's indices) are removed, because the later stages skip
nodes that have them, and some exporters name every output.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.bypass import bypass
from onnxbolt.graph.edit import constant_values, pinned, producer
from onnxbolt.graph.element_types import onnx_dtype

_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}
_COMMUTATIVE = ("Add", "Mul")
_WITH_BYPRODUCT = ("Dropout", "MaxPool")  # their second output is optional


def run(graph: gs.Graph) -> int:
    """Remove all nodes that compute nothing; returns how many nodes and outputs."""
    return sum(_forget(graph, node) + _bypass(graph, node) for node in list(graph.nodes))


def _forget(graph: gs.Graph, node: gs.Node) -> bool:
    if node.domain or node.op not in _WITH_BYPRODUCT or len(node.outputs) < 2:
        return False
    unread = not node.outputs[1].outputs and not pinned(graph, node.outputs[1])
    if unread:
        del node.outputs[1]
    return unread


def _bypass(graph: gs.Graph, node: gs.Node) -> bool:
    if node.domain or len([t for t in node.outputs if t.name]) != 1 or not node.outputs[0].name:
        return False
    rule = _RULES.get(node.op)
    source = rule(node) if rule else None
    return source is not None and bool(source.name) and bypass(graph, node, source)


def _first(node: gs.Node) -> gs.Tensor | None:
    return node.inputs[0]


def _only(node: gs.Node) -> gs.Tensor | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


def _dropout(node: gs.Node) -> gs.Tensor | None:
    if len(node.inputs) < 3 or not node.inputs[2].name:
        return node.inputs[0]
    training = constant_values(node.inputs[2])
    return node.inputs[0] if training is not None and not training.any() else None


def _transpose(node: gs.Node) -> gs.Tensor | None:
    order, x = node.attrs.get("perm"), node.inputs[0]
    if order is None or list(order) == list(range(len(order))):
        return None if order is None else x
    before = producer(x)
    if before is None or before.domain or before.op != "Transpose" or "perm" not in before.attrs:
        return None
    both = [before.attrs["perm"][axis] for axis in order]
    return before.inputs[0] if both == list(range(len(both))) else None


def _reshape(node: gs.Node) -> gs.Tensor | None:
    """True if the ranks and all dimensions but one are equal; the number of elements then makes the
    last one equal, too."""
    old, new = node.inputs[0].shape, node.outputs[0].shape
    if old is None or new is None or len(old) != len(new) or 0 in old or 0 in new:
        return None
    unproven = [1 for a, b in zip(old, new, strict=True) if not (isinstance(a, int) and a == b)]
    return node.inputs[0] if len(unproven) <= 1 else None


def _cast(node: gs.Node) -> gs.Tensor | None:
    dtype = node.inputs[0].dtype
    return node.inputs[0] if dtype is not None and onnx_dtype(dtype) == node.attrs["to"] else None


def _pad(node: gs.Node) -> gs.Tensor | None:
    pads = constant_values(node.inputs[1]) if len(node.inputs) > 1 else None
    return node.inputs[0] if pads is not None and not pads.any() else None


def _slice(node: gs.Node) -> gs.Tensor | None:
    shape = node.inputs[0].shape
    parts = [constant_values(tensor) if tensor.name else None for tensor in node.inputs[1:]] + [
        None
    ] * 2
    starts, ends, axes, steps = parts[:4]
    if (
        shape is None
        or starts is None
        or ends is None
        or starts.any()
        or (steps is not None and (steps != 1).any())
    ):
        return None
    if any(
        tensor.name and part is None for tensor, part in zip(node.inputs[1:], parts, strict=False)
    ):
        return None
    chosen = range(len(ends)) if axes is None else axes
    endless = np.iinfo(np.int32).max  # exporters write this for "to the end"
    whole = all(
        end >= endless or (isinstance(shape[axis], int) and end >= shape[axis])
        for axis, end in zip(chosen, ends, strict=True)
    )
    return node.inputs[0] if whole else None


def _neutral(node: gs.Node) -> gs.Tensor | None:
    sides = [(0, 1), (1, 0)] if node.op in _COMMUTATIVE else [(0, 1)]
    for kept, other in sides:
        x, constant = node.inputs[kept], node.inputs[other]
        if isinstance(constant, gs.Constant) and _fits(constant.shape, x.shape):
            values = constant_values(constant)
            if values is not None and (values == _NEUTRAL[node.op]).all():
                return x
    return None


def _fits(constant: tuple[int, ...], shape: list[int | str | None] | None) -> bool:
    """True if broadcasting with the constant leaves x's shape unchanged."""
    if not constant:
        return True
    if shape is None or len(constant) > len(shape):
        return False
    return all(c == 1 or c == s for c, s in zip(constant[::-1], shape[::-1], strict=False))


_RULES: dict[str, Callable[[gs.Node], gs.Tensor | None]] = {
    "Identity": _first,
    "Dropout": _dropout,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Cast": _cast,
    "Pad": _pad,
    "Slice": _slice,
    **dict.fromkeys(("Concat", "Sum", "Max", "Min", "Mean"), _only),
    **dict.fromkeys(_NEUTRAL, _neutral),
}
