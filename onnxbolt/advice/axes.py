"""Axes of tensors, and changes of them.

A change of an axis is a tuple with an entry for each new position: the position that it was, or NEW
for one that is added. (0, 1, 2, NEW) adds a channel to three, (0, 2) drops the second one.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

NEW = -1
Positions: TypeAlias = tuple[int, ...]


class Axis(NamedTuple):
    """An axis of the tensor of a name, counted from the front."""

    tensor: str
    number: int


class UntiedError(Exception):
    """A change of an axis cannot be followed: the reason, and the number of equal parts that the
    change has to consist of, if that would help. It does not leave this package."""

    def __init__(self, reason: str, parts: int = 1) -> None:
        super().__init__(reason)
        self.parts = parts


class Changes(Protocol):
    """The changes so far, as rules see them."""

    alters: list[str]  # why results change although no position is dropped
    fills: dict[Axis, float]  # values of added positions of constants, other than 0

    def of(self, axis: Axis) -> Positions:
        """The axis' positions after the change."""

    def size(self, axis: Axis) -> int:
        """The axis' size before the change. Raises UntiedError if it is no number."""


def unchanged(size: int) -> Positions:
    """The positions of an axis that stays as it is."""
    return tuple(range(size))


def grown(size: int, to: int, parts: int = 1) -> Positions:
    """An axis of `size` that becomes `to` long; both consist of `parts` equal parts, each of which
    grows, or loses positions, at its end."""
    each, now = size // parts, to // parts
    return tuple(
        part * each + position if position < each else NEW
        for part in range(parts)
        for position in range(now)
    )


def joined(parts: list[Positions], sizes: list[int]) -> Positions:
    """The change of an axis that consists of axes of `sizes`, side by side."""
    found, begin = list[int](), 0
    for positions, size in zip(parts, sizes, strict=True):
        found += [begin + position if position != NEW else NEW for position in positions]
        begin += size
    return tuple(found)


def divided(positions: Positions, sizes: list[int]) -> list[Positions] | None:
    """The changes of axes of `sizes` that lie side by side in one axis; None if positions leave
    their part. Added positions belong to the part before them."""
    parts: list[list[int]] = [[] for _ in sizes]
    ends = np.cumsum(sizes)
    part = 0
    for position in positions:
        if position != NEW:
            found = int(np.searchsorted(ends, position, side="right"))
            if found < part:
                return None
            part = found
        begin = int(ends[part]) - sizes[part]
        parts[part].append(position - begin if position != NEW else NEW)
    return [tuple(each) for each in parts]


def merged(parts: list[Positions], sizes: list[int]) -> Positions:
    """The change of an axis that is the product of axes of `sizes`, the last one innermost."""
    places = np.arange(math.prod(sizes)).reshape(sizes)
    for axis, positions in enumerate(parts):
        chosen = np.asarray(positions)
        places = np.take(places, np.maximum(chosen, 0), axis)
        inside: list[slice | np.ndarray] = [slice(None)] * len(sizes)
        inside[axis] = chosen == NEW
        places[tuple(inside)] = NEW
    return tuple(int(place) for place in places.reshape(-1))


def split(positions: Positions, sizes: list[int]) -> list[Positions] | None:
    """The changes of axes of `sizes` whose product has changed by `positions`, where only one of
    them has; None if that is not so. An axis that changes at its end is preferred."""
    found = list[list[Positions]]()
    for axis, size in enumerate(sizes):
        others = math.prod(sizes) // size
        if len(positions) % others:
            continue
        own = _along(positions, sizes, axis, len(positions) // others)
        parts = [own if i == axis else unchanged(each) for i, each in enumerate(sizes)]
        if merged(parts, sizes) == positions:
            if own == grown(size, len(own)):
                return parts
            found.append(parts)
    return found[0] if found else None


def _along(positions: Positions, sizes: list[int], axis: int, now: int) -> Positions:
    """The positions along one axis, of which there are `now`, at the start of the others."""
    inner, size = math.prod(sizes[axis + 1 :]), sizes[axis]
    line = positions[: now * inner : inner]
    return tuple(place if place == NEW else place // inner % size for place in line)
