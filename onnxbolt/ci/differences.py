"""The differences between two runs on one model that a summary shows: choices of the lock file, the
predicted time of the whole model, and the errors that are nearest to their limits.

Reports are given as the values of their JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnxbolt.report.diff import Change, Difference
from onnxbolt.verify.result import LEVELS, nearness

Values = Mapping[str, Any]


@dataclass(frozen=True)
class TimeChange:
    """Predicted microseconds of the whole model on an architecture; None on a side without them."""

    arch: int
    before_us: float | None
    after_us: float | None

    @property
    def slowdown(self) -> float:
        """By how many percent the time has grown; 0 if one side is unknown."""
        if not self.before_us or self.after_us is None:
            return 0.0
        return 100 * (self.after_us / self.before_us - 1)


@dataclass(frozen=True)
class ErrorChange:
    """The error of a level of verification that is nearest to its limit, as a share of the limit;
    None on a side without one."""

    level: str
    before: float | None
    after: float | None


@dataclass(frozen=True)
class Differences:
    """The differences of one model; `details` has all that differs between the reports."""

    lock: tuple[Change, ...] = ()
    times: tuple[TimeChange, ...] = ()
    errors: tuple[ErrorChange, ...] = ()
    details: Difference | None = None

    @property
    def slowdown(self) -> float:
        """The largest slowdown of an architecture, in percent."""
        return max((change.slowdown for change in self.times), default=0.0)


def time_changes(before: Values, after: Values) -> tuple[TimeChange, ...]:
    """The predicted times of the whole model in two reports, for each architecture of either."""
    sides = [{row["arch"]: row["ours_us"] for row in side["whole"]} for side in (before, after)]
    archs = sorted(sides[0].keys() | sides[1].keys())
    return tuple(TimeChange(arch, *(side.get(arch) for side in sides)) for arch in archs)


def error_changes(before: Values, after: Values) -> tuple[ErrorChange, ...]:
    """The errors nearest to their limits in two reports, for each level of verification."""
    sides = [_nearest(side["verification"]) for side in (before, after)]
    return tuple(
        ErrorChange(level, *(side.get(level) for side in sides))
        for level in LEVELS
        if any(level in side for side in sides)
    )


def _nearest(verification: Values | None) -> dict[str, float]:
    """The largest share of its limit that an error is, by level, of the rows with a verdict."""
    found: dict[str, float] = {}
    for row in verification["rows"] if verification else ():
        if not row["unjudged"]:
            share = nearness(row["error"], row["limit"], row["passed"], unjudged=False)
            found[row["level"]] = max(found.get(row["level"], 0.0), share)
    return found
