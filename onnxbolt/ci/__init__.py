"""`onnxbolt ci`: optimizes models by their lock files alone, verifies them, compares them with a
base branch, and writes what CI systems show: a summary in Markdown, and JUnit's XML.

action.yml runs it for GitHub, and docs/ci.md has examples for GitLab and Jenkins.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onnxbolt.ci import summary
from onnxbolt.ci.base import Base
from onnxbolt.ci.comparing import Compared, compared, removed
from onnxbolt.ci.junit import junit
from onnxbolt.directory import Job, job_for, jobs_in, optimize_one
from onnxbolt.errors import CoverageError, InputError
from onnxbolt.files import check_regular, write_whole
from onnxbolt.options import Options
from onnxbolt.report.several import Outcome, Several
from onnxbolt.spelling import option
from onnxbolt.terminal import one_line

SUMMARY, JUNIT, TABLE = "summary.md", "junit.xml", "models.json"
DIFFERENCES = "differences.json"
_LARGEST = 2**20 - 2**12  # bytes that GitHub takes of a step's summary, with a reserve


@dataclass(frozen=True)
class Task:
    """One run: the model or the directory of models, and where everything else lies.

    `lock` is a model's lock file or a directory of them, None for those beside the models. `base`
    names a commit to compare with, and is empty if there is none; a predicted time that is more
    than `max_slowdown` percent longer than there fails.
    """

    model: Path
    out: Path
    lock: Path | None = None
    base: str = ""
    max_slowdown: float | None = None


@dataclass(frozen=True)
class Result:
    """The outcomes of all models, and how they differ from the base (in words, "" without one)."""

    models: Several
    base: str
    compared: tuple[Compared, ...]

    def text(self) -> str:
        """Tables for a log; the last line counts."""
        return summary.text(self.models, self.base, self.compared)

    def details(self) -> str:
        """All that differs from the base in the models' reports, as JSON, by the models' names."""
        values = {
            found.model: json.loads(found.differences.details.json())
            for found in self.compared
            if found.differences.details is not None
        }
        return json.dumps(values, indent=2, sort_keys=True)

    def markdown(self) -> str:
        """The summary."""
        return summary.markdown(self.models, self.base, self.compared)


def run(task: Task, options: Options, progress: Callable[[str], None] | None = None) -> Result:
    """Optimize, verify and compare each model, and write everything below Task.out.

    Raises InputError where there are no models, or no base to compare with; failures of single
    models are outcomes.
    """
    jobs = _jobs(task, options)
    outcomes: list[Outcome] = []
    found: list[Compared] = []
    with contextlib.ExitStack() as stack:
        base = stack.enter_context(Base(task.base, task.model)) if task.base else None
        _make(task.out)
        for number, job in enumerate(jobs, 1):
            if progress is not None:
                progress(f"[{number}/{len(jobs)}] {one_line(job.name)}")
            own = dataclasses.replace(options, lock=job.lock, frozen=True, inputs=job.inputs)
            outcome = optimize_one(job, own, page=True, progress=progress)
            if base is not None:
                found.append(compared(base, job, outcome, own, progress))
                outcome = _judged(outcome, found[-1], task.max_slowdown)
            outcomes.append(outcome)
        if base is not None and task.model.is_dir():
            found += removed(base, task.model, jobs)
    words = f"{base.ref} ({base.commit[:12]})" if base is not None else ""
    result = Result(Several(tuple(outcomes)), words, tuple(found))
    write_whole(task.out / TABLE, result.models.json() + "\n")
    write_whole(task.out / DIFFERENCES, result.details() + "\n")
    write_whole(task.out / JUNIT, junit(result.models))
    write_whole(task.out / SUMMARY, result.markdown())
    return result


def append_summary(result: Result, path: Path) -> None:
    """Append the summary to a file, such as that of GitHub's step; one that is too long for GitHub
    is cut. Raises InputError."""
    shown = result.markdown()
    if len(shown.encode()) > _LARGEST:
        cut = shown.encode()[:_LARGEST].decode(errors="ignore").rpartition("\n")[0]
        shown = f"{cut}\n\nThe rest is in the artifact's {SUMMARY}.\n"
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(shown)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


def _jobs(task: Task, options: Options) -> tuple[Job, ...]:
    """The jobs. Raises InputError, also if a directory of models is called as one of the files that
    the run writes."""
    inputs = None if options.inputs is None else Path(options.inputs)
    if not task.model.is_dir():
        check_regular(task.model)
        job = job_for(Path(task.model.name), task.model, task.out, task.model.parent, inputs)
        if task.lock is not None and task.lock.is_dir():
            job = job_for(Path(task.model.name), task.model, task.out, task.lock, inputs)
        elif task.lock is not None:
            job = dataclasses.replace(job, lock=task.lock)
        return (job,)
    jobs = jobs_in(task.model, task.out, task.lock or task.model, inputs)
    for job in jobs:
        first = Path(job.name).parts[0]
        if first.casefold() in (SUMMARY, JUNIT, TABLE, DIFFERENCES):
            raise InputError(
                f"{job.name} would be written to {task.out / first}, which is a file of the run's"
                " own: rename the directory"
            )
    return jobs


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out} cannot be created: {error.strerror}") from error


def _judged(outcome: Outcome, found: Compared, most: float | None) -> Outcome:
    """The outcome, which fails if the predicted time has grown by more than `most` percent."""
    slowdown = found.differences.slowdown
    if outcome.code or most is None or slowdown <= most:
        return outcome
    why = (
        f"the predicted time is {slowdown:.1f}% longer than that of the base, more than"
        f" {option('max_slowdown', most)}"
    )
    return dataclasses.replace(outcome, code=CoverageError.exit_code, message=why)
