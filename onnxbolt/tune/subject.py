"""The subject of planning and measuring: a model's graph, and those of the bodies in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import onnx_graphsurgeon as gs
from onnx import ModelProto

from onnxbolt import precision as precisions
from onnxbolt.candidates import Refusal
from onnxbolt.canonicalize import canonicalize
from onnxbolt.canonicalize.known_conditions import resolved
from onnxbolt.canonicalize.quantized import has_kernels, is_quantized
from onnxbolt.errors import InputError
from onnxbolt.graph.bodies import Body, Left, bodies_of, import_within
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import Shape, infer
from onnxbolt.graph.skipping import nodes_by_name, skip
from onnxbolt.graph.stages import Stages
from onnxbolt.match import head_norms, preparation, projections, quantized, rotations, windows
from onnxbolt.measurements.timings import Timings
from onnxbolt.options import PRECISIONS, Options
from onnxbolt.plan.choose import Plan
from onnxbolt.plan.cuts import segments
from onnxbolt.plan.planner import planned
from onnxbolt.plan.ranges import FIXED, Ranges, ranges_of, ranges_within
from onnxbolt.precision import Kept
from onnxbolt.precision.kernel_table import Kernels, kernels_of
from onnxbolt.problems import Problem
from onnxbolt.spelling import option


@dataclass(frozen=True)
class Subject:
    """The graph, the model that it came from, the sizes that it is planned for, and ONNX
    Runtime's kernels."""

    graph: gs.Graph
    original: ModelProto
    precision: str
    ranges: Ranges = FIXED
    kernels: Kernels = field(default_factory=kernels_of)
    places: tuple[str, ...] = ()  # a body's own place, behind those of the bodies around it
    changes: tuple[str, ...] = ()  # made by the stages before planning, in words
    kept: tuple[Kept, ...] = ()  # the nodes that stay in fp32
    quantized: tuple[Refusal, ...] = ()  # products of 8 bits, and others on codes
    bodies: tuple[tuple[Body, Subject], ...] = ()
    left: tuple[Left, ...] = ()  # bodies that are no subjects
    names: frozenset[str] = frozenset()  # source nodes and tensors that could be skipped
    skipped: frozenset[str] = frozenset()  # those that are, in this graph and in bodies
    archs: tuple[int, ...] = ()  # those that the model is written for; any if there are none

    @classmethod
    def of(
        cls,
        original: ModelProto,
        options: Options,
        kernels: Kernels | None = None,
        skipped: frozenset[str] = frozenset(),
        stages: Stages | None = None,
        archs: Sequence[int] = (),
    ) -> Subject:
        """The model after the stages before planning, but for those that `stages` leave out;
        `kernels` are by default those of the ONNX Runtime that `options` name, and `skipped` source
        nodes and tensors whose nodes stay. `archs` are those that the model is written for: codes
        are looked for where all of them have kernels. Raises InputError for a model that cannot be
        used, LiftError for one of an opset that they do not work on."""
        if options.precision not in PRECISIONS:
            raise InputError(
                f"{option('precision', options.precision)} is made by `onnxbolt optimize`, which"
                " calibrates the model, and writes it as OUT.qdq.onnx: give that file, with"
                f" {option('precision', 'fp16')}"
            )
        before = _Before(
            options.precision,
            kernels or kernels_of(options.ort_version),
            skipped,
            stages or Stages(),
            tuple(archs),
        )
        return _subject(original, before, partial(ranges_of, options=options))

    def __iter__(self) -> Iterator[Subject]:
        """The subject and those of all bodies in it."""
        yield self
        for _, inner in self.bodies:
            yield from inner

    @property
    def point(self) -> dict[str, Shape]:
        """The shapes of inputs at the opt point, as far as they are not the model's own."""
        shapes = self.ranges.opt.shapes
        names = (value.name for value in self.original.graph.input)
        return {name: shapes[name] for name in names if name in shapes}

    def without(self, options: Options, skipped: frozenset[str]) -> Subject:
        """The same model anew, `skipped` of whose nodes stay."""
        return Subject.of(self.original, options, self.kernels, skipped, archs=self.archs)

    def again(self) -> Subject:
        """The same subject with a new graph, since rewriting changes a graph for good."""
        graph = import_model(self.original)
        graph.archs = self.archs
        skip(graph, nodes_by_name(graph), self.skipped)
        infer(graph)
        _prepare(graph, _Before(self.precision, self.kernels, self.skipped, Stages(), self.archs))
        return dataclasses.replace(self, graph=graph)

    def plan(self, archs: Sequence[int], fuse: str, timings: Timings) -> Plan:
        """The plan that follows from `timings`. Raises FrozenError."""
        return planned(self.graph, archs, fuse, timings, self.ranges)

    def segments(self, archs: Sequence[int]) -> list[Problem]:
        """The problems of all kernels that may serve parts of back-to-back layers; their times
        decide how the layers are divided."""
        return segments(self.graph, archs, self.ranges.opt)


