"""The whole of `optimize` and `tune`, one line per stage."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import onnx
from onnx import ModelProto

from onnxbolt import extensions, gpu, library, precision
from onnxbolt.archs import by_name
from onnxbolt.canonicalize import canonicalize
from onnxbolt.canonicalize.known_conditions import resolved
from onnxbolt.canonicalize.restore import restore
from onnxbolt.errors import AccuracyError, CoverageError, LiftError
from onnxbolt.extra_ops import registered
from onnxbolt.graph import inlining
from onnxbolt.graph.convolutions import facts_of
from onnxbolt.graph.exporter import export_apart, used_variables
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.overridable import frozen
from onnxbolt.graph.shapes import infer
from onnxbolt.graph.source import Source, opened
from onnxbolt.library_file import sha256_of
from onnxbolt.match import preparation, projections, rotations, windows
from onnxbolt.measurements.timings import NOTHING
from onnxbolt.options import Choices, Options, takes_options
from onnxbolt.output import Output
from onnxbolt.plan.ranges import ranges_of, unshared
from onnxbolt.plan.whole import estimates
from onnxbolt.precision.kernel_table import kernels_of
from onnxbolt.precision.widen import widen
from onnxbolt.report import Report
from onnxbolt.rewrite import rewrite
from onnxbolt.tune import lockfile
from onnxbolt.tune.library import compiled
from onnxbolt.tune.progress import Progress
from onnxbolt.tune.stage import plan_with_timings, tuned
from onnxbolt.tune.subject import Subject
from onnxbolt.tune.summary import Tuning
from onnxbolt.verify import verify

logger = logging.getLogger(__name__)


@takes_options
def optimize(
    source: Source,
    out: str | Path | None = None,
    *,
    options: Options | None = None,
    progress: Callable[[str], None] | None = None,
    watch: Progress | None = None,
    **choices: Unpack[Choices],
) -> Report:
    """Fuse `source`, and write the new model to `out` with its library beside it; without `out`
    nothing is written.

    The other keywords are fields of `Options` and replace those of `options`; `watch` is called
    with the progress of tuning. An interrupt while tuning (KeyboardInterrupt) ends only the tuning:
    its results so far are used, and Report.tuning says so. Raises

    - InputError if the model, a file or an option cannot be used as given,
    - BuildError if compiling fails,
    - AccuracyError if outputs differ by more than their limits; they are written only with
      Options.keep_failed,
    - CoverageError if less is fused than Options.require_fused asks for; nothing is written,
    - FrozenError if the lock file lacks a choice.
    """
    extensions.load()
    options = dataclasses.replace(options or Options(), **choices)
    lock = lockfile.open_for(options)
    kernels = kernels_of(options.ort_version or (lock.onnxruntime if options.frozen else ""))
    names = options.archs or (lock.archs if options.frozen else default_archs())
    archs = [by_name(name).number for name in names]
    with (
        registered(options.custom_ops),
        Output(source, out, None if options.frozen else options.lock) as output,
        opened(source) as given,
    ):
        whole, notes = _promised(given, options)
        original, branches = resolved(whole)
        try:
            graph = import_model(original)
        except LiftError as reason:
            return _written_as_it_is(
                given,
                output,
                Report.unchanged(str(reason), archs).between(source, output.path),
                options,
            )
        infer(graph)
        changes = [*inlining.left(original), *notes, *branches, *graph.notes, *canonicalize(graph)]
        changes += preparation.prepare(graph)
        kept = precision.convert(graph, options.precision, kernels)
        changes += [*projections.merge(graph), *rotations.move(graph), *windows.move(graph)]
        subject = Subject(graph, original, options.precision, ranges_of(graph, options), kernels)
        chosen, tuning = plan_with_timings(
            subject, archs, options, lock.timings(options.frozen), progress, watch
        )
        rewriter = rewrite(graph, chosen.assignment, chosen.configs, archs, chosen.sources)
        restore(graph)
        kept += widen(graph, kernels)
        manifest = library.make_manifest(rewriter.ops, rewriter.instances)
        model, large = export_apart(
            graph,
            list(rewriter.functions.values()),
            library.metadata_of(manifest, options.precision, archs),
        )
        shapes = {name: tensor.shape for name, tensor in used_variables(graph).items()}
        onnx.helper.set_model_props(model, library.metadata(model) | facts_of(model, shapes))
        point = {
            value.name: shape
            for value in original.graph.input
            if (shape := subject.ranges.opt.shapes.get(value.name))
        }
        report = Report.of(
            original,
            model,
            manifest,
            chosen,
            kept,
            changes,
            rewriter.shared_weights,
            options,
            archs,
            point,
        )
        report = dataclasses.replace(
            report.between(source, output.path), tuning=tuning, onnxruntime=kernels.release
        )
        predictions = {node.name: node.predicted for node in report.fused if node.predicted}
        report = dataclasses.replace(
            report, whole=estimates(graph, predictions, archs, subject.ranges.opt)
        )
        if short := report.short_of(options.require_fused):
            raise CoverageError(short, report)
        if report.nothing_fused:
            logger.warning("nothing was fused: %s", report.nothing_fused)
        output.write(model, large, options.save_as_external_data)
        if options.library and manifest.ops:
            library.build(
                manifest,
                output.library,
                progress,
                compiled(manifest.instances) if options.tune else None,
            )
            report = dataclasses.replace(report, library_sha256=sha256_of(output.library))
        if options.verify:
            found = verify(
                whole,
                output.model,
                inputs=options.inputs,
                atol=options.atol,
                rtol=options.rtol,
                seed=options.seed,
                min_shapes=options.min_shapes,
                opt_shapes=options.opt_shapes,
                max_shapes=options.max_shapes,
            )
            report = report.verified(found)
        if report.passed or options.keep_failed:
            output.commit()
        if report.passed and options.lock and output.path and not options.frozen:
            lock.updated(chosen.used, options, names, kernels.release).write(Path(options.lock))
    if not report.passed:
        raise AccuracyError(report.failure(), report)
    return report


def _written_as_it_is(
    original: ModelProto, output: Output, report: Report, options: Options
) -> Report:
    """Write a model that the stages cannot work on with no change but its metadata, so that it is
    deployed like any other."""
    if short := report.short_of(options.require_fused):
        raise CoverageError(short, report)
    logger.warning("nothing was fused: %s", report.nothing_fused)
    model = ModelProto()
    model.CopyFrom(original)
    metadata = library.metadata_of(library.make_manifest([], []), report.precision, report.archs)
    onnx.helper.set_model_props(model, library.metadata(original) | metadata | facts_of(model))
    output.write(model, {}, options.save_as_external_data)
    output.commit()
    return report


@takes_options
def tune(
    source: Source,
    *,
    options: Options | None = None,
    progress: Callable[[str], None] | None = None,
    watch: Progress | None = None,
    **choices: Unpack[Choices],
) -> Tuning:
    """Measure what `optimize` would measure with Options.tune, and keep the times in the tuning
    database; write no model.

    Raises InputError if the model or an option cannot be used as given, and if there is no GPU.
    """
    extensions.load()
    choices["tune"] = True
    options = dataclasses.replace(options or Options(), **choices)
    archs = [by_name(name).number for name in options.archs or default_archs()]
    with registered(options.custom_ops), opened(source) as given:
        original, _ = resolved(_promised(given, options)[0])
        return tuned(Subject.of(original, options), archs, options, NOTHING, progress, watch)[1]


def _promised(model: ModelProto, options: Options) -> tuple[ModelProto, list[str]]:
    """The model that promises no more and no less about its inputs than the options say, with lines
    for the report."""
    model, fixed = frozen(model, options.freeze_initializers)
    model, unequal = unshared(model, options)
    return model, [*fixed, *unequal]


def default_archs() -> tuple[str, ...]:
    """The local GPU's architecture; without a GPU, one of each of the two common generations."""
    local = gpu.local_arch()
    return (local,) if local else ("sm_80", "sm_90a")
