"""Places the nodes of a graph in ranks from top to bottom (Sugiyama's method).

Each node's rank is one below the last node that it reads. An edge over several ranks passes each
rank at a place of its own, which it shares with other edges from the same node. The places of a
rank are ordered so that few edges cross (barycenters, in sweeps down and up), and then moved next
to those that they are joined to, as far as the order allows: the least sum of squared distances, by
isotonic regression.

An edge over more than `_LONGEST` ranks is not drawn: both of its ends name the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

WIDTH, HEIGHT = 184, 44  # pixels of a node
_GAP, _RANK, _MARGIN = 20, 72, 16  # between nodes of a rank, from rank to rank, around all
_LANE = 12  # the width of an edge that passes a rank, gap included
_SWEEPS, _MOVES = 6, 9  # the last move is down, so that a chain of nodes is straight
_LONGEST = 16
_CENTERED = 0.8  # a place where edges meet moves this near to the middle of the drawing
_STRAIGHT = 8.0  # weight of places on an edge, so that long edges are straight


@dataclass(frozen=True)
class Layout:
    """The corners of nodes, and edges as paths of SVG, in pixels."""

    width: int
    height: int
    places: tuple[tuple[int, int], ...]  # x and y of each node's upper left corner
    path: str  # all edges
    ranks: tuple[int, ...]


@dataclass
class _Place:
    """A node, or the place where an edge passes a rank."""

    rank: int
    width: int
    above: list[int]
    below: list[int]
    x: float = 0.0  # the middle's

    @property
    def weight(self) -> float:
        return 1.0 if self.width == WIDTH else _STRAIGHT


def laid_out(inputs: Sequence[Sequence[int]], sections: Sequence[int]) -> Layout:
    """The layout of nodes that each read earlier ones, `inputs`. `sections` has the section of each
    node, in ascending order; sections are placed one below the other."""
    ranks = _ranks(inputs, sections)
    places = [_Place(rank, WIDTH, [], []) for rank in ranks]
    edges = [(maker, reader) for reader, read in enumerate(inputs) for maker in read]
    passed: dict[tuple[int, int], int] = {}
    routes = [
        _route(places, passed, maker, reader)
        for maker, reader in edges
        if ranks[reader] - ranks[maker] <= _LONGEST
    ]
    rows: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    for number, place in enumerate(places):
        rows[place.rank].append(number)
    _order(rows, places)
    _move(rows, places)
    return _drawn(len(inputs), ranks, places, routes)


def _ranks(inputs: Sequence[Sequence[int]], sections: Sequence[int]) -> list[int]:
    ranks: list[int] = []
    base, last, section = 0, -1, None
    for node, read in enumerate(inputs):
        if sections[node] != section:
            base, section = last + 1, sections[node]
        ranks.append(max((ranks[maker] + 1 for maker in read), default=base))
        ranks[node] = max(ranks[node], base)
        last = max(last, ranks[node])
    return _lowered(inputs, sections, ranks)


def _lowered(
    inputs: Sequence[Sequence[int]], sections: Sequence[int], ranks: list[int]
) -> list[int]:
    """The ranks with nodes right above the first that reads them, if that is in the same section
    and makes no edges longer in sum."""
    readers: list[list[int]] = [[] for _ in inputs]
    for reader, read in enumerate(inputs):
        for maker in read:
            readers[maker].append(reader)
    for node in reversed(range(len(inputs))):
        near = [ranks[r] for r in readers[node] if sections[r] == sections[node]]
        if near and len(inputs[node]) <= len(readers[node]):
            ranks[node] = min(near) - 1
    return ranks


def _route(
    places: list[_Place], passed: dict[tuple[int, int], int], maker: int, reader: int
) -> list[int]:
    """The places of an edge; `passed` has the one at which edges from a node pass a rank."""
    route = [maker]
    for rank in range(places[maker].rank + 1, places[reader].rank):
        if (maker, rank) not in passed:
            passed[maker, rank] = len(places)
            places.append(_Place(rank, _LANE, [], []))
            _join(places, route[-1], passed[maker, rank])
        route.append(passed[maker, rank])
    _join(places, route[-1], reader)
    return [*route, reader]


def _join(places: list[_Place], upper: int, lower: int) -> None:
    places[upper].below.append(lower)
    places[lower].above.append(upper)


def _order(rows: list[list[int]], places: list[_Place]) -> None:
    """Sort each row by the mean position of what its places are joined to."""
    at = [0.0] * len(places)

    def number(row: list[int]) -> None:
        for position, place in enumerate(row):
            at[place] = position - (len(row) - 1) / 2

    for row in rows:
        number(row)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            wanted = {}
            for place in row:
                joined = places[place].above if down else places[place].below
                wanted[place] = sum(at[o] for o in joined) / len(joined) if joined else at[place]
            row.sort(key=wanted.__getitem__)
            number(row)


def _move(rows: list[list[int]], places: list[_Place]) -> None:
    """Set x: first side by side, then next to what each place is joined to."""
    for row in rows:
        offsets = _offsets([places[number] for number in row])
        for number, offset in zip(row, offsets, strict=True):
            places[number].x = offset - offsets[-1] / 2
    for turn in range(_MOVES):
        down = turn % 2 == 0
        for row in rows if down else reversed(rows):
            _settle([places[number] for number in row], [_wanted(n, places, down) for n in row])


def _wanted(number: int, places: list[_Place], down: bool) -> float:
    """The middle of what a place is joined to, above it or below."""
    place = places[number]
    xs = [places[other].x for other in (place.above if down else place.below)]
    middle = sum(xs) / len(xs) if xs else place.x
    return middle * _CENTERED if len(xs) > 1 else middle


def _offsets(row: Sequence[_Place]) -> list[float]:
    """The middles of places side by side, from that of the first one on."""
    steps = (
        (left.width + right.width) / 2 + (_GAP if WIDTH in (left.width, right.width) else 0)
        for left, right in pairwise(row)
    )
    return list(accumulate(steps, initial=0.0))


def _settle(row: list[_Place], wanted: Sequence[float]) -> None:
    """Move a row as near to `wanted` as its order and widths allow (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, places
    offsets = _offsets(row)
    for place, x, moved in zip(row, wanted, offsets, strict=True):
        mean, weight, count = x - moved, place.weight, 1
        while pools and pools[-1][0] > mean:
            other, others, more = pools.pop()
            mean = (mean * weight + other * others) / (weight + others)
            weight, count = weight + others, count + more
        pools.append((mean, weight, count))
    means = (mean for mean, _, count in pools for _ in range(count))
    for place, mean, moved in zip(row, means, offsets, strict=True):
        place.x = mean + moved


def _drawn(count: int, ranks: list[int], places: list[_Place], routes: list[list[int]]) -> Layout:
    left = min((place.x - place.width / 2 for place in places), default=0.0) - _MARGIN
    right = max((place.x + place.width / 2 for place in places), default=0.0) + _MARGIN
    corners = tuple(
        (round(place.x - left - WIDTH / 2), _MARGIN + place.rank * _RANK)
        for place in places[:count]
    )
    return Layout(
        round(right - left),
        2 * _MARGIN + max(ranks, default=0) * _RANK + HEIGHT,
        corners,
        "".join(_path(places, route, left) for route in routes),
        tuple(ranks),
    )


def _path(places: list[_Place], route: list[int], left: float) -> str:
    """An edge from the lower side of its first place to the upper side of its last one: vertical
    along each rank, and an S between ranks."""
    parts: list[str] = []
    for upper, lower in pairwise(route):
        x0, x1 = (round(places[number].x - left) for number in (upper, lower))
        y0 = _MARGIN + places[upper].rank * _RANK + HEIGHT
        y1 = _MARGIN + places[lower].rank * _RANK
        if not parts:
            parts.append(f"M{x0} {y0}")
        else:
            parts.append(f"V{y0}")
        middle = (y0 + y1) // 2
        parts.append(f"V{y1}" if x0 == x1 else f"C{x0} {middle} {x1} {middle} {x1} {y1}")
    return "".join(parts)
