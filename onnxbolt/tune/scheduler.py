"""Chooses which candidates to measure next, so that time is spent where it is expected to pay.

The objective is the model's time in its tunable nodes, as in AutoGTCO (section III-C, equation 4):

    f(t) = sum over tasks i of  w_i * max(g_i(t), ES_i(t), L_i)

with w_i the occurrences of task i, g_i its best time so far, L_i a lower bound (here the roofline),
and ES_i the early stop: the time that its remaining candidates are not expected to undercut. A
candidate's gain is the expected drop of f (expected improvement; Jones, Schonlau and Welch 1998,
section 4.1). If Y is its unknown time,

    gain = w_i * E[max(0, g_i - max(Y, L_i))],   log Y = log(predicted) + bias + noise

The noise is normal with spread s; bias and s are the cost model's errors seen so far
(`Calibration`). Tasks share kernels, and some kernels take ten times as long to compile as others.
Kernels are therefore ordered by the summed gains of the tasks that would run them, per second of
compiling. A candidate is dropped, even while its kernel is being compiled, once its chance to win
by more than the measurement's noise is below 5%. The better the predictions are, the sooner a task
stops.

All decisions depend on the set of measurements, not on their order: a run that finds them in the
database decides as the run that made them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

from onnxbolt.codegen.render import Instance
from onnxbolt.families import Family, KernelConfig
from onnxbolt.measurements.records import LEAST_GAIN, Measurement, Status
from onnxbolt.measurements.strategy import SPREAD, Ranked, Task
from onnxbolt.tune.tasks import instance_of

# the spread that is assumed at first (`Ranked.spread`) counts as so many measurements
_PRIOR = 4
_LEAST_CHANCE = 0.05
_FIRST, _PIONEER, _ANY = 0, 1, 2
_NORMAL = NormalDist()
_LEAST_Z = _NORMAL.inv_cdf(_LEAST_CHANCE)


@dataclass(frozen=True)
class Trial:
    """A candidate to be measured for the task with number `task`."""

    task: int
    config: KernelConfig


@dataclass(frozen=True)
class Outlook:
    """The expectation of a candidate's time: lognormal, with the median in microseconds."""

    us: float
    spread: float

    def improvement(self, best: float, floor: float) -> float:
        """The expected microseconds by which it undercuts `best`; nothing below `floor` counts."""
        return self._below(best) - self._below(floor) if best > floor else 0.0

    def chance(self, us: float) -> float:
        """The probability of being faster than `us`."""
        return _NORMAL.cdf(math.log(us / self.us) / self.spread)

    def may_beat(self, us: float) -> bool:
        """True if `chance` is at least _LEAST_CHANCE."""
        return math.log(us / self.us) >= _LEAST_Z * self.spread

    def _below(self, us: float) -> float:
        z = math.log(us / self.us) / self.spread
        return us * _NORMAL.cdf(z) - self.us * math.exp(self.spread**2 / 2) * _NORMAL.cdf(
            z - self.spread
        )


class Calibration:
    """The errors of the prediction: a bias for each task and family, and one spread around them for
    each family.

    Estimates are shrunk towards no bias and the spread that is assumed at first, so that a first
    measurement is no proof.
    """

    def __init__(
        self,
        errors: dict[tuple[int, Family[Any]], list[float]],
        assumed: Mapping[Family[Any], float] = MappingProxyType({}),
    ) -> None:
        """`errors` are log(measured / predicted), by task and family; `assumed` are the spreads of
        families at first, where they are not SPREAD."""
        families = {family for _, family in errors}
        self._counts = {key: len(values) for key, values in errors.items()}
        self._shared = {
            f: _shrunk(
                [e for (_, family), values in errors.items() if family is f for e in values], 0.0
            )
            for f in families
        }
        self._biases = {
            key: _shrunk(values, self._shared[key[1]]) for key, values in errors.items()
        }
        self._spreads = {
            family: self._spread(family, errors, assumed.get(family, SPREAD)) for family in families
        }
        self._scales: dict[tuple[int, Family[Any]], tuple[float, float]] = {}

    def outlook(self, task: int, candidate: Ranked) -> Outlook:
        family = candidate.config.family
        key = task, family
        if (scale := self._scales.get(key)) is None:
            scale = self._scales[key] = self._scale(key)
        return Outlook(
            candidate.us * scale[0], self._spreads.get(family, candidate.spread) * scale[1]
        )

    def _scale(self, key: tuple[int, Family[Any]]) -> tuple[float, float]:
        """The factors of a task's predicted times of a family, and of their spread."""
        bias = self._biases.get(key, self._shared.get(key[1], 0.0))
        unknown = 1 / (1 + self._counts.get(key, 0))  # uncertainty of the bias itself
        return math.exp(bias), math.sqrt(1 + unknown)

    def _spread(
        self,
        family: Family[Any],
        errors: dict[tuple[int, Family[Any]], list[float]],
        assumed: float,
    ) -> float:
        squares, freedom = [_PRIOR * assumed**2], float(_PRIOR)
        for (_, of), values in errors.items():
            if of is family:
                mean = math.fsum(values) / len(values)
                squares += [(value - mean) ** 2 for value in values]
                freedom += len(values) - 1
        return math.sqrt(math.fsum(squares) / freedom)


