"""Writes the model that is made if only some steps are taken.

Canonicalization's passes and the other stages before planning run if they are taken. Then follow
the layouts: tensors are stored as in the optimized model, but each node that a kernel would replace
stays, between conversions to ONNX's layout and back. Fused nodes take their places one by one.
So the kernels of all these models are those of the optimized model, and its library serves them
all; conversions that only they have run as function bodies.
"""

from __future__ import annotations

import shlex
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import ModelProto

from onnxbolt import extensions, library
from onnxbolt.archs import by_name
from onnxbolt.bisection.search import FUSION, LAYOUT, NODE, STAGE, Step
from onnxbolt.canonicalize.known_conditions import resolved
from onnxbolt.canonicalize.restore import restore
from onnxbolt.domains import FUSED
from onnxbolt.extra_ops import registered
from onnxbolt.graph.bodies import located
from onnxbolt.graph.exporter import export_apart
from onnxbolt.graph.inlining import unfused, with_inner
from onnxbolt.graph.saving import save_model
from onnxbolt.graph.source import opened
from onnxbolt.graph.stages import Stages
from onnxbolt.layout.assignment import Assignment
from onnxbolt.library import Manifest
from onnxbolt.opspec import ops_to_json
from onnxbolt.options import Options
from onnxbolt.pipeline import Part, Planner, default_archs, promised, without_skipped
from onnxbolt.plan.cost import learned_from
from onnxbolt.precision.kernel_table import kernels_of
from onnxbolt.precision.widen import widen
from onnxbolt.report import Fused
from onnxbolt.tune import lockfile
from onnxbolt.tune.subject import Subject


@dataclass(frozen=True)
class Plan:
    """All steps if some stages are left out, and the manifest of the library that serves the
    models."""

    steps: tuple[Step, ...]
    manifest: Manifest
    frozen: bool  # True if the lock file alone decides


class Maker:
    """Makes models of one original. Use `opened_maker`."""

    def __init__(self, original: ModelProto, options: Options) -> None:
        self._lock = lock = lockfile.open_for(options)
        names = options.archs or (lock.archs if options.frozen else default_archs())
        self._archs = [by_name(name).number for name in names]
        self._original, self._options = original, options
        release = options.ort_version or (lock.onnxruntime if options.frozen else "")
        self._kernels = kernels_of(release)
        self._skipped = frozenset[str]()
        if options.skip_nodes or options.skip_rules or options.only_rules:
            planner = Planner(self._archs, options, lock.timings(options.frozen))
            self._skipped = without_skipped(planner, self._subject(Stages()), options)[0].skipped

    def plan(self, left: frozenset[str]) -> Plan:
        """The steps without the stages `left`."""
        stages, frozen = Stages(left.__contains__), self._options.frozen and not left
        parts = self._fused(self._subject(stages), None, frozen)
        found = [
            Step(STAGE, name, words, _remedy_of(name)) for name, words in stages.changed.items()
        ]
        fused = [row for part in parts for row in part.account.fused]
        own = {name for part in parts for name in part.rewriter.made.values()}
        if fused:
            found.append(Step(LAYOUT, LAYOUT, "tensors are stored as kernels read them"))
        found += (Step(NODE, row.name, row.rule) for row in fused if row.name not in own)
        for part in parts:
            rows = {row.name: row for row in part.account.fused}
            found += (
                _fusion(located(output, part.account.body), rows[name])
                for output, name in part.rewriter.made.items()
            )
        manifest = library.make_manifest(
            (op for part in parts for op in part.rewriter.ops),
            (instance for part in parts for instance in part.rewriter.instances),
        )
        return Plan(tuple(found), manifest, frozen)

    def write(self, path: Path, taken: Sequence[Step], plan: Plan) -> None:
        """Write the model that the steps `taken` make of the original; `plan` has all steps."""
        keys = {step.key for step in taken}
        if not keys:
            save_model(self._original, path)
            return
        subject = self._subject(Stages(lambda name: (STAGE, name) not in keys))
        if (LAYOUT, LAYOUT) not in keys:
            restore(subject.graph)
            widen(subject.graph, self._kernels)
            model, large = export_apart(subject.graph)
            entries = {"onnxbolt.precision": self._options.precision}
        else:
            parts = self._fused(subject, keys, plan.frozen)
            functions = {f.name: f for part in parts for f in part.rewriter.functions.values()}
            model, large = export_apart(subject.graph, list(functions.values()))
            own = {name for part in parts for name in part.rewriter.made.values()}
            inner = (node for node in with_inner(model.graph.node) if node.domain == FUSED)
            others = {node.name for node in inner if node.name not in own}
            model = unfused(model, {name for name in others if (NODE, name) not in keys})
            ops = {op for part in parts for op in part.rewriter.ops}
            entries = library.metadata_of(plan.manifest, self._options.precision, self._archs)
            entries["onnxbolt.ops"] = ops_to_json({*plan.manifest.ops, *ops})
        onnx.helper.set_model_props(model, library.metadata(model) | entries)
        save_model(model, path, large=large)

    def _subject(self, stages: Stages) -> Subject:
        return Subject.of(
            self._original, self._options, self._kernels, self._skipped, stages, self._archs
        )

    def _fused(
        self, subject: Subject, keys: Container[tuple[str, str]] | None, frozen: bool
    ) -> list[Part]:
        """The graphs with those candidates fused whose steps are among `keys`; None: all."""

        def arranged(place: str, planned: Assignment) -> Assignment:
            wanted = (
                each
                for each in planned.candidates
                if keys is None or (FUSION, located(each.output.name, place)) in keys
            )
            return planned.only(list(wanted))

        timings = self._lock.timings(frozen)
        return Planner(self._archs, self._options, timings, arranged=arranged).fused(subject)


@contextmanager
def opened_maker(source: Path, options: Options) -> Iterator[Maker]:
    """A Maker of the model at `source`. Raises InputError if the model cannot be used, LiftError
    if it is of an opset that the stages do not work on."""
    extensions.load()
    with (
        learned_from(options.cost_model),
        registered(options.custom_ops),
        opened(source) as given,
    ):
        original, _ = resolved(promised(given, options)[0])
        yield Maker(original, options)


def _fusion(name: str, row: Fused) -> Step:
    """The step of a fused node; skipping one of its source nodes leaves it out."""
    words = f"{row.rule}: {', '.join(row.source_nodes)}"
    if not row.source_nodes:
        return Step(FUSION, name, words)
    source = row.source_nodes[0]
    # a name that begins with a hyphen would be read as an option of its own
    skip = [f"--skip-node={source}"] if source.startswith("-") else ["--skip-node", source]
    return Step(FUSION, name, words, shlex.join(["onnxbolt", "optimize", *skip]))


def _remedy_of(stage: str) -> str:
    if stage == "precision":
        return "onnxbolt optimize --precision keep (or bf16)"
    return ""
