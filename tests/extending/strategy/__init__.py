"""A strategy for the tuner: one kernel of each family first, then all of the fastest family."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnxbolt.extensions import Extension
from onnxbolt.families import KernelConfig
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.measurements.strategy import Task


class BestFamily:
    """Trusts that predictions compare kernels of one family well, and families less so."""

    name = "best_family"

    def propose(self, task: Task, measurements: Sequence[Measurement]) -> Iterable[KernelConfig]:
        configs = [candidate.config for candidate in task.candidates]  # as predicted, best first
        right = [m for m in measurements if m.status is Status.OK and m.config is not None]
        if not right:
            return {config.family: config for config in reversed(configs)}.values()
        fastest = min(right, key=lambda m: m.us).config
        return [config for config in configs if fastest and config.family is fastest.family]


EXTENSION = Extension(name="best_family", strategies=(BestFamily(),))
