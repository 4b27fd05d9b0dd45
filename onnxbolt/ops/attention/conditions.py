"""The keys that a mask keeps: a band, and boolean tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.dtypes import DType
from onnxbolt.graph.edit import constant_values, producer, scalar
from onnxbolt.graph.tracing import traced, unknown
from onnxbolt.ops.attention import positions
from onnxbolt.ops.attention.found import ALL, Band
from onnxbolt.ops.attention.lengths import number, numbers, sizes
from onnxbolt.ops.attention.positions import Frame, compared, joined

_BOOL = np.dtype(np.bool_)


@dataclass(frozen=True, eq=False)
class Leaf:
    """The keys for which a boolean tensor has a value."""

    tensor: gs.Tensor
    value: bool
    folded: bool  # it is to be broadcast to scores with one axis for batch and heads


@dataclass(frozen=True, eq=False)
class Condition:
    """The keys that are in the band and in each of the leaves."""

    band: Band = ALL
    leaves: tuple[Leaf, ...] = ()

    def joined(self, other: Condition) -> Condition:
        """The keys that both keep."""
        known = {(leaf.tensor.name, leaf.value) for leaf in self.leaves}
        new = (leaf for leaf in other.leaves if (leaf.tensor.name, leaf.value) not in known)
        return Condition(joined(self.band, other.band), (*self.leaves, *new))


# --- nodes that move a mask -----------------------------------------------------------------------

MOVES = ("Expand", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class Move:
    """A node that only moves a mask."""

    frame: Frame  # the scores that its input is for
    shift: int = 0  # how much less the distance from query to key is behind it
    whole: bool = False  # its input broadcasts to the scores as its output does

    def behind(self, found: Condition | None) -> Condition | None:
        """The keys that are kept behind the node, if `found` are those of its input."""
        if found is None or (found.leaves and not self.whole):
            return None
        first, last = found.band.first, found.band.last
        band = Band(
            None if first is None else first - self.shift,
            None if last is None else last - self.shift,
        )
        return Condition(band, found.leaves)


def moved(node: gs.Node, frame: Frame) -> Move | None:
    """The move that `node` makes of a mask for the scores of `frame`; None if it is not certain, or
    the node does something else."""
    before, after = node.inputs[0].shape, node.outputs[0].shape
    if node.domain or node.op not in MOVES or before is None or after is None:
        return None
    if node.op in ("Expand", "Identity"):
        return Move(frame, whole=True)
    if min(len(before), len(after)) < 2:
        return None
    if node.op == "Slice":
        return _sliced(node, frame)
    if list(before[-2:]) != list(after[-2:]) or None in before[-2:]:
        return None
    if frame.folded and len(before) == 4 and len(after) == 3:
        if before[0] != 1 and before[1] == 1:  # its first axis is batch and heads already
            return None
        return Move(Frame(frame.queries, frame.keys), whole=True)
    alone = all(size == 1 for size in (*before[:-2], *after[:-2]))
    return Move(frame, whole=alone) if alone else None


def _sliced(node: gs.Node, frame: Frame) -> Move | None:
    """A part of the rows and columns of a larger mask."""
    starts, _, axes, steps = ([*map(numbers, node.inputs[1:]), None, None])[:4]
    if starts is None or axes is None or set(steps or [1]) != {1}:
        return None
    rank, shift = len(node.inputs[0].shape), 0
    for start, axis in zip(starts, axes, strict=True):
        if not isinstance(start, int) or not isinstance(axis, int) or start < 0:
            return None
        place = axis % rank - rank
        if place < -2 and node.inputs[0].shape[axis] != 1:
            return None
        shift += {-1: start, -2: -start}.get(place, 0)
    queries, keys = sizes(node.inputs[0])[-2:]
    whole = sizes(node.outputs[0])[-2:] == [frame.queries, frame.keys]
    return Move(Frame(queries, keys, frame.folded), shift) if whole else None


# --- booleans -------------------------------------------------------------------------------------


def _itself(tensor: gs.Tensor, value: bool, frame: Frame) -> Condition:
    """The tensor itself is the condition."""
    return Condition(leaves=(Leaf(tensor, value, frame.folded),))


@traced(_itself)
def kept(tensor: gs.Tensor, value: bool, frame: Frame) -> Condition:
    """The keys for which a boolean tensor has a value."""
    values, node = constant_values(tensor), producer(tensor)
    if values is not None:
        band = positions.by_value(values if value else ~values, frame)
        found = None if band is None else Condition(band)
    else:
        rule = None if node is None or node.domain else _RULES.get(node.op)
        found = None if node is None or rule is None else rule(node, value, frame)
    return found or _itself(tensor, value, frame)


def _not(node: gs.Node, value: bool, frame: Frame) -> Condition | None:
    return kept(node.inputs[0], not value, frame)


def _both(when: bool) -> Callable[[gs.Node, bool, Frame], Condition | None]:
    """And is true, and Or false, if both operands are."""

    def rule(node: gs.Node, value: bool, frame: Frame) -> Condition | None:
        if value is not when:
            return None
        left, right = (kept(tensor, value, frame) for tensor in node.inputs)
        return left.joined(right)

    return rule


def _where(node: gs.Node, value: bool, frame: Frame) -> Condition | None:
    """The node Where(c, x, constant) has a value that the constant has not if c holds and x has
    it."""
    condition, *choices = node.inputs
    for side, choice in zip((True, False), choices, strict=True):
        constant = constant_values(choices[1] if side else choices[0])
        if constant is not None and (constant == (not value)).all():
            return kept(condition, side, frame).joined(kept(choice, value, frame))
    return None


_OPPOSITE = {
    "Less": "GreaterOrEqual",
    "LessOrEqual": "Greater",
    "Greater": "LessOrEqual",
    "GreaterOrEqual": "Less",
}


def _compared(node: gs.Node, value: bool, frame: Frame) -> Condition | None:
    op = node.op if value else _OPPOSITE[node.op]
    left, right = node.inputs
    band = compared(op, left, right, frame)
    return None if band is None else Condition(band)


def _equal(node: gs.Node, value: bool, frame: Frame) -> Condition | None:
    """Numbers of sequences that are all the same, or one of two numbers and a constant."""
    left, right = (positions.linear(tensor) for tensor in node.inputs)
    if value and left is not None and right is not None and left.same_as(right):
        return Condition()
    for x, other in (node.inputs, node.inputs[::-1]):
        constant, choice = scalar(other), two_valued(x, frame)
        if constant is not None and choice is not None:
            equal = [n == constant for n in choice.numbers]
            return choice.where([each is value for each in equal])
    return None


def _cast(node: gs.Node, value: bool, frame: Frame) -> Condition | None:
    if node.inputs[0].dtype == _BOOL:
        return kept(node.inputs[0], value, frame)
    choice = two_valued(node.inputs[0], frame)
    if choice is None:
        return None
    return choice.where([(number != 0) is value for number in choice.numbers])


def _moved(node: gs.Node, value: bool, frame: Frame) -> Condition | None:
    move = moved(node, frame)
    return None if move is None else move.behind(kept(node.inputs[0], value, move.frame))


_RULES: dict[str, Callable[[gs.Node, bool, Frame], Condition | None]] = {
    "Not": _not,
    "And": _both(True),
    "Or": _both(False),
    "Where": _where,
    "Equal": _equal,
    "Cast": _cast,
    **dict.fromkeys(_OPPOSITE, _compared),
    **dict.fromkeys(MOVES, _moved),
}


# --- tensors of two numbers -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TwoValued:
    """A tensor of two numbers, or of one: those that it has, and the keys for which it has
    each."""

    numbers: tuple[float, float]
    keys: tuple[Condition | None, Condition | None]  # None: more than a condition

    def where(self, wanted: Sequence[bool]) -> Condition | None:
        """The keys for which it has the number that is wanted, if it is one."""
        chosen = [keys for keys, yes in zip(self.keys, wanted, strict=True) if yes]
        if len(chosen) == 2:
            return Condition() if self.uniform else None
        return chosen[0] if chosen else None

    @property
    def uniform(self) -> bool:
        """True if it is of one number."""
        return self.numbers[0] == self.numbers[1]

    def mapped(self, function: Callable[[float], float]) -> TwoValued:
        """`function` of all elements."""
        first, second = self.numbers
        return TwoValued((function(first), function(second)), self.keys)


@traced(unknown)
def two_valued(tensor: gs.Tensor, frame: Frame) -> TwoValued | None:
    """The tensor as one of two numbers; None if it is none."""
    values, node = constant_values(tensor), producer(tensor)
    if values is not None:
        return _constant(values, frame)
    rule = None if node is None or node.domain else _NUMBERS.get(node.op)
    return None if node is None or rule is None else rule(node, frame)


def _constant(values: np.ndarray, frame: Frame) -> TwoValued | None:
    if values.dtype.kind not in "fiu" and DType.of(values.dtype) is None:
        return None
    if not values.size or values.dtype == object:
        return None
    low, high = values.min(), values.max()
    if not ((values == low) | (values == high)).all():
        return None
    bands = [positions.by_value(values == number, frame) for number in (low, high)]
    conditions = [None if band is None else Condition(band) for band in bands]
    return TwoValued((float(low), float(high)), (conditions[0], conditions[1]))


def _of_numbers(node: gs.Node, frame: Frame) -> TwoValued | None:
    """A Cast from booleans, or from one type of numbers to another."""
    x, to = node.inputs[0], node.outputs[0].dtype
    if not isinstance(to, np.dtype):
        return None
    if x.dtype == _BOOL:
        return TwoValued((1.0, 0.0), (kept(x, True, frame), kept(x, False, frame)))
    found = two_valued(x, frame)
    return found and found.mapped(lambda number: float(np.asarray(number).astype(to)))


def _chosen(node: gs.Node, frame: Frame) -> TwoValued | None:
    condition, yes, no = node.inputs
    conditions = kept(condition, True, frame), kept(condition, False, frame)
    numbers = _number(yes, frame), _number(no, frame)
    if numbers[1] is None:
        numbers = numbers[0], _zero_without(condition, no)
    if numbers[0] is not None and numbers[1] is not None:
        return TwoValued((numbers[0], numbers[1]), conditions)
    for side, value in enumerate(numbers):
        other = two_valued(node.inputs[2 - side], frame) if value is not None else None
        if value is not None and other is not None and value in other.numbers:
            index = 1 - other.numbers.index(value)
            keys = other.where([index == 0, index == 1])
            both = None if keys is None else conditions[1 - side].joined(keys)
            return TwoValued((value, other.numbers[index]), (None, both))
    return None


def _number(tensor: gs.Tensor, frame: Frame) -> float | None:
    """The number that all elements are; None if they differ."""
    if isinstance(tensor, gs.Constant) and math.prod(tensor.shape) == 1:
        return scalar(tensor)
    found = two_valued(tensor, frame)
    return found.numbers[0] if found is not None and found.uniform else None


def _zero_without(condition: gs.Tensor, tensor: gs.Tensor) -> float | None:
    """0 if `tensor` is 0 where `condition` does not hold, since it is tensor != 0."""
    cast = producer(condition)
    if cast is None or cast.op != "Cast" or cast.domain:
        return None
    return 0.0 if cast.inputs[0] is tensor else None


def _triangle(node: gs.Node, frame: Frame) -> TwoValued | None:
    x = two_valued(node.inputs[0], frame)
    k = number(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1].name else 0
    whole = sizes(node.outputs[0])[-2:] == [frame.queries, frame.keys]
    if x is None or not x.uniform or not isinstance(k, int) or not whole:
        return None
    upper = node.attrs.get("upper", 1)
    inside, outside = (Band(first=k), Band(last=k - 1)) if upper else (Band(None, k), Band(k + 1))
    return TwoValued((x.numbers[0], 0.0), (Condition(inside), Condition(outside)))


def _filled(node: gs.Node, frame: Frame) -> TwoValued | None:
    value = float(np.asarray(node.attrs.get("value", np.zeros(1))).reshape(-1)[0])
    return TwoValued((value, value), (Condition(), Condition()))


def _sum(node: gs.Node, frame: Frame) -> TwoValued | None:
    """A number more, or two masks of which each excludes keys for good."""
    x, y = (two_valued(tensor, frame) for tensor in node.inputs)
    if x is None or y is None:
        return None
    for a, b in ((x, y), (y, x)):
        if b.uniform:
            return a.mapped(lambda number, more=b.numbers[0]: number + more)  # type: ignore[misc]
    if set(x.numbers) != {0.0, -math.inf} or set(y.numbers) != set(x.numbers):
        return None
    left, right = (each.where([number == 0 for number in each.numbers]) for each in (x, y))
    both = None if left is None or right is None else left.joined(right)
    return TwoValued((0.0, -math.inf), (both, None))


def _product(node: gs.Node, frame: Frame) -> TwoValued | None:
    """A number times, or twice the same band."""
    x, y = (two_valued(tensor, frame) for tensor in node.inputs)
    if x is None or y is None:
        return None
    for a, b in ((x, y), (y, x)):
        if b.uniform:
            return a.mapped(lambda number, times=b.numbers[0]: number * times)  # type: ignore[misc]
    inside, other = (each.where([bool(number) for number in each.numbers]) for each in (x, y))
    outside = x.where([not number for number in x.numbers])
    value = math.prod(number for each in (x, y) for number in each.numbers if number)
    if inside is None or other is None or inside.leaves or other.leaves:
        return None
    same = inside.band == other.band and math.isfinite(value)
    return TwoValued((value, 0.0), (inside, outside)) if same else None


def _difference(node: gs.Node, frame: Frame) -> TwoValued | None:
    x, y = (two_valued(tensor, frame) for tensor in node.inputs)
    if x is None or y is None or not (x.uniform or y.uniform):
        return None
    if y.uniform:
        return x.mapped(lambda number: number - y.numbers[0])
    return y.mapped(lambda number: x.numbers[0] - number)


def _moved_numbers(node: gs.Node, frame: Frame) -> TwoValued | None:
    move = moved(node, frame)
    found = None if move is None else two_valued(node.inputs[0], move.frame)
    if move is None or found is None:
        return None
    return TwoValued(found.numbers, (move.behind(found.keys[0]), move.behind(found.keys[1])))


_NUMBERS: dict[str, Callable[[gs.Node, Frame], TwoValued | None]] = {
    "Cast": _of_numbers,
    "CastLike": _of_numbers,
    "Where": _chosen,
    "Trilu": _triangle,
    "ConstantOfShape": _filled,
    "Add": _sum,
    "Sub": _difference,
    "Mul": _product,
    **dict.fromkeys(MOVES, _moved_numbers),
}
