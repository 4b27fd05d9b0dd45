"""Kernels' times, for deciding how many layers one kernel computes: measured times if all of the
compared kernels can have them, otherwise predicted ones.

Predictions are biased: those for kernels of one layer err in one direction, those for kernels of
several layers in another. A measured time beside a predicted one would therefore favor the group
whose predictions are too low. So a problem without a measurement gets its predicted time multiplied
by the bias of its group: the geometric mean of measured over predicted time of the group's problems
that have both. If a group has no measurements, its bias is unknown, and predictions alone decide.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable

from onnxbolt.measurements.timings import Timings
from onnxbolt.plan.cost import predict, supports
from onnxbolt.problems import Problem

_Group = tuple[type, bool]  # class of problems, and whether they have several layers


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


def _group(problem: Problem) -> _Group:
    return type(problem), bool(problem.inner)
