"""The axes of two shapes of the same elements that belong together: those of a Reshape's operand
and of its result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import TypeAlias

Size: TypeAlias = "int | str | None"
Cut: TypeAlias = tuple[int, int]  # axes of each shape in front of it
Measure: TypeAlias = tuple[int, tuple[str, ...]]  # a number times symbols


def aligned(before: Sequence[Size], behind: Sequence[Size]) -> Iterator[tuple[range, range]]:
    """The axes of both shapes, in groups of equal products, as far as sizes are known from the left
    or from the right: [n, 4, 6] and [n, 24] have (0) with (0) and (1, 2) with (1)."""
    ends = len(before), len(behind)
    right = _cuts(before[::-1], behind[::-1])
    cuts = {(0, 0), *_cuts(before, behind), *((ends[0] - i, ends[1] - j) for i, j in right)}
    found = list[Cut]()
    for cut in sorted(cuts):
        if not found or cut[1] >= found[-1][1]:
            found.append(cut)
    for (i, j), (next_i, next_j) in pairwise(found):
        ours, theirs = before[i:next_i], behind[j:next_j]
        if _measure(ours) == _measure(theirs) is not None:
            yield range(i, next_i), range(j, next_j)


def _cuts(before: Sequence[Size], behind: Sequence[Size]) -> Iterator[Cut]:
    """The places up to which both shapes have the same product. Axes of size 1 make several such
    places, which are paired in their order."""
    ours, theirs = _places(before), _places(behind)
    for measure in ours.keys() & theirs.keys():
        places = ours[measure], theirs[measure]
        last = places[0][-1], places[1][-1]
        for i, j in zip_longest(*places):
            yield last[0] if i is None else i, last[1] if j is None else j


def _places(shape: Sequence[Size]) -> dict[Measure, list[int]]:
    """The places behind axes, by the product of the sizes in front."""
    found: dict[Measure, list[int]] = {}
    for place in range(len(shape) + 1):
        measure = _measure(shape[:place])
        if measure is None:
            break
        found.setdefault(measure, []).append(place)
    return found


def _measure(sizes: Sequence[Size]) -> Measure | None:
    """The product of sizes; None if one is unknown."""
    if any(size is None for size in sizes):
        return None
    count = math.prod(size for size in sizes if isinstance(size, int))
    return count, tuple(sorted(size for size in sizes if isinstance(size, str)))
