"""Finds repeated layers in a list of nodes.

A layer is a run of nodes that is followed by an equal one: the same operators, types and shapes,
and the same wiring. Two inputs are wired alike if they come from nodes equally far before their
readers, or from the same node (a mask that every layer reads).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

_LEAST, _MOST = 2, 512  # nodes of a layer
_WORTH = 6  # a fold takes at least so many nodes away
_READ = 8  # inputs that are compared
_NONE = -1


@dataclass(frozen=True)
class Fold:
    """`count` equal runs of `period` nodes, one behind the other, from `start` on."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.count

    def first(self, place: int) -> int:
        """The node of the first run that stands for the one at `place`."""
        return self.start + (place - self.start) % self.period

    def all_like(self, place: int) -> range:
        """The nodes for which the one at `place`, of the first run, stands."""
        return range(place, self.end, self.period)


def folds(kinds: Sequence[Hashable], inputs: Sequence[Sequence[int]]) -> list[Fold]:
    """The folds of a graph, in its order. `kinds` are equal for nodes that are, and `inputs` has
    the places of the nodes that each node reads."""
    numbers: dict[Hashable, int] = {}
    kind = np.array([numbers.setdefault(kind, len(numbers)) for kind in kinds], dtype=np.int64)
    read = np.full((len(kinds), _READ), _NONE, dtype=np.int64)
    for place, places in enumerate(inputs):
        read[place, : len(places)] = list(places)[:_READ]
    return list(_folds(kind, read, 0, len(kinds)))


def _folds(kind: np.ndarray, read: np.ndarray, begin: int, end: int) -> Iterator[Fold]:
    """The fold that takes most nodes away, with those in front of it and behind it."""
    best = _best(kind, read, begin, end)
    if best is not None:
        yield from _folds(kind, read, begin, best.start)
        yield best
        yield from _folds(kind, read, best.end, end)


def _best(kind: np.ndarray, read: np.ndarray, begin: int, end: int) -> Fold | None:
    found, saved = None, _WORTH - 1
    for period in range(_LEAST, min((end - begin) // 2, _MOST) + 1):
        # equally large folds: the one with the shorter period shows more
        if end - begin - period <= saved:
            break
        lengths = _equal_runs(_alike(kind[begin:end], read[begin:end], period))
        taken = lengths // period * period
        start = int(taken.argmax())
        if taken[start] > saved:
            saved = int(taken[start])
            found = Fold(begin + start, period, 1 + saved // period)
    return found


def _alike(kind: np.ndarray, read: np.ndarray, period: int) -> np.ndarray:
    """True for each node that equals the one `period` behind it."""
    here, there = read[:-period], read[period:]
    same = (here == there) | ((here != _NONE) & (there != _NONE) & (here + period == there))
    return (kind[:-period] == kind[period:]) & same.all(axis=1)


def _equal_runs(alike: np.ndarray) -> np.ndarray:
    """For each place, the number of True values from it on without a gap."""
    places = np.arange(len(alike))
    ends = np.where(alike, len(alike), places)
    return np.minimum.accumulate(ends[::-1])[::-1] - places
