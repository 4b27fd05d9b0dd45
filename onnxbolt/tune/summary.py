"""What a tuning run achieved, as plain data for the report: per task before and after, and how
good the prediction was."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onnxbolt.families import KernelConfig
from onnxbolt.inspection import describe
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.measurements.strategy import Task

_RANKABLE = 3  # fewer points have no rank correlation worth a mean


@dataclass(frozen=True)
class TunedTask:
    """One task. Microseconds; `first_us` is the measured time of the predicted choice (of its
    successor where that failed)."""

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
        """How much slower the predicted choice is than the best one: 1 is a perfect prediction."""
        return self.first_us / self.best_us


@dataclass(frozen=True)
class Quality:
    """How well the cost model did on problems of one kind."""

    kind: str
    tasks: int
    regret: float  # geometric mean
    rank_correlation: float | None  # Spearman's, mean over tasks; None where too little ran


@dataclass(frozen=True)
class WholeModel:
    """The model as planned and as ONNX Runtime runs it at its best, microseconds, and the
    regions left to it for the model's sake."""

    ours_us: float
    ort_us: float
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tuning:
    """What one run of the tuner did."""

    tasks: tuple[TunedTask, ...] = ()
    quality: tuple[Quality, ...] = ()
    seconds: float = 0.0
    trials: int = 0  # measured now; the others were in the database
    kernels: int = 0  # compiled now, or found compiled
    ended_by: str = "done"  # or "budget", or "interrupt"
    whole: WholeModel | None = None  # None where it was not compared
    notes: tuple[str, ...] = ()  # what could not be measured, and why

    def after(self, before: Tuning) -> Tuning:
        """This round as the continuation of an earlier one, whose tasks it repeats."""
        ended_by = before.ended_by if before.ended_by == "interrupt" else self.ended_by
        return dataclasses.replace(
            self,
            trials=before.trials + self.trials,
            kernels=before.kernels + self.kernels,
            ended_by=ended_by,
            notes=tuple(dict.fromkeys((*before.notes, *self.notes))),
        )


def tuned_task(task: Task, measured: dict[KernelConfig, Measurement]) -> TunedTask | None:
    """None where nothing ran right."""
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
    """One row for each kind of problem, from all that was measured."""
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
    """Spearman's rank correlation; None where one side is constant."""
    try:
        return statistics.correlation(_ranks(ours), _ranks(theirs))
    except statistics.StatisticsError:
        return None


def _ranks(values: Iterable[float]) -> list[float]:
    """1 for the smallest; equal values share the mean of their ranks."""
    listed = list(values)
    ordered = sorted(listed)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in listed]
