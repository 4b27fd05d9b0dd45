"""An attention in pieces, some queries of some batches each, for a reference that holds all of a
piece's scores at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxbolt.graph.windows import Windows
from onnxbolt.integers import round_up
from onnxbolt.ops.base import Piece, Slices

_MOST_SCORES = 2**23  # a piece has at most so many; a reference takes about 100 bytes for each


@dataclass(frozen=True)
class _Extents:
    """Sizes of an attention. An image has `windows` of the batches (0: they are by themselves), and
    a mask is the same again after `period` (0: it has all batches)."""

    batch: int
    heads: int
    queries: int
    keys: int
    windows: int = 0
    period: int = 0

    @classmethod
    def of(cls, attributes: Mapping[str, Any], shapes: Sequence[Sequence[int]]) -> _Extents:
        """From a node's attributes and the shapes of its inputs."""
        heads, period = attributes["heads"], attributes.get("mask_period", 0)
        if "windows" in attributes:
            windows = Windows(*attributes["windows"])
            batch, positions = shapes[0][0] * windows.count, windows.positions
            return cls(batch, heads, positions, positions, windows.count, period)
        queries, keys = _positions(attributes, "q"), _positions(attributes, "k")
        return cls(shapes[0][0], heads, shapes[0][queries], shapes[1][keys], period=period)

    @property
    def together(self) -> int:
        """Batches that a piece has together: an image's, and a period's."""
        return math.lcm(self.windows or 1, self.period or 1)


def cut(attributes: Mapping[str, Any], shapes: Sequence[Sequence[int]]) -> Sequence[Piece]:
    """The pieces of a node; none if it is small enough as a whole."""
    whole = _Extents.of(attributes, shapes)
    row = whole.heads * whole.keys
    if row * whole.queries * whole.batch <= _MOST_SCORES:
        return ()
    batches = round_up(max(_MOST_SCORES // max(row * whole.queries, 1), 1), whole.together)
    queries = min(max(_MOST_SCORES // row, 1), whole.queries)
    if whole.windows:  # an image's rows are those of several
        queries = whole.queries
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
    mask = slice(None) if whole.period else batch
    images = slice(batch.start // (whole.windows or 1), batch.stop // (whole.windows or 1))
    q = {0: images} if whole.windows else {0: batch, _positions(attributes, "q"): query}
    keys = [{0: images if shape[0] > 1 else slice(None)} for shape in shapes[1:3]]
    inputs = [_slices(len(shape), at) for shape, at in zip(shapes, (q, *keys), strict=False)]
    inputs += [_of_mask(shape, mask, query) for shape in shapes[3:]]
    changed = {}
    if "band" in attributes:
        first, last, at_end = attributes["band"]
        moved = query.start + (whole.keys - whole.queries if at_end else 0)
        changed["band"] = [first + moved, last + moved, 0]
    return Piece(tuple(inputs), (images,) if whole.windows else (images, query), changed)


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
