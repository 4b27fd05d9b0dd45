"""What is planned and measured: a model's graph with its candidates."""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs
from onnx import ModelProto

from onnxbolt import precision as precisions
from onnxbolt.canonicalize import canonicalize
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.match.types import Candidate
from onnxbolt.options import Options
from onnxbolt.plan.choose import Plan, plan
from onnxbolt.plan.cuts import cover
from onnxbolt.plan.ranges import FIXED, Ranges, ranges_of
from onnxbolt.tune.timings import Timings


@dataclass(frozen=True)
class Subject:
    """The graph with its disjoint candidates, the model that it came from, and the sizes that it is planned for."""

    graph: gs.Graph
    candidates: Sequence[Candidate]
    original: ModelProto
    precision: str
    ranges: Ranges = FIXED
    archs: tuple[int, ...] = ()  # that the candidates are for

    @classmethod
    def of(cls, original: ModelProto, archs: Sequence[int], options: Options) -> Subject:
        """The stages before planning. Raises InputError for what cannot be used as given."""
        graph = _prepared(original, options.precision)
        ranges = ranges_of(graph, options)
        return cls(graph, cover(graph, archs, ranges.opt)[0], original, options.precision, ranges, tuple(archs))

    def again(self) -> Subject:
        """The same with a graph of its own, since rewriting changes one for good."""
        graph = _prepared(self.original, self.precision)
        return dataclasses.replace(self, graph=graph, candidates=cover(graph, self.archs, self.ranges.opt)[0])

    def plan(self, archs: Sequence[int], fuse: str, timings: Timings) -> Plan:
        """See `onnxbolt.plan.choose.plan`."""
        return plan(self.graph, self.candidates, archs, fuse, timings, self.ranges)


def _prepared(original: ModelProto, precision: str) -> gs.Graph:
    graph = import_model(original)
    infer(graph)
    canonicalize(graph)
    precisions.convert(graph, precision)
    return graph
