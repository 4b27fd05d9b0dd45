"""The results of a tuning run, as plain data for the report: each task before and after, and the
quality of the predictions."""

from __future__ import annotations

import dataclasses
import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onnxbolt.families import KernelConfig
from onnxbolt.inspection import describe
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.measurements.strategy import Task

_RANKABLE = 3  # fewer points have no rank correlation worth a mean


@dataclass(frozen=True)
class TunedTask:
    """One task, in microseconds. `first_us` is the measured time of the predicted choice (of the
    next one if that failed)."""

    name: str
    kind: str  # "conv" or "gemm", each also with " chain"
    occurrences: int
    tried: int
    failed: int
    first_us: float
    best_us: float
    best_tflops: float
    config: str

    @property
    def regret(self) -> float:
        """The time of the predicted choice relative to the best one: 1 for a perfect prediction."""
        return self.first_us / self.best_us


@dataclass(frozen=True)
class Quality:
    """The quality of the cost model for problems of one kind."""

    kind: str
    tasks: int
    regret: float  # geometric mean
    rank_correlation: float | None  # Spearman's, mean over tasks; None if too few candidates ran


@dataclass(frozen=True)
class WholeModel:
    """Microseconds of the model as planned and as ONNX Runtime runs it at its best, and the regions
    left to ONNX Runtime to make the whole model faster."""

    ours_us: float
    ort_us: float
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Moment:
    """The state of tuning after so many seconds and measurements: microseconds of all problems,
    each as often as it occurs, by the best times so far. A problem that was not measured yet counts
    with the time of its first measurement."""

    seconds: float
    trials: int
    us: float


@dataclass(frozen=True)
class Best:
    """A task's best time after so many seconds and measurements of all tasks."""

    seconds: float
    trials: int
    task: int
    us: float


@dataclass(frozen=True)
class Tuning:
    """The summary of one run of the tuner."""

    tasks: tuple[TunedTask, ...] = ()
    quality: tuple[Quality, ...] = ()
    seconds: float = 0.0
    trials: int = 0  # candidates measured now; others were in the database
    kernels: int = 0  # kernels compiled now or found in the cache
    ended_by: str = "done"  # or "budget", "target" or "interrupt"
    whole: WholeModel | None = None  # None if it was not compared
    notes: tuple[str, ...] = ()  # things that could not be measured, and why
    history: tuple[Moment, ...] = ()  # a moment whenever the best changed

    def after(self, before: Tuning) -> Tuning:
        """This round combined with an earlier one, whose tasks it repeats."""
        ended_by = before.ended_by if before.ended_by == "interrupt" else self.ended_by
        return dataclasses.replace(
            self,
            trials=before.trials + self.trials,
            kernels=before.kernels + self.kernels,
            ended_by=ended_by,
            notes=tuple(dict.fromkeys((*before.notes, *self.notes))),
            history=joined(before.history, self.history),
        )


def history(bests: Sequence[Best], occurrences: Sequence[int]) -> tuple[Moment, ...]:
    """The moments at which the sum changed, from all bests in order; `occurrences` are those of
    each task."""
    now = {best.task: best.us for best in reversed(bests)}
    moments: list[Moment] = []
    for best in bests:
        now[best.task] = best.us
        us = sum(occurrences[task] * task_us for task, task_us in now.items())
        if not moments or us != moments[-1].us:
            moments.append(Moment(best.seconds, best.trials, us))
    return tuple(moments)


def joined(before: Sequence[Moment], later: Sequence[Moment]) -> tuple[Moment, ...]:
    """The moments of two runs as those of one."""
    if not before:
        return tuple(later)
    seconds, trials = before[-1].seconds, before[-1].trials
    return (*before, *(Moment(seconds + m.seconds, trials + m.trials, m.us) for m in later))


def together(found: Sequence[tuple[str, Tuning]]) -> Tuning:
    """The tuning of a model with bodies, from that of its main graph, which is first, and those of
    the bodies, each with its place. Times of the whole are those of each graph by itself."""
    (_, main), *bodies = found
    if not bodies:
        return main
    ends = [tuning.ended_by for _, tuning in found]
    whole = [
        f"{place or 'main graph'}, by itself: {tuning.whole.ours_us:.1f} us, ONNX Runtime"
        f" {tuning.whole.ort_us:.1f} us"
        for place, tuning in found
        if tuning.whole is not None
    ]
    notes = [note for _, tuning in found for note in tuning.notes]
    return Tuning(
        tuple(task for _, tuning in found for task in tuning.tasks),
        tuple(row for _, tuning in found for row in tuning.quality),
        sum(tuning.seconds for _, tuning in found),
        sum(tuning.trials for _, tuning in found),
        sum(tuning.kernels for _, tuning in found),
        next((end for end in ("interrupt", "budget", "target") if end in ends), "done"),
        notes=tuple(dict.fromkeys((*notes, *whole))),
    )


def tuned_task(task: Task, measured: dict[KernelConfig, Measurement]) -> TunedTask | None:
    """The results of a task; None if no candidate computed correct results."""
    right = {config: m.us for config, m in measured.items() if m.status is Status.OK}
    if not right:
        return None
    best_us, best = min((us, config) for config, us in right.items())
    first_us = next((right[c.config] for c in task.candidates if c.config in right), best_us)
    return TunedTask(
        task.name,
        task.kind,
        task.occurrences,
        len(measured),
        len(measured) - len(right),
        first_us,
        best_us,
        task.problem.flops / best_us / 1e6,
        describe(best),
    )


def quality(
    tasks: Sequence[Task], measured: Sequence[dict[KernelConfig, Measurement]]
) -> tuple[Quality, ...]:
    """One row for each kind of problem, from all measurements."""
    rows = []
    for kind in sorted({task.kind for task in tasks}):
        pairs = [
            (task, results)
            for task, results in zip(tasks, measured, strict=True)
            if task.kind == kind
        ]
        tuned = [row for task, results in pairs if (row := tuned_task(task, results))]
        if tuned:
            correlations = [
                rho
                for task, results in pairs
                if (rho := _rank_correlation(task, results)) is not None
            ]
            regret = math.exp(statistics.fmean(math.log(row.regret) for row in tuned))
            rows.append(
                Quality(
                    kind,
                    len(tuned),
                    regret,
                    statistics.fmean(correlations) if correlations else None,
                )
            )
    return tuple(rows)


def _rank_correlation(task: Task, measured: dict[KernelConfig, Measurement]) -> float | None:
    ran = [
        (c.us, measured[c.config].us)
        for c in task.candidates
        if c.config in measured and measured[c.config].status is Status.OK
    ]
    return spearman(*zip(*ran, strict=True)) if len(ran) >= _RANKABLE else None


def spearman(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None if one side is constant."""
    try:
        return statistics.correlation(_ranks(ours), _ranks(theirs))
    except statistics.StatisticsError:
        return None


def _ranks(values: Iterable[float]) -> list[float]:
    """The rank of each value, 1 for the smallest; equal values share the mean of their ranks."""
    listed = list(values)
    ordered = sorted(listed)
    return [(bisect_left(ordered, each) + bisect_right(ordered, each) + 1) / 2 for each in listed]
