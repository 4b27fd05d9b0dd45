"""The tables by which epilogues rotate (ops/rotary/), made of those by which a model multiplies.

A model has cos and sin for each element of a head, or for each pair, at each position, as constants
or computed from positions. The table [batches, positions, W] has both in turns, and (1, 0) for
pairs that are not rotated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import add_constant, constant_values, insert, producer, scalar, stand_alone
from onnxbolt.graph.element_types import onnx_dtype
from onnxbolt.graph.names import fresh
from onnxbolt.ops.attention.lengths import Size, sizes
from onnxbolt.ops.attention.rotary import Rotation

# operators of one tensor whose last axis repeats if that of their first input does
_ELEMENTWISE = frozenset({"Cast", "Cos", "Sin", "Identity", "Neg"})
_MOST = 16  # nodes between a table and what repeats


@dataclass(frozen=True, eq=False)
class Angles:
    """cos and sin of a rotation: [batches, positions, pairs], or [batches, positions, elements], as
    tensors whose axes of one element may be elsewhere; `positions` selects rows of both where they
    have all positions."""

    cos: gs.Tensor
    sin: gs.Tensor
    batches: Size
    length: Size
    pairs: int
    paired: bool  # one number for each pair, else one for each element
    interleaved: bool
    skipped: int  # first positions that are not rotated
    positions: gs.Tensor | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Rotations with equal keys have the same angles."""
        tensors = [None if t is None else _key(t) for t in (self.cos, self.sin, self.positions)]
        return *tensors, self.pairs, self.paired, self.interleaved, self.skipped


def _key(tensor: gs.Tensor) -> object:
    """Equal for constants of equal values, of which TorchScript writes one for each use, and for
    equal operators of equal tensors, which dynamo writes so."""
    values, node = constant_values(tensor), producer(tensor)
    if values is not None:
        return str(values.dtype), values.shape, values.tobytes()
    if node is None or node.domain or node.op not in _ELEMENTWISE:
        return tensor.name
    return node.op, tuple(sorted(node.attrs.items())), _key(node.inputs[0])


