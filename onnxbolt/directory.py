"""`onnxbolt optimize` of a directory of models: each gets its own output, lock file and report, all
of them share one tuning, and a failure of one does not stop the others.

Below the output directory a model has the path that it has below its own: models/a/b.onnx becomes
out/a/b.onnx, with out/a/b.onnxbolt.so, out/a/b.onnxbolt.lock and out/a/b.onnxbolt.json. Models are
taken in the order of their paths.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnxbolt import pipeline
from onnxbolt.errors import InputError, OnnxboltError, RejectedError
from onnxbolt.graph.importer import external_files
from onnxbolt.graph.saving import data_file
from onnxbolt.library import notice_path
from onnxbolt.options import Options
from onnxbolt.report import Report, files
from onnxbolt.report.several import Outcome, Several
from onnxbolt.runtime import get_library_path
from onnxbolt.spelling import option
from onnxbolt.terminal import one_line
from onnxbolt.tune.progress import Progress

SUFFIX = ".onnx"
# share of the budget for the kernels of all models; the rest is for comparing
_KERNELS_SHARE = 0.6
_RECALL = 1e-3  # seconds: a budget in which nothing is measured that is not remembered
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A model, and the files that belong to it."""

    name: str  # the model's path below the directory, with slashes
    source: Path
    out: Path
    lock: Path
    report: Path
    inputs: Path | None = None  # arrays to compare on

    @property
    def written(self) -> tuple[Path, ...]:
        """All files that may be written for the model."""
        library = get_library_path(self.out)
        model = self.out, data_file(self.out), library, notice_path(library)
        return *model, self.lock, self.report, self.page

    @property
    def page(self) -> Path:
        """The report for browsers."""
        return self.report.with_suffix(".html")


def jobs_in(
    models: Path, out: Path, locks: Path | None = None, inputs: Path | None = None
) -> tuple[Job, ...]:
    """A job for each model below `models`, in the order of their paths. Hidden files and
    directories, linked directories, pipes and `out` are left out.

    Lock files lie below `locks`, by default `out`; `inputs` is a directory of .npz files, of which
    models may have one each, or a file for all of them. Raises InputError if there are no models,
    and if two of the files to write are one, or one of them an original.
    """
    if locks is not None and locks.exists() and not locks.is_dir():
        raise InputError(
            f"{option('lock', locks)} is a file: for a directory of models name a directory of lock"
            " files, one for each model"
        )
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: for a directory of models name a directory to write to")
    if out.resolve() == models.resolve():
        raise InputError(
            f"{out} holds the models, and originals are never overwritten: name another directory"
        )
    jobs = tuple(
        job_for(path.relative_to(models), path, out, locks or out, inputs)
        for path in _models_below(models, out)
    )
    if not jobs:
        raise InputError(f"{models}: no model below it has a name that ends in {SUFFIX}")
    _check(jobs)
    return jobs


def job_for(name: Path, source: Path, out: Path, locks: Path, inputs: Path | None = None) -> Job:
    """The job for the model `source`, whose files lie at `name` below each of the directories."""
    if inputs is not None and inputs.is_dir():
        arrays = inputs / name.with_suffix(".npz")
        if not arrays.exists():
            logger.warning("%s does not exist: random inputs take its place", one_line(str(arrays)))
        inputs = arrays if arrays.exists() else None
    return Job(
        name.as_posix(),
        source,
        out / name,
        (locks / name).with_suffix(".onnxbolt.lock"),
        (out / name).with_suffix(".onnxbolt.json"),
        inputs,
    )


