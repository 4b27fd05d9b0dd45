"""What a kernel takes, for deciding how many layers it shall have: measured times where they can be
compared, else predicted ones.

Measured and predicted times are two yardsticks. Predictions for kernels of one kind, for one layer
or for several, err in the same direction, so that a measured time beside a predicted one would
prefer the kind that is predicted too fast. Hence a problem without a measurement counts with its
prediction times the bias of its kind: the geometric mean of measured over predicted time of those
that have both. Where nothing of one kind was measured, its bias is unknown, and predictions decide
alone.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable

from onnxbolt.measurements.timings import Timings
from onnxbolt.plan.cost import predict, supports
from onnxbolt.problems import Problem

_Kind = tuple[type, bool]


class KernelTimes:
    """Of `problems` on one architecture."""

    def __init__(self, problems: Iterable[Problem], arch: int, timings: Timings) -> None:
        self._arch, self._timings = arch, timings
        errors: dict[_Kind, list[float]] = defaultdict(list)
        for problem in dict.fromkeys(problems):
            if supports(problem, arch):
                known, measured = errors[_kind(problem)], self._measured(problem)
                known += [] if measured is None else [math.log(measured / self._predicted(problem))]
        # of kernels for GEMMs and for convolutions by themselves, since no chain has both
        comparable = {
            of
            for of, _ in errors
            if all(known for (other, _), known in errors.items() if other is of)
        }
        self._bias = {
            kind: math.exp(statistics.fmean(known))
            for kind, known in errors.items()
            if kind[0] in comparable
        }

    def us(self, problem: Problem) -> float:
        """Infinite where there is no kernel, or none that was tried runs right."""
        if not supports(problem, self._arch) or (problem, self._arch) in self._timings.failed:
            return math.inf
        bias, measured = self._bias.get(_kind(problem)), self._measured(problem)
        if bias is None:
            return self._predicted(problem)
        return self._predicted(problem) * bias if measured is None else measured

    def is_measured(self, problem: Problem) -> bool:
        """Whether `us` is a measured time."""
        return _kind(problem) in self._bias and self._measured(problem) is not None

    def _measured(self, problem: Problem) -> float | None:
        choice = self._timings.choice(problem, self._arch)
        return choice.us if choice is not None and choice.measured else None

    def _predicted(self, problem: Problem) -> float:
        return predict(problem, self._arch)[1] + (0.0 if problem.inner else problem.narrow_layer_us)


def _kind(problem: Problem) -> _Kind:
    return type(problem), bool(problem.inner)
