"""What is planned and measured: a model's graph with its candidates."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs
from onnx import ModelProto

from onnxbolt import precision as precisions
from onnxbolt.canonicalize import canonicalize
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.match.matcher import match
from onnxbolt.match.partition import partition
from onnxbolt.match.types import Candidate
from onnxbolt.options import Options
from onnxbolt.plan.choose import Plan, plan
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

    @classmethod
    def of(cls, original: ModelProto, options: Options) -> Subject:
        """The stages before planning. Raises InputError for what cannot be used as given."""
        fixed = cls._prepared(original, options.precision)
        return cls(fixed.graph, fixed.candidates, original, options.precision, ranges_of(fixed.graph, options))

    @classmethod
    def _prepared(cls, original: ModelProto, precision: str, ranges: Ranges = FIXED) -> Subject:
        graph = import_model(original)
        infer(graph)
        canonicalize(graph)
        precisions.convert(graph, precision)
        return cls(graph, partition(match(graph)[0]), original, precision, ranges)

    def again(self) -> Subject:
        """The same with a graph of its own, since rewriting changes one for good."""
        return self._prepared(self.original, self.precision, self.ranges)

    def plan(self, archs: Sequence[int], fuse: str, timings: Timings) -> Plan:
        """See `onnxbolt.plan.choose.plan`."""
        return plan(self.graph, self.candidates, archs, fuse, timings, self.ranges)
