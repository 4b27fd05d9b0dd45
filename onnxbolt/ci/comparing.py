"""Compares a model's run with one of another commit's files, such as those of the base branch."""

from __future__ import annotations

import dataclasses
import filecmp
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onnxbolt.ci.base import Base
from onnxbolt.ci.differences import Differences, error_changes, time_changes
from onnxbolt.directory import SUFFIX, Job, optimize_one
from onnxbolt.errors import InputError
from onnxbolt.graph.importer import external_files
from onnxbolt.options import Options
from onnxbolt.report.diff import Change, difference
from onnxbolt.report.locks import lock_changes
from onnxbolt.report.render import as_json
from onnxbolt.report.several import Outcome
from onnxbolt.terminal import one_line
from onnxbolt.tune.lockfile import Lock
from onnxbolt.verify.session import CUDA, available_providers

UNCHANGED, CHANGED, NEW, REMOVED = "unchanged", "changed", "new", "removed"
UNKNOWN = "not compared"
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Compared:
    """A model of this commit or of the base; `note` says what could not be compared, and why."""

    model: str
    state: str
    differences: Differences = field(default_factory=Differences)
    note: str = ""


def compared(
    base: Base, job: Job, outcome: Outcome, options: Options, progress: Progress | None
) -> Compared:
    """The model against the base's, which is built by the base's lock file with the same options.

    A model whose files and lock file are those of the base is not built again.
    """
    try:
        model, lock = base.model(job.source), base.file(job.lock)
    except InputError as error:  # a file that lies elsewhere, or that git cannot bring
        return Compared(job.name, UNKNOWN, note=str(error))
    if model is None:
        return Compared(job.name, NEW)
    if _same(_files(model, lock), _files(job.source, job.lock)):
        return Compared(job.name, UNCHANGED)
    if progress is not None:
        progress(one_line(f"{job.name} as it is in {base.ref}"))
    # the run's error names this path if the base has no lock file
    theirs = dataclasses.replace(
        job, source=model, lock=lock or model.with_suffix(".onnxbolt.lock")
    )
    # kernels tell nothing of errors where function bodies run, and compiling them takes long
    library = options.library and CUDA in available_providers()
    own = dataclasses.replace(options, lock=theirs.lock, library=library)
    before = optimize_one(theirs, own, write=False, progress=progress)
    changes, notes = _lock_changes(lock, job.lock)
    if before.report is None:
        notes.append(f"{base.ref}: {before.message}")
    if before.report is None or outcome.report is None:
        return Compared(job.name, CHANGED, Differences(changes), "; ".join(notes))
    sides = [json.loads(as_json(report)) for report in (before.report, outcome.report)]
    found = Differences(changes, time_changes(*sides), error_changes(*sides), difference(*sides))
    return Compared(job.name, CHANGED, found, "; ".join(notes))


def removed(base: Base, models: Path, jobs: Sequence[Job]) -> Iterator[Compared]:
    """The models that the base has below a directory, and this commit has not."""
    names = {job.name for job in jobs}
    for name in base.below(models):
        hidden = any(part.startswith(".") for part in name.split("/"))
        if name.lower().endswith(SUFFIX) and not hidden and name not in names:
            yield Compared(name, REMOVED)


def _lock_changes(before: Path | None, after: Path) -> tuple[tuple[Change, ...], list[str]]:
    """The choices that differ, or none and the reason why they cannot be compared."""
    if before is None or not after.exists():
        return (), []
    try:
        return lock_changes(Lock.read(before), Lock.read(after)), []
    except InputError as error:
        return (), [str(error)]


def _files(model: Path, lock: Path | None) -> dict[str, Path]:
    """All files that decide a model's result, by what they are."""
    data = {f"data {path.relative_to(model.parent)}": path for path in external_files(model)}
    locked = {"lock": lock} if lock is not None and lock.exists() else {}
    return {"model": model, **data, **locked}


def _same(ours: dict[str, Path], theirs: dict[str, Path]) -> bool:
    return ours.keys() == theirs.keys() and all(
        ours[name].exists()
        and theirs[name].exists()
        and filecmp.cmp(ours[name], theirs[name], shallow=False)
        for name in ours
    )