def _shrunk(values: Sequence[float], towards: float) -> float:
    """A mean with one observation of `towards`."""
    return math.fsum([towards, *values]) / (1 + len(values))


@dataclass
class _State:
    """The state of one task."""

    task: Task
    left: dict[KernelConfig, Ranked]  # not begun
    under_way: dict[KernelConfig, Ranked]
    measured: dict[KernelConfig, Measurement]
    predicted: dict[KernelConfig, float]

    @classmethod
    def of(cls, task: Task) -> _State:
        return cls(
            task,
            {c.config: c for c in task.candidates},
            {},
            {},
            {c.config: c.us for c in task.candidates},
        )

    @cached_property
    def best(self) -> Measurement | None:
        """The fastest correct measurement; of equals the first by configuration, so that runs
        agree."""
        right = [m for m in self.measured.values() if m.status is Status.OK]
        return min(right, key=lambda m: (m.us, m.config), default=None)

    @cached_property
    def errors(self) -> dict[Family[Any], list[float]]:
        """The errors of the predictions by family. Other launches of their kernels would count an
        error several times."""
        found: dict[Family[Any], list[float]] = defaultdict(list)
        for config, measurement in self.measured.items():
            if measurement.status is Status.OK and config in self.predicted:
                found[config.family].append(math.log(measurement.us / self.predicted[config]))
        return found

    def begin(self, config: KernelConfig) -> None:
        self.under_way[config] = self.left.pop(config)

    def end(self, config: KernelConfig, measurement: Measurement) -> None:
        self.left.pop(config, None)
        self.under_way.pop(config, None)
        known = self.measured.get(config)
        if known is None or (
            known.status is Status.OK
            and (measurement.status is not Status.OK or measurement.runs >= known.runs)
        ):
            self.measured[config] = measurement
            self.__dict__.pop("best", None)
            self.__dict__.pop("errors", None)


