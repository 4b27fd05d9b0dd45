"""The differences between two runs on one model: choices of the lock file, predicted times, and
errors.

Reports are given as the JSON that `optimize --report` writes, so that files can be compared, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from onnxbolt.inspection import describe
from onnxbolt.measurements.timings import Comparison, Cut, Scheduled
from onnxbolt.tune.lockfile import Lock
from onnxbolt.verify.result import LEVELS

Json = Mapping[str, Any]
Entry = TypeVar("Entry", Comparison, Cut, Scheduled)
# for each entry of a lock file: its decision, and the outcome, in words
Entries = Mapping[Any, tuple[str, str]]


@dataclass(frozen=True)
class Change:
    """A choice that differs, in words; empty on the side that does not have it."""

    what: str
    before: str
    after: str


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
class Difference:
    """All that differs between two runs on one model."""

    lock: tuple[Change, ...] = ()
    times: tuple[TimeChange, ...] = ()
    errors: tuple[ErrorChange, ...] = ()

    @property
    def slowdown(self) -> float:
        """The largest slowdown of an architecture, in percent."""
        return max((change.slowdown for change in self.times), default=0.0)


def lock_changes(before: Lock, after: Lock) -> tuple[Change, ...]:
    """The choices of kernels, regions, cuts and phases that differ, in the order of their
    descriptions. Times alone are no difference."""
    found = [
        *_differences(_kernels(before), _kernels(after)),
        *_differences(_texts(before.comparisons, _region), _texts(after.comparisons, _region)),
        *_differences(_texts(before.cuts, _cut), _texts(after.cuts, _cut)),
        *_differences(_texts(before.schedules, _phases), _texts(after.schedules, _phases)),
    ]
    about = [
        Change("onnxbolt's kernels", (before.kernels or "")[:12], (after.kernels or "")[:12]),
        Change("ONNX Runtime", before.onnxruntime, after.onnxruntime),
        Change("architectures", " ".join(before.archs), " ".join(after.archs)),
        Change("precision", before.precision, after.precision),
    ]
    return (
        *(change for change in about if change.before != change.after),
        *sorted(found, key=lambda change: (change.what, change.before, change.after)),
    )


def time_changes(before: Json, after: Json) -> tuple[TimeChange, ...]:
    """The predicted times of the whole model in two reports, for each architecture of either."""
    sides = [{row["arch"]: row["ours_us"] for row in side["whole"]} for side in (before, after)]
    archs = sorted(sides[0].keys() | sides[1].keys())
    return tuple(TimeChange(arch, *(side.get(arch) for side in sides)) for arch in archs)


def error_changes(before: Json, after: Json) -> tuple[ErrorChange, ...]:
    """The errors nearest to their limits in two reports, for each level of verification."""
    sides = [_nearest(side["verification"]) for side in (before, after)]
    return tuple(
        ErrorChange(level, *(side.get(level) for side in sides))
        for level in LEVELS
        if any(level in side for side in sides)
    )


def _nearest(verification: Json | None) -> dict[str, float]:
    """The largest share that an error has of its limit, by level. An error without a number counts
    as infinite, and a row without a verdict does not count."""
    found: dict[str, float] = {}
    for row in verification["rows"] if verification else ():
        if row["unjudged"]:
            continue
        error = math.inf if row["error"] is None else row["error"]
        share = error / row["limit"] if row["limit"] else math.inf if error else 0.0
        found[row["level"]] = max(found.get(row["level"], 0.0), share)
    return found


def _kernels(lock: Lock) -> Entries:
    return {
        key: (f"{key[0].description} on sm_{key[1]}", describe(choice.config))
        for key, choice in lock.choices.items()
    }


def _texts(entries: Mapping[str, Entry], words: Callable[[Entry], tuple[str, str]]) -> Entries:
    return {key: words(entry) for key, entry in entries.items()}


def _region(found: Comparison) -> tuple[str, str]:
    return f"region {found.region}", "fused" if found.fused else "left to ONNX Runtime"


def _cut(found: Cut) -> tuple[str, str]:
    return f"layers in one kernel of {found.chain}", str(found.layers)


def _phases(found: Scheduled) -> tuple[str, str]:
    return f"phases of {found.scope}", " ".join(map(str, found.phases))


def _differences(before: Entries, after: Entries) -> Iterator[Change]:
    for key in before.keys() | after.keys():
        (what, old), (other, new) = before.get(key, ("", "")), after.get(key, ("", ""))
        if old != new:
            yield Change(what or other, old, new)