@dataclass(frozen=True)
class _Before:
    """The choices that stages before planning follow, the same for a model and its bodies."""

    precision: str
    kernels: Kernels
    skipped: frozenset[str]
    stages: Stages
    archs: tuple[int, ...] = ()


def _subject(
    original: ModelProto,
    before: _Before,
    ranges: Callable[[gs.Graph], Ranges],
    places: tuple[str, ...] = (),
    around: gs.Graph | None = None,
) -> Subject:
    graph = import_model(original) if around is None else import_within(original, around)
    graph.archs = before.archs
    names = nodes_by_name(graph)
    skip(graph, names, before.skipped)
    infer(graph)
    looked_for = is_quantized(graph) and not has_kernels(graph)
    refused = _quantized(original, before) if looked_for else []
    found, left = bodies_of(graph)
    notes = list(graph.notes)
    changes, kept = _prepare(graph, before)
    own = ranges(graph)
    bodies = []
    for body in found:
        model, lines = resolved(body.model)
        within = partial(ranges_within, around=own, values=body.values)
        path = (*places, body.place)
        inner = _subject(model, before, within, path, graph)
        bodies.append((body, dataclasses.replace(inner, changes=(*lines, *inner.changes))))
    return Subject(
        graph,
        original,
        before.precision,
        own,
        before.kernels,
        places,
        (*notes, *changes),
        tuple(kept),
        tuple(refused),
        tuple(bodies),
        tuple(left),
        frozenset(names),
        before.skipped,
        before.archs,
    )


def _quantized(original: ModelProto, before: _Before) -> list[Refusal]:
    """The refusals of products of 8 bits, which are looked for in a copy."""
    graph = import_model(original)
    skip(graph, nodes_by_name(graph), before.skipped)
    return quantized.refusals(graph)


def _prepare(graph: gs.Graph, before: _Before) -> tuple[list[str], list[Kept]]:
    """Run the stages before planning; returns what they changed, and what stays in fp32."""
    stages, kept = before.stages, list[Kept]()
    changes = canonicalize(graph, stages)
    changes += stages.lines("preparation", "ops' own forms", lambda: preparation.prepare(graph))
    if before.precision in precisions.LOW and not stages.leaves_out("precision"):
        stages.changed.setdefault("precision", f"conversion to {before.precision}")
        between = quantized.between_codes(graph) if has_kernels(graph) else frozenset()
        kept = precisions.convert(graph, before.precision, before.kernels, between)
    for name, words, run in (
        ("head_norms", "normalizations of heads moved in front of Transposes", head_norms.move),
        ("projections", "projections of one input merged", projections.merge),
        ("rotations", "rotations moved in front of heads", rotations.move),
        ("windows", "divisions into windows moved", windows.move),
    ):
        changes += stages.lines(name, words, partial(run, graph))
    return changes, kept
