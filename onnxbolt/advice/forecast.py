"""The predicted time of a model, by the stages that `optimize` runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnx import ModelProto

from onnxbolt.canonicalize.known_conditions import resolved
from onnxbolt.graph.shapes import Shape
from onnxbolt.measurements.timings import Timings
from onnxbolt.options import Options
from onnxbolt.pipeline import Part, Planner, without_skipped
from onnxbolt.precision.kernel_table import Kernels
from onnxbolt.tune.subject import Subject


@dataclass(frozen=True)
class Forecast:
    """Milliseconds of one run of the optimized model for each architecture, and the graphs after
    all stages."""

    ms: tuple[float, ...]
    parts: tuple[Part, ...]
    point: dict[str, Shape]  # the shapes of inputs of open sizes that the times are for

    @property
    def uses_measurements(self) -> bool:
        """True if times of kernels were measured."""
        rows = (row for part in self.parts for row in part.account.fused)
        return any(p.measured_us is not None for row in rows for p in row.predicted)

    def gain(self, after: Forecast) -> float:
        """The share of the time that `after` saves; negative if it takes more. Of several
        architectures the geometric mean counts, as in planning."""
        ratios = [a / b for a, b in zip(after.ms, self.ms, strict=True) if b]
        return 1 - math.prod(ratios) ** (1 / len(ratios)) if ratios else 0.0


@dataclass(frozen=True)
class Forecaster:
    """Plans models for the same architectures, options and measured times."""

    options: Options
    archs: Sequence[int]
    kernels: Kernels
    locked: Timings

    def of(self, model: ModelProto) -> Forecast:
        """The forecast of a model that `optimize` could read. Raises InputError."""
        original, _ = resolved(model)
        subject = Subject.of(original, self.options, self.kernels)
        planner = Planner(self.archs, self.options, self.locked)
        subject, parts = without_skipped(planner, subject, self.options)
        us = [sum(part.estimates[i].ours_us for part in parts) for i in range(len(self.archs))]
        return Forecast(tuple(each / 1000 for each in us), tuple(parts), subject.point)
