"""Kernels' times, for deciding how many layers one kernel computes: measured times if all of the
compared kernels can have them, otherwise predicted ones.

Predictions are biased: those for kernels of one layer err in one direction, those for kernels of
several layers in another. A measured time beside a predicted one would therefore favor the group
whose predictions are too low. So a problem without a measurement gets its predicted time multiplied
by the bias of its group: the geometric mean of measured over predicted time of the group's problems
that have both. If a group has no measurements, its bias is unknown, and predictions alone decide.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from onnxbolt.measurements.timings import NOTHING, Timings
from onnxbolt.plan.cost import predict, supports
from onnxbolt.problems import Problem

_Group = tuple[type, bool]  # class of problems, and whether they have several layers


class Compared(NamedTuple):
    """Microseconds of two ways to compute the same, summed over the architectures, and whether
    these were measured."""

    first_us: float
    second_us: float
    measured: bool


class KernelTimes:
    """The times of `problems` on one architecture."""

    def __init__(self, problems: Iterable[Problem], arch: int, timings: Timings) -> None:
        self._arch, self._timings = arch, timings
        errors: dict[_Group, list[float]] = defaultdict(list)
        for problem in dict.fromkeys(problems):
            if supports(problem, arch):
                known, measured = errors[_group(problem)], self._measured(problem)
                known += [] if measured is None else [math.log(measured / self._predicted(problem))]
        # GEMMs and convolutions are judged separately, since no kernel computes both
        comparable = {
            kind
            for kind, _ in errors
            if all(known for (other, _), known in errors.items() if other is kind)
        }
        self._bias = {
            group: math.exp(statistics.fmean(known))
            for group, known in errors.items()
            if group[0] in comparable
        }

    def us(self, problem: Problem) -> float:
        """Microseconds; infinite if there is no kernel, or if none that was tried runs right."""
        if not supports(problem, self._arch) or (problem, self._arch) in self._timings.failed:
            return math.inf
        bias, measured = self._bias.get(_group(problem)), self._measured(problem)
        if bias is None:
            return self._predicted(problem)
        return self._predicted(problem) * bias if measured is None else measured

    def is_measured(self, problem: Problem) -> bool:
        """True if `us` is a measured time."""
        return _group(problem) in self._bias and self._measured(problem) is not None

    def _measured(self, problem: Problem) -> float | None:
        choice = self._timings.choice(problem, self._arch)
        return choice.us if choice is not None and choice.measured else None

    def _predicted(self, problem: Problem) -> float:
        return predict(problem, self._arch)[1] + (0.0 if problem.inner else problem.narrow_layer_us)


def compared(
    first: Sequence[Problem], second: Sequence[Problem], archs: Sequence[int], timings: Timings
) -> Compared:
    """The times of kernels that solve the problems `first`, and of those that solve `second`: all
    measured or all predicted, since the problems of the two may be of different classes."""
    problems = (*first, *second)
    times = [KernelTimes(problems, arch, timings) for arch in archs]
    measured = all(each.is_measured(problem) for each in times for problem in problems)
    if not measured:
        unmeasured = dataclasses.replace(NOTHING, failed=timings.failed)
        times = [KernelTimes(problems, arch, unmeasured) for arch in archs]
    first_us, second_us = (
        sum(each.us(problem) for each in times for problem in way) for way in (first, second)
    )
    return Compared(first_us, second_us, measured)


def _group(problem: Problem) -> _Group:
    return type(problem), bool(problem.inner)
