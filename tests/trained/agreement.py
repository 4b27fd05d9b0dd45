"""Answers of models as their users see them, and how far two answers to one input agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# least intersection over union of a box or mask before and after
LEAST = {"box": 0.98, "mask": 0.995}
# a box or mask may be off by this times what rounding alone takes from its intersection over union;
# verification allows outputs as much
ROUNDING = 1.5


@dataclass(frozen=True)
class Box:
    """A convex quadrangle around something, by its corners in turn (4 x 2), and what it is."""

    corners: Array
    label: str = ""

    @classmethod
    def upright(cls, sides: Array, label: str = "") -> Box:
        """The box with these sides: left, top, right, bottom."""
        left, top, right, bottom = sides
        corners = ((left, top), (right, top), (right, bottom), (left, bottom))
        return cls(np.array(corners, np.float64), label)


@dataclass(frozen=True)
class Answer:
    """A model's answer to one input: boxes, masks, and what has to be equal, by its kind (texts,
    labels, speech flags)."""

    equal: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    boxes: Sequence[Box] = ()
    masks: Sequence[Array] = ()


@dataclass(frozen=True)
class Agreement:
    """Things of one kind: how many there are on either side, how many of them agree, and the least
    intersection over union (None for kinds that are compared as equal)."""

    kind: str
    number: int
    agreeing: int
    least: float | None = None

    @property
    def holds(self) -> bool:
        return self.agreeing == self.number

    def is_rounding(self, alone: Agreement) -> bool:
        """True if rounding `alone` puts the original's boxes or masks off, too, and these are off
        by no more than ROUNDING times as much. A box without a counterpart never is."""
        if not self.least or not alone.least or self.number != alone.number or alone.holds:
            return False
        return 1 - self.least <= ROUNDING * (1 - alone.least)

    def __add__(self, other: Agreement) -> Agreement:
        ious = [iou for iou in (self.least, other.least) if iou is not None]
        return Agreement(
            self.kind,
            self.number + other.number,
            self.agreeing + other.agreeing,
            min(ious, default=None),
        )


def compared(before: Answer, after: Answer) -> list[Agreement]:
    """How far two answers agree, by kind. Masks that are empty on both sides do not count."""
    found = [
        _equal(kind, before.equal.get(kind, ()), after.equal.get(kind, ()))
        for kind in dict.fromkeys((*before.equal, *after.equal))
    ]
    if before.boxes or after.boxes:
        found.append(_overlapping("box", matched(before.boxes, after.boxes)))
    if before.masks or after.masks:
        both = zip(before.masks, after.masks, strict=True)
        ious = [mask_iou(one, other) for one, other in both if one.any() or other.any()]
        found.append(_overlapping("mask", ious))
    return found


def together(found: Iterable[Agreement]) -> list[Agreement]:
    """Agreements over all inputs: one of each kind."""
    sums: dict[str, Agreement] = {}
    for one in found:
        sums[one.kind] = sums[one.kind] + one if one.kind in sums else one
    return list(sums.values())


def matched(before: Sequence[Box], after: Sequence[Box]) -> list[float]:
    """The intersection over union of each box with its counterpart of the same label, the best
    pairs first; 0 for a box of either side that has none."""
    pairs = sorted(
        (
            (quadrangle_iou(one.corners, other.corners), i, j)
            for i, one in enumerate(before)
            for j, other in enumerate(after)
            if one.label == other.label
        ),
        reverse=True,
    )
    ious: list[float] = []
    mine, theirs = set(range(len(before))), set(range(len(after)))
    for iou, i, j in pairs:
        if iou > 0 and i in mine and j in theirs:
            mine.remove(i)
            theirs.remove(j)
            ious.append(iou)
    return ious + [0.0] * (len(mine) + len(theirs))


def mask_iou(before: Array, after: Array) -> float:
    """The intersection over union of two boolean masks that are not both empty."""
    if before.shape != after.shape:
        return 0.0
    return float(np.count_nonzero(before & after) / np.count_nonzero(before | after))


def quadrangle_iou(before: Array, after: Array) -> float:
    """The intersection over union of two convex polygons, whose corners go round either way."""
    one, other = (_counterclockwise(np.asarray(each, np.float64)) for each in (before, after))
    common = _area(_clipped(one, other))
    union = _area(one) + _area(other) - common
    return float(common / union) if union > 0 else 0.0


def _equal(kind: str, before: Sequence[Any], after: Sequence[Any]) -> Agreement:
    same = sum(one == other for one, other in zip(before, after, strict=False))
    return Agreement(kind, max(len(before), len(after)), same)


def _overlapping(kind: str, ious: Sequence[float]) -> Agreement:
    good = sum(iou >= LEAST[kind] for iou in ious)
    return Agreement(kind, len(ious), good, min(ious, default=None))


def _signed_area(polygon: Array) -> float:
    """The shoelace formula; positive for corners that go from x to y."""
    x, y = polygon.T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


def _area(polygon: Array) -> float:
    return abs(_signed_area(polygon)) if len(polygon) > 2 else 0.0


def _counterclockwise(polygon: Array) -> Array:
    return polygon if _signed_area(polygon) >= 0 else polygon[::-1]


def _clipped(polygon: Array, by: Array) -> Array:
    """The part of a polygon that lies in a convex one (Sutherland and Hodgman)."""
    points = list(polygon)
    for start, end in zip(by, np.roll(by, -1, axis=0), strict=True):
        edge = end - start
        sides = [edge[0] * (p[1] - start[1]) - edge[1] * (p[0] - start[0]) for p in points]
        kept = []
        for k, (point, side) in enumerate(zip(points, sides, strict=True)):
            last, last_side = points[k - 1], sides[k - 1]
            if side * last_side < 0:
                kept.append(last + (point - last) * (last_side / (last_side - side)))
            if side >= 0:
                kept.append(point)
        points = kept
    return np.array(points).reshape(-1, 2)
