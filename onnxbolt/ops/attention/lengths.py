"""Numbers that nodes compute of shapes: Shape, Gather, Slice, Concat and so on, as exporters write
the target of an Expand or the limit of a Range."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import constant_integers, constant_values, producer
from onnxbolt.graph.tracing import traced, unknown

# a number, or the name of a symbolic dimension; equal names are equal sizes
Size: TypeAlias = int | str
Numbers: TypeAlias = "list[Size | None]"  # None: a number that is not known
_MOST = 16  # numbers of a shape, or of the indices of a tensor


def sizes(tensor: gs.Tensor) -> list[Size]:
    """The shape, where unknown sizes have names of their own."""
    return [
        size if isinstance(size, int | str) and size != "" else f"{tensor.name}.{axis}"
        for axis, size in enumerate(tensor.shape)
    ]


@traced(unknown)
def numbers(tensor: gs.Tensor) -> Numbers | None:
    """The elements of a number or vector of integers; a str is the size of a symbolic dimension.
    None if it is not known how many there are."""
    values, node = constant_values(tensor), producer(tensor)
    if values is not None:
        known = values.dtype.kind in "biu" and values.ndim < 2 and values.size <= _MOST
        return [int(value) for value in values.reshape(-1)] if known else None
    rule = None if node is None or node.domain else _RULES.get(node.op)
    return None if rule is None else rule(node)


def is_integer(tensor: gs.Tensor) -> bool:
    """True for integers of 32 and 64 bits, which hold every size."""
    return tensor.dtype in (np.dtype(np.int32), np.dtype(np.int64))


def number(tensor: gs.Tensor) -> Size | None:
    """The only element; None if it is not known, or there are several."""
    found = numbers(tensor)
    return found[0] if found is not None and len(found) == 1 else None


def _shape(node: gs.Node) -> Numbers | None:
    if node.inputs[0].shape is None:
        return None
    return list(sizes(node.inputs[0])[node.attrs.get("start", 0) : node.attrs.get("end")])


def _same(node: gs.Node) -> Numbers | None:
    shape = node.outputs[0].shape
    whole = node.op != "Cast" or is_integer(node.outputs[0])
    return numbers(node.inputs[0]) if whole and shape is not None and len(shape) < 2 else None


def _gather(node: gs.Node) -> Numbers | None:
    found, indices = numbers(node.inputs[0]), constant_integers(node, 1)
    if found is None or indices is None:
        return None
    return [found[index] for index in indices if -len(found) <= index < len(found)]


def _slice(node: gs.Node) -> Numbers | None:
    found, bounds = numbers(node.inputs[0]), [constant_integers(node, n) for n in (1, 2, 4)]
    if found is None or bounds[0] is None or bounds[1] is None:
        return None
    step = 1 if len(node.inputs) < 5 or bounds[2] is None else bounds[2][0]
    return found[bounds[0][0] : bounds[1][0] : step]


def _concat(node: gs.Node) -> Numbers | None:
    parts = [numbers(tensor) for tensor in node.inputs]
    return None if None in parts else [each for part in parts if part for each in part]


def _pairs(rule: Callable[[Size, Size], Size | None]) -> Callable[[gs.Node], Numbers | None]:
    """The rule of an elementwise operator on two numbers that are known."""

    def pairs(node: gs.Node) -> Numbers | None:
        left, right = (numbers(tensor) for tensor in node.inputs)
        if not left or not right or (len(left) != len(right) and 1 not in (len(left), len(right))):
            return None
        count = max(len(left), len(right))
        both = zip(left * (count // len(left)), right * (count // len(right)), strict=True)
        return [None if a is None or b is None else rule(a, b) for a, b in both]

    return pairs


def _sum(a: Size, b: Size) -> Size | None:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return a if b == 0 else b if a == 0 else None


def _difference(a: Size, b: Size) -> Size | None:
    if a == b:
        return 0
    return _sum(a, -b) if isinstance(b, int) else None


def _product(a: Size, b: Size) -> Size | None:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return a if b == 1 else b if a == 1 else None


def _equal(a: Size, b: Size) -> Size | None:
    """1 or 0; a symbolic size is no negative number."""
    if isinstance(a, int) and isinstance(b, int):
        return int(a == b)
    negative = any(isinstance(size, int) and size < 0 for size in (a, b))
    return 0 if negative else 1 if a == b else None


def _where(node: gs.Node) -> Numbers | None:
    parts = [numbers(tensor) for tensor in node.inputs]
    if any(part is None or len(part) != len(parts[0] or ()) for part in parts):
        return None
    condition, yes, no = (part or [] for part in parts)
    choices = zip(condition, yes, no, strict=True)
    return [None if c is None else a if c else b for c, a, b in choices]


_RULES: dict[str, Callable[[gs.Node], Numbers | None]] = {
    "Shape": _shape,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Add": _pairs(_sum),
    "Sub": _pairs(_difference),
    "Mul": _pairs(_product),
    "Equal": _pairs(_equal),
    "Where": _where,
    **dict.fromkeys(("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"), _same),
}