def angles(found: Rotation, by_heads: bool) -> Angles | str:
    """The angles of a rotation of [batch, heads, positions, size] (`by_heads`), or [batch,
    positions, heads, size], or with the last two as one axis. A str is a reason why they are not a
    table's."""
    if found.scaled:
        return "its operator scales it, or packs batches"
    if found.x.shape is None:
        return "the rank of its input is not known"
    if found.operator:
        in_rows = len(found.x.shape) == 3
        return _of_operator(found) if by_heads != in_rows else "its operator has other axes"
    tables = [_sized(table, len(found.x.shape), by_heads) for table in (found.cos, found.sin)]
    first, second = tables
    if first is None or second is None or first != second:
        return "its tables are not the same for all heads"
    batches, length, width = first
    rotated = found.rotated or (2 * width if found.paired else width)
    if width != (rotated // 2 if found.paired else rotated):
        return "its tables have another width than what it rotates"
    own = sizes(found.x)[2 if by_heads else 1]
    if isinstance(own, int) and isinstance(length, int):
        own -= found.skipped
    if own != length and not found.skipped:
        return "its tables have another length than what it rotates"
    if found.skipped and (batches != 1 or own != length or not by_heads):
        return "its first positions are not rotated, and it is not known how its tables lie"
    if not found.paired and not all(
        _repeats(table, found.interleaved) for table in (found.cos, found.sin)
    ):
        return "the elements of a pair may have different angles"
    cos, sin = _bare(found.cos), _bare(found.sin)
    shaped = all(_is_reshaped(table, batches, length) for table in (cos, sin))
    if not shaped:
        return "the shapes of its tables are not known"
    return Angles(
        *(cos, sin, batches, length, rotated // 2),
        *(found.paired, found.interleaved, found.skipped),
    )


def _of_operator(found: Rotation) -> Angles | str:
    """Tables [positions, pairs] that an operator reads at `positions` [batch, positions], or
    [batch, positions, pairs]."""
    shape, at = found.cos.shape, found.positions
    if shape is None or found.sin.shape != shape or not isinstance(shape[-1], int):
        return "the shapes of its tables are not known"
    given = found.cos if at is None else at
    if len(shape) != (3 if at is None else 2) or given.shape is None:
        return "the shapes of its tables are not known"
    if at is not None and len(at.shape) != 2:
        return "its positions are an offset"
    batches, length = sizes(given)[:2]
    pairs = int(shape[-1])
    if found.rotated not in (None, 2 * pairs):
        return "its tables have another width than what it rotates"
    return Angles(found.cos, found.sin, batches, length, pairs, True, found.interleaved, 0, at)


def _sized(table: gs.Tensor, rank: int, by_heads: bool) -> tuple[Size, Size, int] | None:
    """Batches, positions and width of a table that broadcasts to [batch, heads, positions, size],
    or [batch, positions, heads, size]; None if heads have tables of their own."""
    if table.shape is None or len(table.shape) > rank or rank != 4:
        return None
    one: list[Size] = [1]
    batches, first, second, width = one * (rank - len(table.shape)) + sizes(table)
    heads, length = (first, second) if by_heads else (second, first)
    return (batches, length, width) if heads == 1 and isinstance(width, int) else None


def _bare(tensor: gs.Tensor) -> gs.Tensor:
    """The tensor in front of Casts and of axes of one element, which other tables share."""
    while (node := producer(tensor)) is not None and not node.domain:
        if node.op not in ("Cast", "Identity", "Unsqueeze"):
            break
        source = node.inputs[0]
        if source.shape is None or source.shape[-1:] != tensor.shape[-1:]:
            break
        tensor = source
    return tensor


def _is_reshaped(table: gs.Tensor, batches: Size, length: Size) -> bool:
    """True if a Reshape by numbers makes [batches, length, ..] of a table."""
    known = batches == 1 or isinstance(length, int)
    return known or sizes(table)[:-1] == [batches, length]


def _repeats(table: gs.Tensor, interleaved: bool) -> bool:
    """True if both elements of each pair are known to be the same."""
    for _ in range(_MOST):
        values, node = constant_values(table), producer(table)
        if values is not None:
            pairs = values.shape[-1] // 2
            axis, last = (-1, (pairs, 2)) if interleaved else (-2, (2, pairs))
            parted = values.reshape(-1, *last)
            return bool(np.array_equal(parted.take(0, axis), parted.take(1, axis)))
        if node is None or node.domain:
            return False
        if _doubles(node, interleaved):
            return True
        # tables of several axes lie side by side
        if interleaved and node.op == "Concat":
            joined = node.attrs.get("axis") in (-1, len(table.shape or ()) - 1)
            return joined and all(_repeats(each, interleaved) for each in node.inputs)
        source = _source(node)
        if source is None or source.shape is None or source.shape[-1:] != table.shape[-1:]:
            return False
        table = source
    return False


def _source(node: gs.Node) -> gs.Tensor | None:
    """The input whose last axis repeats if the output's does; None if that is not certain."""
    if node.op in _ELEMENTWISE or node.op in ("Unsqueeze", "Squeeze"):
        source: gs.Tensor = node.inputs[0]
        return source
    if node.op == "Mul":
        factors = [each for each in node.inputs if scalar(each) is None]
        return factors[0] if len(factors) == 1 else None
    if node.op in ("Gather", "Slice", "Expand", "Reshape"):
        moved: gs.Tensor = node.inputs[0]
        rank = len(moved.shape or ())
        if node.op == "Gather" and node.attrs.get("axis", 0) in (-1, rank - 1):
            return None
        return moved
    return None


def _doubles(node: gs.Node, interleaved: bool) -> bool:
    """True for a node whose result has the same element twice in each pair."""
    if not interleaved:
        twice = len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
        rank = len(node.outputs[0].shape or ())
        return bool(node.op == "Concat" and twice and node.attrs.get("axis") in (-1, rank - 1))
    before = node.inputs[0].shape
    apart = node.op == "Flatten" and node.attrs.get("axis", 1) == len(before or ())
    if node.op not in ("Reshape", "Flatten") or apart:
        return False
    node = producer(node.inputs[0])
    if node is None or not before or before[-1] != 2:
        return False
    if (node.inputs[0].shape or [0])[-1] != 1:
        return False
    if node.op == "Concat":
        return len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
    return node.op in ("Expand", "Tile")


# --- made -----------------------------------------------------------------------------------------


class Tables:
    """Makes the tables of a graph; equal ones are shared. Nodes are appended: they have to be put
    in order."""

    def __init__(self, graph: gs.Graph) -> None:
        self._graph = graph
        self._made = dict[tuple[object, ...], gs.Tensor]()

    def get(self, of: Angles, columns: Sequence[int], dtype: np.dtype) -> gs.Tensor:
        """The table [batches, positions, W] of `dtype`. `columns` has for each of its W / 2 pairs
        that of the angles, or -1 for one that is not rotated."""
        key = (*of.key, tuple(columns), str(dtype))
        if key not in self._made:
            values = [constant_values(table) for table in (of.cos, of.sin)]
            if of.positions is None and all(each is not None for each in values):
                table = _computed([each for each in values if each is not None], of, columns)
                name = f"{of.cos.name}_rotary"
                self._made[key] = add_constant(self._graph, name, table.astype(dtype))
            else:
                self._made[key] = self._at_run_time(of, columns, dtype)
        return self._made[key]

    def _at_run_time(self, of: Angles, columns: Sequence[int], dtype: np.dtype) -> gs.Variable:
        shape: list[Size] = [of.batches, of.length, of.pairs]
        parts = [self._part(table, of, shape) for table in (of.cos, of.sin)]
        if of.skipped:
            length: Size = of.length + of.skipped if isinstance(of.length, int) else ""
            shape = [of.batches, length, of.pairs]
            parts = [
                self._add("Concat", [self._filled(of, number, part), part], shape, axis=1)
                for number, part in zip((1, 0), parts, strict=True)
            ]
        if list(columns) != list(range(of.pairs)):
            shape = [*shape[:2], len(columns)]
            parts = [
                self._spread(part, number, columns, shape)
                for number, part in zip((1, 0), parts, strict=True)
            ]
        axis = self._ints(-1)
        single = [self._add("Unsqueeze", [part, axis], [*shape, 1]) for part in parts]
        both = self._add("Concat", single, [*shape, 2], axis=3)
        width = 2 * shape[2] if isinstance(shape[2], int) else ""
        table = self._add("Reshape", [both, self._ints(0, 0, -1)], [*shape[:2], width])
        return table if table.dtype == dtype else self._cast(table, dtype)

    def _part(self, table: gs.Tensor, of: Angles, shape: Sequence[Size]) -> gs.Tensor:
        """cos or sin of each pair, as [batches, positions, pairs]."""
        if of.positions is not None:
            table = self._add("Gather", [table, of.positions], shape, table.dtype, axis=0)
        if _is_bf16(table):  # ONNX Runtime has few operators for it
            table = self._cast(table, np.dtype(np.float32))
        width = of.pairs if of.paired else 2 * of.pairs
        if sizes(table) != [of.batches, of.length, width]:
            target = (1, -1, width) if of.batches == 1 else (-1, int(of.length), width)
            sized = [of.batches, of.length, width]
            table = self._add("Reshape", [table, self._ints(*target)], sized, table.dtype)
        if of.paired:
            return table
        step, end = (2, 2**63 - 1) if of.interleaved else (1, of.pairs)
        at = [self._ints(number) for number in (0, end, -1, step)]
        return self._add("Slice", [table, *at], shape, table.dtype)

    def _filled(self, of: Angles, number: int, like: gs.Tensor) -> gs.Constant:
        values = np.full((1, of.skipped, of.pairs), number, like.dtype)
        return add_constant(self._graph, f"{like.name}_skipped", values)

    def _spread(
        self, part: gs.Tensor, number: int, columns: Sequence[int], shape: Sequence[Size]
    ) -> gs.Variable:
        """The part's columns where they belong, and `number` for -1: a column behind the last."""
        pads = self._ints(0, 0, 0, 0, 0, 1)
        fill = add_constant(self._graph, f"{part.name}_fill", np.array(number, part.dtype))
        padded = self._add("Pad", [part, pads, fill], [*part.shape[:2], part.shape[2] + 1])
        at = np.where(np.array(columns) < 0, part.shape[2], columns).astype(np.int64)
        indices = add_constant(self._graph, f"{part.name}_columns", at)
        return self._add("Gather", [padded, indices], shape, axis=2)

    def _cast(self, tensor: gs.Tensor, dtype: np.dtype) -> gs.Variable:
        return self._add("Cast", [tensor], tensor.shape, dtype, to=onnx_dtype(dtype))

    def _ints(self, *values: int) -> gs.Constant:
        return add_constant(self._graph, "rotary_numbers", np.array(values, np.int64))

    def _add(
        self,
        op: str,
        inputs: Sequence[gs.Tensor],
        shape: Sequence[Size],
        dtype: np.dtype | None = None,
        **attributes: int,
    ) -> gs.Variable:
        name = fresh(self._graph, f"{inputs[0].name}_rotary")
        result = gs.Variable(name, dtype or inputs[0].dtype, list(shape))
        stand_alone(result)
        insert(self._graph, op, inputs, [result], (), attributes)
        return result


def _is_bf16(tensor: gs.Tensor) -> bool:
    return str(tensor.dtype) == "bfloat16"


def _computed(tables: Sequence[np.ndarray], of: Angles, columns: Sequence[int]) -> np.ndarray:
    """The table of constants in float32."""
    parts = []
    for number, values in zip((1, 0), tables, strict=True):
        part = values.astype(np.float32).reshape(-1, values.shape[-1])
        if not of.paired:
            part = part[:, ::2] if of.interleaved else part[:, : of.pairs]
        skipped = np.full((of.skipped, of.pairs), number, np.float32)
        part = np.concatenate([skipped, part])
        part = np.pad(part, ((0, 0), (0, 1)), constant_values=number)
        parts.append(part[:, list(columns)])
    batches = of.batches if isinstance(of.batches, int) else 1
    return np.stack(parts, axis=-1).reshape(batches, -1, 2 * len(columns))
