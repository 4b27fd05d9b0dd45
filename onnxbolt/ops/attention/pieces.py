"""An attention in pieces, some queries of some batches each, for a reference that holds all of a
piece's scores at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxbolt.ops.base import Piece, Slices

_MOST_SCORES = 2**23  # of a piece; a reference takes about 100 bytes for each


@dataclass(frozen=True)
class _Extents:
    """Sizes of an attention."""

    batch: int
    heads: int
    queries: int
    keys: int

    @classmethod
    def of(cls, attributes: Mapping[str, Any], shapes: Sequence[Sequence[int]]) -> _Extents:
        """From a node's attributes and the shapes of its inputs."""
        queries, keys = _positions(attributes, "q"), _positions(attributes, "k")
        return cls(shapes[0][0], attributes["heads"], shapes[0][queries], shapes[1][keys])


def cut(attributes: Mapping[str, Any], shapes: Sequence[Sequence[int]]) -> Sequence[Piece]:
    """The pieces of a node; none if it is small enough as a whole."""
    whole = _Extents.of(attributes, shapes)
    row = whole.heads * whole.keys
    if row * whole.queries * whole.batch <= _MOST_SCORES:
        return ()
    batches = max(_MOST_SCORES // max(row * whole.queries, 1), 1)
    queries = min(max(_MOST_SCORES // row, 1), whole.queries)
    return [
        _piece(attributes, shapes, whole, batch, query)
        for batch in _parts(whole.batch, batches)
        for query in _parts(whole.queries, queries)
    ]


def _parts(count: int, most: int) -> Iterator[slice]:
    for begin in range(0, count, most):
        yield slice(begin, min(begin + most, count))


def _piece(
    attributes: Mapping[str, Any],
    shapes: Sequence[Sequence[int]],
    whole: _Extents,
    batch: slice,
    query: slice,
) -> Piece:
    q = {0: batch, _positions(attributes, "q"): query}
    keys = [{0: batch if shape[0] > 1 else slice(None)} for shape in shapes[1:3]]
    inputs = [_slices(len(shape), at) for shape, at in zip(shapes, (q, *keys), strict=False)]
    inputs += [_of_mask(shape, batch, query) for shape in shapes[3:]]
    changed = {}
    if "band" in attributes:
        first, last, at_end = attributes["band"]
        moved = query.start + (whole.keys - whole.queries if at_end else 0)
        changed["band"] = [first + moved, last + moved, 0]
    return Piece(tuple(inputs), (batch, query), changed)


def _of_mask(shape: Sequence[int], batch: slice, query: slice) -> Slices:
    """The part of a mask that broadcasts to [batch, heads, queries, keys]."""
    at = {len(shape) - 4: batch, len(shape) - 2: query}
    return _slices(len(shape), {axis: part for axis, part in at.items() if axis >= 0}, shape)


def _slices(rank: int, at: Mapping[int, slice], shape: Sequence[int] = ()) -> Slices:
    """Parts of some axes; axes of one element serve all."""
    return tuple(
        slice(None) if shape and shape[axis] == 1 else at.get(axis, slice(None))
        for axis in range(rank)
    )


def _positions(attributes: Mapping[str, Any], name: str) -> int:
    """The axis of the positions of queries or keys."""
    return 1 if f"{name}_view" in attributes else 2
