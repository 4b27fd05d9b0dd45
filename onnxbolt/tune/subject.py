"""The subject of planning and measuring: a model's graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs
from onnx import ModelProto

from onnxbolt import precision as precisions
from onnxbolt.canonicalize import canonicalize
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.match import preparation, projections, rotations, windows
from onnxbolt.measurements.timings import Timings
from onnxbolt.options import Options
from onnxbolt.plan.choose import Plan
from onnxbolt.plan.cuts import segments
from onnxbolt.plan.planner import planned
from onnxbolt.plan.ranges import FIXED, Ranges, ranges_of
from onnxbolt.precision.kernel_table import Kernels, kernels_of
from onnxbolt.problems import Problem


@dataclass(frozen=True)
class Subject:
    """The graph, the model that it came from, the sizes that it is planned for, and ONNX
    Runtime's kernels."""

    graph: gs.Graph
    original: ModelProto
    precision: str
    ranges: Ranges = FIXED
    kernels: Kernels = field(default_factory=kernels_of)

    @classmethod
    def of(cls, original: ModelProto, options: Options) -> Subject:
        """The model after the stages before planning. Raises InputError for a model that cannot be
        used."""
        kernels = kernels_of(options.ort_version)
        graph = _prepared(original, options.precision, kernels)
        return cls(graph, original, options.precision, ranges_of(graph, options), kernels)

    def again(self) -> Subject:
        """The same subject with a new graph, since rewriting changes a graph for good."""
        return dataclasses.replace(
            self, graph=_prepared(self.original, self.precision, self.kernels)
        )

    def plan(self, archs: Sequence[int], fuse: str, timings: Timings) -> Plan:
        """The plan that follows from `timings`. Raises FrozenError."""
        return planned(self.graph, archs, fuse, timings, self.ranges)

    def segments(self, archs: Sequence[int]) -> list[Problem]:
        """The problems of all kernels that may serve parts of back-to-back layers; their times
        decide how the layers are divided."""
        return segments(self.graph, archs, self.ranges.opt)


def _prepared(original: ModelProto, precision: str, kernels: Kernels) -> gs.Graph:
    graph = import_model(original)
    infer(graph)
    canonicalize(graph)
    preparation.prepare(graph)
    precisions.convert(graph, precision, kernels)
    projections.merge(graph)
    rotations.move(graph)
    windows.move(graph)
    return graph
