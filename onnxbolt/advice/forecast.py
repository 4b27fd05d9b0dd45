"""The predicted time of a model, by the stages that `optimize` runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs
from onnx import ModelProto

from onnxbolt.archs import get
from onnxbolt.canonicalize.known_conditions import resolved
from onnxbolt.graph.exporter import used_variables
from onnxbolt.graph.importer import import_model, tensor_type
from onnxbolt.graph.shapes import infer
from onnxbolt.measurements.timings import Timings
from onnxbolt.options import Options, Shapes
from onnxbolt.pipeline import Part, Planner, without_skipped
from onnxbolt.plan.node_times import node_us
from onnxbolt.plan.ranges import Point, asked_for, usual
from onnxbolt.precision.kernel_table import Kernels
from onnxbolt.tune.subject import Subject


@dataclass(frozen=True)
class Planned:
    """One graph of a model after all stages, and the sizes of all its tensors."""

    part: Part
    at: Point

    @property
    def others(self) -> list[gs.Node]:
        """The nodes without a predicted kernel, which ONNX Runtime runs or that change layouts."""
        predictions = self.part.account.predictions
        return [node for node in self.part.account.graph.nodes if node.name not in predictions]

    def us(self, arch: int) -> float:
        """Microseconds of the graph on an architecture, kernels one after the other."""
        predictions = self.part.account.predictions.values()
        kernels = sum(p.best_known_us for rows in predictions for p in rows if p.arch == arch)
        return kernels + sum(node_us(node, get(arch), self.at) for node in self.others)


@dataclass(frozen=True)
class Forecast:
    """Milliseconds of one run of the optimized model for each architecture, and the graphs after
    all stages."""

    ms: tuple[float, ...]
    planned: tuple[Planned, ...]
    point: Shapes  # the inputs' shapes that the times are for

    @property
    def uses_measurements(self) -> bool:
        """True if times of kernels were measured."""
        rows = (row for each in self.planned for row in each.part.account.fused)
        return any(p.measured_us is not None for row in rows for p in row.predicted)

    def gain(self, after: Forecast) -> float:
        """The share of the time that `after` saves; negative if it takes more. Of several
        architectures the geometric mean counts, as in planning."""
        ratios = [a / b for a, b in zip(after.ms, self.ms, strict=True) if b]
        return 1 - math.prod(ratios) ** (1 / len(ratios)) if ratios else 0.0


@dataclass(frozen=True)
class Forecaster:
    """Plans models for the same architectures, options, measured times and sizes of inputs."""

    options: Options
    archs: Sequence[int]
    kernels: Kernels
    locked: Timings
    point: Shapes  # for inputs of the model before changes

    def of(self, model: ModelProto) -> Forecast:
        """The forecast of a model that `optimize` could read, at one point. Raises InputError."""
        original, _ = resolved(model)
        shapes = self._shapes(model)
        asked = {name: shapes[name] for name in _open_inputs(model) if name in shapes}
        at = dataclasses.replace(
            self.options, min_shapes=None, opt_shapes=asked or None, max_shapes=None
        )
        subject = Subject.of(original, at, self.kernels, archs=self.archs)
        symbols = _symbols(subject)
        planner = Planner(self.archs, at, self.locked)
        _, parts = without_skipped(planner, subject, at)
        planned = tuple(Planned(part, _point(part, symbols)) for part in parts)
        ms = tuple(sum(each.us(arch) for each in planned) / 1000 for arch in self.archs)
        return Forecast(ms, planned, shapes)

    def _shapes(self, model: ModelProto) -> dict[str, tuple[int, ...]]:
        """The shapes of the model's inputs: those of the point, where it does not fix others."""
        found = dict[str, tuple[int, ...]]()
        for value in model.graph.input:
            shape, point = tensor_type(value.type)[1], self.point.get(value.name)
            if point is not None and (shape is None or len(shape) == len(point)):
                fixed = shape or point
                found[value.name] = tuple(
                    own if isinstance(own, int) else size
                    for own, size in zip(fixed, point, strict=True)
                )
        return found


def _open_inputs(model: ModelProto) -> Iterator[str]:
    """The inputs whose sizes are not all numbers."""
    for value in model.graph.input:
        shape = tensor_type(value.type)[1]
        if shape is None or not all(isinstance(size, int) for size in shape):
            yield value.name


def _symbols(subject: Subject) -> dict[str, int]:
    """The sizes of symbols, expressions of them included, at the point of the plan."""
    found = dict[str, int]()
    for each in subject:
        shapes = each.ranges.opt.shapes
        for name, tensor in used_variables(each.graph).items():
            for symbol, size in zip(tensor.shape or (), shapes.get(name, ()), strict=False):
                if isinstance(symbol, str) and isinstance(size, int):
                    found.setdefault(symbol, size)
    return found


def _point(part: Part, symbols: Mapping[str, int]) -> Point:
    """The sizes that the part is planned for, those of tensors that stages made included."""
    known = dict(part.account.at.shapes)
    for name, tensor in used_variables(part.account.graph).items():
        if name not in known and tensor.shape is not None:
            known[name] = [symbols.get(size, size) for size in tensor.shape]
    return Point(known)


def opt_point(model: ModelProto, options: Options) -> Shapes:
    """The shapes of inputs at which `optimize` decides what is fused. Raises InputError."""
    graph = import_model(resolved(model)[0])
    infer(graph)
    inputs = {tensor.name: tensor.shape for tensor in graph.inputs}
    return (asked_for(options, inputs) or usual(graph, inputs)).opt
