"""Integers that nodes compute of positions, such as Unsqueeze(Range(0, length)): an offset plus a
factor times the index along each axis. Comparisons of such numbers are bands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import constant_values, producer
from onnxbolt.graph.tracing import traced, unknown
from onnxbolt.ops.attention.found import Band
from onnxbolt.ops.attention.lengths import Size, number

_EXACT = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int32), np.dtype(np.int64))


@dataclass(frozen=True, eq=False)
class Linear:
    """offset + the sum of factor x index over axes, which are counted from the end: -1 is the
    last. Each of these axes has a size."""

    offset: int
    factors: Mapping[int, int] = field(default_factory=dict)
    sizes: Mapping[int, Size] = field(default_factory=dict)

    def times(self, factor: int) -> Linear:
        """All values times a number."""
        factors = {axis: each * factor for axis, each in self.factors.items()}
        return Linear(self.offset * factor, factors, self.sizes)

    def plus(self, other: Linear) -> Linear | None:
        """The sum of both, broadcast; None if they differ in the size of an axis."""
        both = self.factors.keys() & other.factors.keys()
        if any(self.sizes[axis] != other.sizes[axis] for axis in both):
            return None
        axes = (*self.factors, *(axis for axis in other.factors if axis not in both))
        factors = {a: self.factors.get(a, 0) + other.factors.get(a, 0) for a in axes}
        return Linear(self.offset + other.offset, factors, {**self.sizes, **other.sizes})

    def same_as(self, other: Linear) -> bool:
        """True if both are the same number everywhere."""
        return not any((*self.factors.values(), *other.factors.values())) and (
            self.offset == other.offset
        )

    def moved(self, axes: Mapping[int, int]) -> Linear | None:
        """The same values with axes at other places; None if one of them has no place."""
        if any(axis not in axes for axis in self.factors):
            return None
        factors = {axes[axis]: factor for axis, factor in self.factors.items()}
        return Linear(self.offset, factors, {axes[axis]: self.sizes[axis] for axis in self.factors})


@traced(unknown)
def linear(tensor: gs.Tensor) -> Linear | None:
    """The values of a tensor of integers, which may be stored as floats; None if they are not of
    this kind."""
    if tensor.dtype not in _EXACT:
        return None
    values, node = constant_values(tensor), producer(tensor)
    if values is not None:
        return _fitted(values)
    if node is None or node.domain or tensor.shape is None or node.op not in _RULES:
        return None
    return _RULES[node.op](node)


def _fitted(values: np.ndarray) -> Linear | None:
    """The numbers whose values these are."""
    if not values.size or not np.isfinite(values).all() or (values != np.floor(values)).any():
        return None
    first = (0,) * values.ndim
    offset, factors, expected = int(values[first]), dict[int, int](), np.zeros(())
    for axis in range(-values.ndim, 0):
        count = values.shape[axis]
        if count > 1:
            step = [0] * values.ndim
            step[axis] = 1
            factors[axis] = int(values[tuple(step)]) - offset
            index = np.arange(count).reshape(-1, *[1] * (-axis - 1))
            expected = expected + factors[axis] * index
    if not np.array_equal(np.broadcast_to(expected + offset, values.shape), values):
        return None
    return Linear(offset, factors, {axis: int(values.shape[axis]) for axis in factors})


def _range(node: gs.Node) -> Linear | None:
    """Range(start, limit, 1): its length is limit - start."""
    start, limit, step = (number(tensor) for tensor in node.inputs)
    if not isinstance(start, int) or step != 1 or limit is None:
        return None
    if isinstance(limit, str):
        return Linear(0, {-1: 1}, {-1: limit}) if start == 0 else None
    return Linear(start, {-1: 1}, {-1: max(limit - start, 0)})


def _reshape(node: gs.Node) -> Linear | None:
    """The axes with more than one index stay in their order."""
    x = linear(node.inputs[0])
    before, after = node.inputs[0].shape, node.outputs[0].shape
    if x is None or before is None:
        return None
    old, new = (
        [axis - len(shape) for axis, size in enumerate(shape) if size != 1]
        for shape in (before, after)
    )
    same = len(old) == 1 or all(before[a] == after[b] for a, b in zip(old, new, strict=False))
    return x.moved(dict(zip(old, new, strict=True))) if len(old) == len(new) and same else None


def _transpose(node: gs.Node) -> Linear | None:
    x, rank = linear(node.inputs[0]), len(node.outputs[0].shape)
    order = node.attrs.get("perm", range(rank)[::-1])
    return x and x.moved({old - rank: new - rank for new, old in enumerate(order)})


def _same(node: gs.Node) -> Linear | None:
    return linear(node.inputs[0])


def _sum(sign: int) -> Callable[[gs.Node], Linear | None]:
    def rule(node: gs.Node) -> Linear | None:
        x, y = (linear(tensor) for tensor in node.inputs)
        return None if x is None or y is None else x.plus(y.times(sign))

    return rule


def _product(node: gs.Node) -> Linear | None:
    x, y = (linear(tensor) for tensor in node.inputs)
    if x is None or y is None:
        return None
    if not y.factors:
        return x.times(y.offset)
    return None if x.factors else y.times(x.offset)


def _negative(node: gs.Node) -> Linear | None:
    x = linear(node.inputs[0])
    return x and x.times(-1)


_RULES: dict[str, Callable[[gs.Node], Linear | None]] = {
    "Range": _range,
    "Transpose": _transpose,
    "Add": _sum(1),
    "Sub": _sum(-1),
    "Mul": _product,
    "Neg": _negative,
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze"), _reshape),
    **dict.fromkeys(("Cast", "Expand", "Identity"), _same),
}


# --- bands ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """The last axes of the scores that a mask is for; `folded`: before them stands one axis for
    batch and heads together."""

    queries: Size
    keys: Size
    folded: bool = False


def joined(a: Band, b: Band) -> Band:
    """The band of the keys that both keep."""
    firsts = [each.first for each in (a, b) if each.first is not None]
    lasts = [each.last for each in (a, b) if each.last is not None]
    return Band(max(firsts, default=None), min(lasts, default=None))


def leaves_a_key(band: Band, frame: Frame) -> bool:
    """True if every query has a key in the band."""
    first, last = band.first or 0, band.last or 0
    return first <= 0 <= last and (band.first is None or frame.queries == frame.keys)


def compared(op: str, left: gs.Tensor, right: gs.Tensor, frame: Frame) -> Band | None:
    """The band in which `left` stands to `right` as the operator says; None if it is none."""
    if op in ("Greater", "GreaterOrEqual"):
        return compared(
            {"Greater": "Less", "GreaterOrEqual": "LessOrEqual"}[op], right, left, frame
        )
    strict = op == "Less"
    node, bound = producer(left), linear(right)
    if node is not None and node.op == "Abs" and not node.domain:
        inner = linear(node.inputs[0])
        if inner is None or bound is None or bound.factors:
            return None
        sides = [_below(x.plus(bound.times(-1)), strict, frame) for x in (inner, inner.times(-1))]
        return None if sides[0] is None or sides[1] is None else joined(sides[0], sides[1])
    value = linear(left)
    if value is None or bound is None:
        return None
    return _below(value.plus(bound.times(-1)), strict, frame)


def _below(value: Linear | None, strict: bool, frame: Frame) -> Band | None:
    """The band in which a value is at most 0, or `strict`: less than 0."""
    if value is None:
        return None
    factors = {axis: factor for axis, factor in value.factors.items() if factor}
    offset = value.offset + strict  # integers
    if _highest(factors, value.sizes, offset) <= 0:
        return Band()
    fits = {-2: frame.queries, -1: frame.keys}
    if set(factors) != {-2, -1} or factors[-2] != -factors[-1]:
        return None
    if any(value.sizes[axis] != size for axis, size in fits.items()):
        return None
    step = factors[-1]
    if step > 0:  # step (j - i) + offset <= 0
        return Band(last=math.floor(-offset / step))
    return Band(first=math.ceil(offset / -step))


def _highest(factors: Mapping[int, int], lengths: Mapping[int, Size], offset: int) -> float:
    """The highest value that is possible."""
    ends = [
        0.0 if factor < 0 else math.inf if isinstance(length, str) else factor * (length - 1)
        for factor, length in ((factor, lengths[axis]) for axis, factor in factors.items())
    ]
    return offset + sum(ends)


def by_value(values: np.ndarray, frame: Frame) -> Band | None:
    """The band of a constant that is true where a key is kept; None if it is none."""
    if values.all():
        return Band()
    if values.ndim < 2 or tuple(values.shape[-2:]) != (frame.queries, frame.keys):
        return None
    rows = values.reshape(-1, *values.shape[-2:])
    if not values.any() or (rows != rows[:1]).any():
        return None
    queries, keys = rows.shape[1:]
    distance = np.arange(keys) - np.arange(queries)[:, None]
    inside = distance[rows[0]]
    first, last = int(inside.min()), int(inside.max())
    if not np.array_equal((first <= distance) & (distance <= last), rows[0]):
        return None
    return Band(
        first if first > 1 - queries else None,
        last if last < keys - 1 else None,
    )
