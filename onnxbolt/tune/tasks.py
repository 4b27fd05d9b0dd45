"""The tasks of the tuner: each distinct problem of a model, with the kernels that are likely to be
fast."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from onnxbolt.archs import Arch
from onnxbolt.codegen.render import Instance
from onnxbolt.families import Family, KernelConfig
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.measurements.strategy import Ranked, Task
from onnxbolt.options import TRIALS
from onnxbolt.plan.cost import candidates, floor_us, ranked, spread_of
from onnxbolt.problems import Problem
from onnxbolt.tune.heuristics import seeds

_FEW = 3


def tasks_of(
    problems: Iterable[Problem],
    arch: Arch,
    trials: int = TRIALS,
    extra: Callable[[Problem, Arch], Sequence[KernelConfig]] = seeds,
) -> list[Task]:
    """One task for each distinct problem that `arch` has kernels for, the most expensive in the
    model first.

    A task's candidates are the first `trials` by prediction, with a few of each family, followed by
    feasible ones of `extra` that were cut off. A problem without a reference in the profiler makes
    no task.
    """
    counted = Counter(problem for problem in problems if problem.reference is not None)
    tasks = [
        Task(problem, count, _ranked(problem, arch, trials, extra), floor_us(problem, arch))
        for problem, count in counted.items()
    ]
    return sorted(
        (task for task in tasks if task.candidates),
        key=lambda t: (-t.occurrences * t.candidates[0].us, repr(t.problem)),
    )


def _ranked(
    problem: Problem,
    arch: Arch,
    trials: int,
    extra: Callable[[Problem, Arch], Sequence[KernelConfig]],
) -> tuple[Ranked, ...]:
    everything = [Ranked(config, us, spread_of(config)) for us, config in ranked(problem, arch)]
    first = _varied(everything, trials)
    chosen = {candidate.config for candidate in first}
    seeded = set(extra(problem, arch)) - chosen if len(chosen) < len(everything) else set()
    return (*first, *(candidate for candidate in everything if candidate.config in seeded))


def _varied(everything: Sequence[Ranked], trials: int) -> list[Ranked]:
    """The first `trials`, including a few of each family whatever its prediction, since predictions
    compare kernels of one family well and families less so; and at most a few of families that a
    newer generation succeeds."""
    families: dict[Family[Any], list[Ranked]] = defaultdict(list)
    for candidate in everything:
        families[candidate.config.family].append(candidate)
    few = min(_FEW, trials // max(len(families), 1))
    latest = max(family.generation for family in families) if families else 0
    sure = [candidate for group in families.values() for candidate in group[:few]]
    rest = [
        candidate
        for family, group in families.items()
        if family.generation == latest
        for candidate in group[few:]
    ]
    chosen = [*sure, *sorted(rest, key=_by_time)[: trials - len(sure)]]
    return sorted(chosen, key=_by_time)


def _by_time(candidate: Ranked) -> tuple[float, KernelConfig]:
    return candidate.us, candidate.config


def nothing_runs(problem: Problem, arch: Arch, measured: Iterable[Measurement]) -> bool:
    """True if every candidate was tried and none computes correct results."""
    failed = {m.config for m in measured if m.status is not Status.OK}
    return bool(failed) and failed.issuperset(candidates(problem, arch))


def instance_of(problem: Problem, config: KernelConfig) -> Instance:
    """The instance to compile for `config` and `problem`; several problems may share it."""
    return Instance(config.instance(), problem.dtype, problem.out, problem.chain)