def _models_below(models: Path, out: Path) -> list[Path]:
    """The models, sorted. Raises InputError for a directory that cannot be read."""

    def fail(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from error

    found = []
    for folder, inner, names in os.walk(models, onerror=fail):
        inner[:] = [
            name
            for name in inner
            if not name.startswith(".") and Path(folder, name).resolve() != out.resolve()
        ]
        found += [
            path
            for path in (Path(folder, name) for name in names if not name.startswith("."))
            if path.name.lower().endswith(SUFFIX) and not _is_device(path)
        ]
    return sorted(found, key=lambda path: path.relative_to(models).as_posix())


def _is_device(path: Path) -> bool:
    """True for a pipe and the like, which might never end. A link that leads nowhere is none: it is
    an error of its model."""
    return path.exists() and not path.is_file()


def _check(jobs: Sequence[Job]) -> None:
    """Raises InputError if a file would be written for two models, also where a file system
    ignores case, if one is the folder of another, or if one is a file of an original."""
    owners: dict[str, tuple[Path, Job]] = {}
    for job in jobs:
        for path in job.written:
            if (found := owners.setdefault(_folded(path), (path, job)))[1] is not job:
                raise InputError(
                    f"{job.name} and {found[1].name} would both be written to {path}: rename one"
                    " of them"
                )
    for job in jobs:
        for parent in (parent for path in job.written for parent in path.parents):
            if (taken := owners.get(_folded(parent))) is not None:
                raise InputError(
                    f"{taken[1].name} would be written to {taken[0]}, which is the directory of"
                    f" {job.name}: rename one of them"
                )
    originals = _originals(jobs)
    for job in jobs:
        for path in job.written:
            if (original := originals.get(_identity(path))) is not None:
                raise InputError(
                    f"{path}, which would be written for {job.name}, is a file of {original.name},"
                    " and originals are never overwritten; choose another output"
                )


def check_apart(argument: str, path: Path, jobs: Sequence[Job], out: Path) -> None:
    """Raises InputError if a further result, which the option `argument` names, cannot be written
    to `path`, or would replace a file of one of the models. The directory `out` may be missing."""
    if path.is_dir() or not (path.parent.is_dir() or path.parent.absolute() == out.absolute()):
        raise InputError(
            f"{option(argument, path)}: not the path of a file in an existing directory;"
            " create the directory or choose another path"
        )
    written = {_folded(place.absolute()) for job in jobs for place in job.written}
    if _folded(path.absolute()) in written or _identity(path) in _originals(jobs):
        raise InputError(
            f"{option(argument, path)}: a model is read from or written to this path; choose"
            " another one"
        )


def _originals(jobs: Sequence[Job]) -> dict[tuple[int, int] | None, Job]:
    """The jobs by the identities of the files of their originals, as far as these exist."""
    found = {
        _identity(path): job for job in jobs for path in (job.source, *external_files(job.source))
    }
    found.pop(None, None)
    return found


def _folded(path: Path) -> str:
    return unicodedata.normalize("NFC", path.as_posix()).casefold()


def _identity(path: Path) -> tuple[int, int] | None:
    """The device and the number of an existing file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def optimize_all(
    jobs: Sequence[Job],
    options: Options,
    *,
    write: bool = True,
    progress: Callable[[str], None] | None = None,
    watch: Progress | None = None,
) -> Several:
    """Optimize each model; with `write`, write its files.

    Options.lock and Options.inputs are replaced by those of each job. With Options.tune the kernels
    of all models are measured first, in one run, and Options.budget is for everything; with
    Options.target each model is tuned by itself, until it meets the target. After an interrupt
    while tuning, nothing more is measured, and models get the best kernels so far. Raises
    InputError if there is no GPU to tune on, and for calibration data, which one model alone has.
    """
    if options.calibration is not None:
        raise InputError(
            f"{option('calibration', options.calibration)} belongs to one model: optimize the"
            f" models one by one; with their lock files, {option('frozen', True)} works on a"
            " directory"
        )
    tuning = _SharedTuning(options, len(jobs))
    if options.tune and options.target is None:
        sources = [job.source for job in jobs]
        tuning.note(pipeline.tune_together(sources, tuning.for_kernels(), watch).ended_by)
    outcomes = []
    for number, job in enumerate(jobs, 1):
        if progress is not None:
            progress(f"[{number}/{len(jobs)}] {one_line(job.name)}")
        own = dataclasses.replace(tuning.for_next(), lock=job.lock, inputs=job.inputs)
        outcome = optimize_one(job, own, write=write, progress=progress, watch=watch)
        outcomes.append(outcome)
        if outcome.report is not None and outcome.report.tuning is not None:
            tuning.note(outcome.report.tuning.ended_by)
    return Several(tuple(outcomes), tuning.interrupted)


def optimize_one(
    job: Job,
    options: Options,
    *,
    write: bool = True,
    page: bool = False,
    progress: Callable[[str], None] | None = None,
    watch: Progress | None = None,
) -> Outcome:
    """Optimize one model, and write its report too, with `page` also as one for browsers; whatever
    fails is the outcome."""
    start = time.monotonic()
    report: Report | None = None
    code, message = 0, ""
    try:
        if write:
            _make_folders(job, options)
        out = job.out if write else None
        report = pipeline.optimize(job.source, out, options=options, progress=progress, watch=watch)
    except RejectedError as error:
        report, code, message = error.report, error.exit_code, str(error)
    except OnnxboltError as error:
        code, message = error.exit_code, str(error)
    except Exception as error:  # a fault of one model's run, whatever it is, stops no other
        logger.info("%s", job.name, exc_info=True)
        code, message = OnnxboltError.exit_code, f"{type(error).__name__}: {error}"
    if write and report is not None:
        for path in (job.report, job.page) if page else (job.report,):
            files.save(report, path)
    seconds = time.monotonic() - start
    return Outcome(job.name, code, " ".join(message.split()), seconds, report)


def _make_folders(job: Job, options: Options) -> None:
    """Raises InputError."""
    try:
        job.out.parent.mkdir(parents=True, exist_ok=True)
        if not options.frozen:
            job.lock.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{error.filename} cannot be created: {error.strerror}; choose another output"
        ) from error


class _SharedTuning:
    """Divides the budget: a part is for the kernels of all models, and each model gets an equal
    part of what is left when it begins."""

    def __init__(self, options: Options, models: int) -> None:
        self._options, self._models = options, models
        self._deadline = time.monotonic() + (options.budget or 0.0)
        self.interrupted = False

    def note(self, ended_by: str) -> None:
        """Note why a part of the tuning ended."""
        self.interrupted |= ended_by == "interrupt"

    def for_kernels(self) -> Options:
        """The options for measuring the kernels of all models."""
        budget = self._options.budget
        return self._with(None if budget is None else _KERNELS_SHARE * budget)

    def for_next(self) -> Options:
        """The options for the next model."""
        models, self._models = self._models, self._models - 1
        if not self._options.tune:
            return self._options
        if self.interrupted:
            return self._with(_RECALL)
        if self._options.budget is None:
            return self._options
        return self._with(max((self._deadline - time.monotonic()) / models, _RECALL))

    def _with(self, budget: float | None) -> Options:
        return dataclasses.replace(self._options, budget=budget)
