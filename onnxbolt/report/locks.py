"""The differences between two lock files, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from onnxbolt.inspection import describe
from onnxbolt.measurements.timings import Comparison, Cut, Scheduled
from onnxbolt.report.diff import Change
from onnxbolt.tune.lockfile import Lock

Entry = TypeVar("Entry", Comparison, Cut, Scheduled)
# for each entry of a lock file: its decision, and the outcome, in words
Entries = Mapping[Any, tuple[str, str]]


def lock_changes(before: Lock, after: Lock) -> tuple[Change, ...]:
    """The differences of what the locks are for; then those of the choices of kernels, regions,
    cuts and phases, in the order of their descriptions. Times alone are no difference."""
    about = [
        Change("onnxbolt's kernels", (before.kernels or "")[:12], (after.kernels or "")[:12]),
        Change("ONNX Runtime", before.onnxruntime, after.onnxruntime),
        Change("architectures", " ".join(before.archs), " ".join(after.archs)),
        Change("precision", before.precision, after.precision),
    ]
    choices = [
        *_changes(_kernels(before), _kernels(after)),
        *_changes(_words(before.comparisons, _region), _words(after.comparisons, _region)),
        *_changes(_words(before.cuts, _cut), _words(after.cuts, _cut)),
        *_changes(_words(before.schedules, _phases), _words(after.schedules, _phases)),
    ]
    return (
        *(change for change in about if change.before != change.after),
        *sorted(choices, key=lambda each: (each.what, each.before or "", each.after or "")),
    )


def _kernels(lock: Lock) -> Entries:
    return {
        key: (f"{key[0].description} on sm_{key[1]}", describe(choice.config))
        for key, choice in lock.choices.items()
    }


def _words(entries: Mapping[str, Entry], words: Callable[[Entry], tuple[str, str]]) -> Entries:
    return {key: words(entry) for key, entry in entries.items()}


def _region(found: Comparison) -> tuple[str, str]:
    return f"region {found.region}", "fused" if found.fused else "left to ONNX Runtime"


def _cut(found: Cut) -> tuple[str, str]:
    return f"layers in one kernel of {found.chain}", str(found.layers)


def _phases(found: Scheduled) -> tuple[str, str]:
    return f"phases of {found.scope}", " ".join(map(str, found.phases))


def _changes(before: Entries, after: Entries) -> Iterator[Change]:
    for key in before.keys() | after.keys():
        (what, old), (other, new) = before.get(key, ("", None)), after.get(key, ("", None))
        if old != new:
            yield Change(what or other, old, new)