class Scheduler:
    """Hands out trials, and learns from their measurements."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks
        self._states = [_State.of(task) for task in tasks]
        self._pioneers = _pioneers(tasks)
        self._instances: dict[tuple[int, KernelConfig], Instance] = {}
        self._assumed = {
            candidate.config.family: candidate.spread
            for task in tasks
            for candidate in task.candidates
        }

    def record(self, task: int, measurement: Measurement) -> None:
        """Record a measurement, made now or found in the database. Of several measurements of a
        configuration, the one with the most runs counts, and the newest of equals; a configuration
        that failed once stays failed, as in `Database.best`."""
        if measurement.config is not None:
            self._states[task].end(measurement.config, measurement)
            self.__dict__.pop("_calibration", None)

    def give_up(self, task: int) -> None:
        """Hand out no more trials of this task."""
        self._states[task].left.clear()
        self._states[task].under_way.clear()

    def best(self, task: int) -> Measurement | None:
        """The fastest correct measurement so far."""
        return self._states[task].best

    def measured(self, task: int) -> dict[KernelConfig, Measurement]:
        """All measurements of a task, by configuration."""
        return self._states[task].measured

    def worthwhile(self) -> list[int]:
        """For each task, how many more trials seem worth their time, including those under way."""
        return [self.promising(number) for number in range(len(self.tasks))]

    def promising(self, task: int) -> int:
        """How many more trials of this task seem worth their time, including those under way."""
        state = self._states[task]
        return len(self._paying(task, state.under_way)) + len(self._paying(task, state.left))

    def next(
        self, kernels: int, compiled: Container[Instance] = ()
    ) -> list[tuple[Instance, list[Trial]]]:
        """The trials to measure now, grouped by the kernel that they need: those of all `compiled`
        kernels, and of up to `kernels` others, the most valuable first."""
        wanted: dict[Instance, list[tuple[int, float, Trial]]] = defaultdict(list)
        for number, task in enumerate(self.tasks):
            for config, gain, rank in self._gains(number):
                if (instance := self._instances.get((number, config))) is None:
                    instance = instance_of(task.problem, config)
                    self._instances[number, config] = instance
                wanted[instance].append((rank, gain, Trial(number, config)))
        ready = [instance for instance in wanted if instance in compiled]
        new = sorted(
            (i for i in wanted if i not in compiled),
            key=lambda instance: _priority(instance, wanted[instance]),
        )
        chosen = [
            (instance, [trial for _, _, trial in wanted[instance]])
            for instance in (*ready, *new[: max(kernels, 0)])
        ]
        for _, trials in chosen:
            for trial in trials:
                self._states[trial.task].begin(trial.config)
        return chosen

    def _gains(self, number: int) -> list[tuple[KernelConfig, float, int]]:
        """Configurations worth trying, each with its gain and its rank: first of a task, first of a
        family, or chosen for its gain."""
        state, task = self._states[number], self.tasks[number]
        best = state.best
        paying = self._paying(number, state.left)
        if best is not None:
            return [
                (config, task.occurrences * outlook.improvement(best.us, task.floor_us), _ANY)
                for config, outlook in paying
            ]
        # the choice of the model without measuring
        level = self._calibration.outlook(number, task.candidates[0]).us
        starts = not state.under_way
        return [
            (
                config,
                task.occurrences * outlook.improvement(level, task.floor_us),
                (
                    _FIRST
                    if starts and i == 0
                    else _PIONEER
                    if (number, config) in self._pioneers
                    else _ANY
                ),
            )
            for i, (config, outlook) in enumerate(paying)
        ]

    def _paying(
        self, number: int, candidates: Mapping[KernelConfig, Ranked]
    ) -> list[tuple[KernelConfig, Outlook]]:
        """The candidates that may win by more than the noise; all of them until one has computed
        correct results."""
        best = self._states[number].best
        beaten = math.inf if best is None else (1 - LEAST_GAIN) * best.us
        if beaten <= self.tasks[number].floor_us:
            return []
        calibration = self._calibration
        outlooks = (
            (config, calibration.outlook(number, candidate))
            for config, candidate in candidates.items()
        )
        return [(config, outlook) for config, outlook in outlooks if outlook.may_beat(beaten)]

    @cached_property
    def _calibration(self) -> Calibration:
        errors = {
            (number, family): found
            for number, state in enumerate(self._states)
            for family, found in state.errors.items()
        }
        return Calibration(errors, self._assumed)


def _pioneers(tasks: Sequence[Task]) -> set[tuple[int, KernelConfig]]:
    """The best candidate of each family in the first task that has one: the calibration learns
    about the family from it. A family that takes longer to compile than another one of the task has
    to wait for its gain."""
    found: dict[Family[Any], tuple[int, KernelConfig]] = {}
    for number, task in enumerate(tasks):
        least = min(candidate.config.family.compile_seconds for candidate in task.candidates)
        for candidate in task.candidates:
            if candidate.config.family.compile_seconds <= least:
                found.setdefault(candidate.config.family, (number, candidate.config))
    return set(found.values())


def _priority(instance: Instance, trials: list[tuple[int, float, Trial]]) -> tuple[int, float, str]:
    """A sort key: each task starts with one trial, as AutoGTCO does with t = (1, .., 1), then each
    family gets one; after that gains decide."""
    gain = math.fsum(gain for _, gain, _ in trials)
    return (
        min(rank for rank, _, _ in trials),
        -gain / instance.config.family.compile_seconds,
        repr(instance),
    )
