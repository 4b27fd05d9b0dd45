"""The whole of `optimize` and `tune`, one line per stage."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import onnx
from onnx import ModelProto

from onnxbolt import bench, extensions, gpu, library
from onnxbolt.archs import by_name
from onnxbolt.canonicalize import mean_form, quantized
from onnxbolt.canonicalize.known_conditions import resolved
from onnxbolt.canonicalize.restore import restore
from onnxbolt.errors import AccuracyError, CoverageError, LiftError, OnnxboltError, SpeedError
from onnxbolt.extra_ops import registered
from onnxbolt.graph import inlining
from onnxbolt.graph.bodies import Changed, is_there, placed, put_back
from onnxbolt.graph.exporter import export_apart, used_variables
from onnxbolt.graph.facts import facts_of
from onnxbolt.graph.importer import tensor_type
from onnxbolt.graph.overridable import frozen
from onnxbolt.graph.saving import save_model
from onnxbolt.graph.source import Source, opened
from onnxbolt.kernel_names import kernel_names
from onnxbolt.layout.assignment import Assignment
from onnxbolt.library_file import sha256_of
from onnxbolt.match import preparation
from onnxbolt.measurements.benchmark import Benchmark
from onnxbolt.measurements.timings import NOTHING, Timings
from onnxbolt.options import AUTO, CODES, QUANTIZED, Choices, Options, takes_options
from onnxbolt.output import Output
from onnxbolt.plan.choose import Plan
from onnxbolt.plan.cost import learned_from
from onnxbolt.plan.ranges import unshared
from onnxbolt.plan.whole import Estimate, estimates
from onnxbolt.precision.kernel_table import Kernels, kernels_of
from onnxbolt.precision.widen import widen
from onnxbolt.problems import Problem
from onnxbolt.quantize.search import Timed, Times
from onnxbolt.quantize.stage import staged
from onnxbolt.report import Account, Fused, Report
from onnxbolt.rewrite import Rewriter, rewrite
from onnxbolt.skips import Skips
from onnxbolt.spelling import option
from onnxbolt.tune import lockfile
from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.library import compiled
from onnxbolt.tune.lockfile import Lock
from onnxbolt.tune.progress import Progress
from onnxbolt.tune.stage import kernel_problems, plan_with_timings, tune_kernels
from onnxbolt.tune.subject import Subject
from onnxbolt.tune.summary import Tuning, together
from onnxbolt.verify import verify
from onnxbolt.verify.feeds import Feeds, drawn, graph_inputs, read_feeds

logger = logging.getLogger(__name__)
# plans that a search for precisions tunes: all in floats, int8 and fp8, and the chosen one
_TUNINGS = 4


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
    - SpeedError if the speed-up is below Options.min_speedup; nothing is written,
    - FrozenError if the lock file lacks a choice.
    """
    extensions.load()
    options = dataclasses.replace(options or Options(), **choices)
    lock = lockfile.open_for(options)
    decided = lock.timings(options.frozen)
    return optimize_as_decided(source, out, options, lock, decided, progress, watch)


def optimize_as_decided(
    source: Source,
    out: str | Path | None,
    options: Options,
    lock: Lock,
    decided: Timings,
    progress: Callable[[str], None] | None = None,
    watch: Progress | None = None,
) -> Report:
    """`optimize` with extensions loaded, the lock that `options` name, and a plan that keeps the
    decisions `decided`."""
    kernels = kernels_of(options.ort_version or (lock.onnxruntime if options.frozen else ""))
    names = options.archs or (lock.archs if options.frozen else default_archs())
    archs = [by_name(name).number for name in names]
    with (
        learned_from(options.cost_model),
        registered(options.custom_ops),
        Output(source, out, None if options.frozen else options.lock) as output,
        opened(source) as given,
    ):
        whole, notes = promised(given, options)
        floats, asked, made = whole, options, None
        timed = _timed(options, lock, kernels, archs, progress, watch)
        if options.precision in QUANTIZED:
            places = output.quantized, output.quantized_place
            whole, made = staged(whole, options, lock.quantized, archs, *places, timed)
            lock = lock.with_scales(made.scales)
            options = dataclasses.replace(options.in_floats, precision=made.scales.floats)
            if asked.precision == AUTO:
                options = _share(options)
        original, branches = resolved(whole)
        try:
            subject = Subject.of(original, options, kernels, archs=archs)
        except LiftError as reason:
            report = _written_as_it_is(
                given,
                output,
                Report.unchanged(str(reason), archs).between(source, output.path),
                options,
            )
            # a lock without choices: a later run that takes them from it alone needs the file
            _write_lock(lock.updated(NOTHING, asked, names, kernels.release), options, output)
            return report
        planner = Planner(archs, options, decided, progress, watch)
        subject, parts = without_skipped(planner, subject, options)
        manifest = library.make_manifest(
            (op for part in parts for op in part.rewriter.ops),
            (instance for part in parts for instance in part.rewriter.instances),
        )
        functions = {f.name: f for part in parts for f in part.rewriter.functions.values()}
        model, large = export_apart(
            subject.graph,
            list(functions.values()),
            library.metadata_of(manifest, options.precision, archs),
        )
        shapes = {
            name: tensor.shape
            for part in reversed(parts)
            for name, tensor in used_variables(part.account.graph).items()
        }
        onnx.helper.set_model_props(model, library.metadata(model) | facts_of(model, shapes))
        notes = [*inlining.left(original), *notes, *branches]
        report = Report.of([part.account for part in parts], manifest, options, archs)
        report = dataclasses.replace(
            report.between(source, output.path),
            changes=(*notes, *report.changes),
            tuning=planner.tuning,
            onnxruntime=kernels.release,
            whole=_estimates(parts),
            skips=lockfile.skips_of(options),
            skipped=tuple(sorted(subject.skipped)),
            quantization=made,
        )
        if short := report.short_of(options.require_fused):
            raise CoverageError(short, report)
        if report.nothing_fused:
            logger.warning("nothing was fused: %s", report.nothing_fused)
        if asked.precision in CODES and not options.frozen:
            _warn_if_slower(report, asked, timed(floats, options.precision, False).us)
        output.write(model, large, options.save_as_external_data)
        if options.library and manifest.ops:
            library.build(
                manifest,
                output.library,
                progress,
                compiled(manifest.instances) if options.tune else None,
            )
            kernels_named = kernel_names(output.library.read_bytes(), manifest.instances)
            report = dataclasses.replace(
                report.with_kernels([part.account for part in parts], manifest, kernels_named),
                library_sha256=sha256_of(output.library),
            )
        report = report.weighed(output.bytes_read, output.bytes_staged, output.library_bytes)
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
        if options.min_speedup is not None and report.passed:
            feeds = _feeds(whole, subject, options)
            report = dataclasses.replace(
                report, speed=_speed(source, floats, output, feeds, progress)
            )
            if report.speed and (slow := report.speed.short_of(options.min_speedup)):
                raise SpeedError(slow, report)
        if report.passed or options.keep_failed:
            output.commit()
        if report.passed:
            for used in planner.used:
                lock = lock.updated(used, asked, names, kernels.release)
            _write_lock(lock, options, output)
    if not report.passed:
        raise AccuracyError(report.failure(), report)
    return report


def _warn_if_slower(report: Report, asked: Options, floats_us: float) -> None:
    """Tell where a model without codes would be faster."""
    ours = sum(found.ours_us for found in report.whole)
    if ours > floats_us:
        logger.warning(
            "%s takes %.1f us by the times that are known, and %s %.1f us: %s leaves in floats what"
            " gains nothing",
            asked.precision,
            ours,
            option("precision", report.precision),
            floats_us,
            option("precision", AUTO),
        )


def _share(options: Options) -> Options:
    """The options with the part of the budget that one of a search's tunings gets."""
    return dataclasses.replace(options, budget=options.budget and options.budget / _TUNINGS)


def _timed(
    options: Options,
    lock: Lock,
    kernels: Kernels,
    archs: Sequence[int],
    progress: Callable[[str], None] | None,
    watch: Progress | None,
) -> Timed:
    """The times of models that a search for precisions compares: measured where `options` tune or
    the database has them, else predicted. Each tuning gets a share of the budget."""
    tuned = _share(options.in_floats)

    def timed(model: ModelProto, floats: str, measured: bool) -> Times:
        chosen = dataclasses.replace(tuned if measured else tuned.untuned, precision=floats)
        subject = Subject.of(resolved(model)[0], chosen, kernels, archs=archs)
        parts = Planner(archs, chosen, lock.timings(False), progress, watch).fused(subject)
        rows = tuple(
            (sum(each.best_known_us for each in row.predicted), row.source_nodes)
            for row in _rows(parts)
        )
        return Times(sum(found.ours_us for found in _estimates(parts)), rows)

    return timed


def _write_lock(lock: Lock, options: Options, output: Output) -> None:
    """Write the lock that `options` name, unless the run takes all choices from it or writes
    nothing."""
    if options.lock and output.path and not options.frozen:
        lock.write(Path(options.lock))


@dataclass(frozen=True)
class Part:
    """The main graph or that of a body, after all stages."""

    account: Account
    rewriter: Rewriter
    estimates: tuple[Estimate, ...]


class Planner:
    """Plans and rewrites the graphs of a model one after another; together they take the time of
    one budget."""

    def __init__(
        self,
        archs: Sequence[int],
        options: Options,
        locked: Timings,
        progress: Callable[[str], None] | None = None,
        watch: Progress | None = None,
        arranged: Callable[[str, Assignment], Assignment] | None = None,
    ) -> None:
        """`arranged`: the assignment to rewrite a graph by, from the place of its body and the
        planned one."""
        self._arranged = arranged
        self._archs, self._options, self._locked = archs, options, locked
        self._progress, self._watch = progress, watch
        self._start = time.monotonic()
        self._tunings: list[tuple[str, Tuning]] = []
        self.used: list[Timings] = []  # the decisions of all plans

    @property
    def tuning(self) -> Tuning | None:
        """The results of tuning; None if nothing was tuned."""
        return together(self._tunings) if self._tunings else None

    def fused(self, subject: Subject) -> list[Part]:
        """The main graph with fused nodes, and the bodies in it. A body in which nothing is fused
        stays as it was."""
        self._tunings.clear()
        parts, changed = self._fused(subject)
        put_back(subject.graph, changed)
        return parts

    def _fused(
        self, subject: Subject, around: frozenset[str] = frozenset()
    ) -> tuple[list[Part], list[Changed]]:
        """Likewise, with the bodies to put back; `around` are the op types around the subject."""
        chosen = self._plan(subject)
        sources, archs = chosen.sources, self._archs
        place, assignment = placed(subject.places), chosen.assignment
        if self._arranged is not None:
            assignment = self._arranged(place, assignment)
        provenance = {node.name: tuple(node.provenance) for node in subject.graph.nodes}
        rewriter = rewrite(subject.graph, assignment, chosen.configs, archs, sources, around)
        restore(subject.graph)
        mean_form.restore(subject.graph)
        preparation.restore(subject.graph)
        quantized.merge(subject.graph)
        kept = [
            dataclasses.replace(each, body=place)
            for each in (*subject.kept, *widen(subject.graph, subject.kernels))
        ]
        around |= {function.name for function in rewriter.functions.values()}
        inner, changed = list[Part](), list[Changed]()
        for body, own in subject.bodies:
            if not is_there(subject.graph, body):
                continue
            parts, inside = self._fused(own, around)
            inner += parts
            if any(part.rewriter.functions for part in parts):
                changed.append(Changed(body, own.graph, inside))
        stays = bool(subject.places) and not changed and not rewriter.functions
        account = Account(
            subject.original,
            subject.graph,
            chosen,
            () if stays else kept,
            () if stays else [f"{line} ({place})" if place else line for line in subject.changes],
            () if stays else rewriter.shared_weights,
            subject.point,
            subject.ranges.opt,
            subject.left,
            place,
            subject.quantized,
            provenance,
        )
        whole = estimates(subject.graph, account.predictions, account.others(archs), archs)
        return [Part(account, rewriter, whole), *inner], changed

    def tuned(self, subject: Subject) -> Tuning:
        """The results of tuning the subject and the bodies in it."""
        for each in subject:
            self._plan(each)
        return together(self._tunings)

    def _plan(self, subject: Subject) -> Plan:
        budget = self._options.budget
        if budget is not None:
            left = budget - (time.monotonic() - self._start)
            options = dataclasses.replace(self._options, budget=max(left, 1e-3))
        else:
            options = self._options
        chosen, tuning = plan_with_timings(
            subject, self._archs, options, self._locked, self._progress, self._watch
        )
        self.used.append(chosen.used)
        if tuning is not None:
            self._tunings.append((placed(subject.places), tuning))
        return chosen


def without_skipped(
    planner: Planner, subject: Subject, options: Options
) -> tuple[Subject, list[Part]]:
    """The subject with the nodes that stay as `options` ask, and its graphs after all stages.
    Raises InputError for names and rules that are unknown."""
    skips = Skips.of(options)
    names = frozenset(name for each in subject for name in each.names)
    planned_first = skips.needs_plan(names)
    skipped = frozenset(skips.nodes) & names
    if skipped and not planned_first:
        subject = subject.without(options, skipped)
    parts = planner.fused(subject)
    if not planned_first:
        return subject, parts
    skips.check(names, _rows(parts))
    while more := (skipped | skips.sources(_rows(parts))) - subject.skipped:
        subject = subject.without(options, subject.skipped | more)
        parts = planner.fused(subject)
    return subject, parts


def _rows(parts: Sequence[Part]) -> list[Fused]:
    """The fused nodes of all graphs."""
    return [row for part in parts for row in part.account.fused]


def _estimates(parts: Sequence[Part]) -> tuple[Estimate, ...]:
    """The predicted times of the main graph and of each body once, for each architecture."""
    each = zip(*(part.estimates for part in parts), strict=True)
    return tuple(
        Estimate(
            found[0].arch,
            sum(estimate.ours_us for estimate in found),
            sum(estimate.ort_us for estimate in found),
        )
        for found in each
    )


def _feeds(original: ModelProto, subject: Subject, options: Options) -> Feeds:
    """The inputs to measure the whole model with: the user's, else random ones of the sizes that
    decide what is fused."""
    if options.inputs is not None:
        return read_feeds(Path(options.inputs), original)
    inputs = {value.name: tensor_type(value.type)[1] for value in graph_inputs(original)}
    sizes = {
        name: [size for size in subject.point.get(name, shape) or () if isinstance(size, int)]
        for name, shape in inputs.items()
        if shape is not None
    }
    return drawn(original, sizes, options.seed)


def _speed(
    source: Source,
    original: ModelProto,
    output: Output,
    feeds: Feeds,
    progress: Callable[[str], None] | None,
) -> Benchmark:
    """The times of the staged model and of ONNX Runtime's best on the original, whose file is
    written first if it is in memory."""
    with tempfile.TemporaryDirectory(prefix="onnxbolt-") as directory:
        path = Path(directory, "original.onnx")
        if isinstance(source, ModelProto):
            save_model(original, path)
        else:
            path = Path(source)
        return bench.race(path, output.model, feeds, progress or (lambda _: None), Stream())


def _written_as_it_is(
    original: ModelProto, output: Output, report: Report, options: Options
) -> Report:
    """Write a model that the stages cannot work on with no change but its metadata, so that it is
    deployed like any other."""
    if short := report.short_of(options.require_fused):
        raise CoverageError(short, report)
    if options.min_speedup is not None and options.min_speedup > 1:
        raise SpeedError(
            f"the model would be written unchanged, so it is as fast as before, and not"
            f" {option('min_speedup', options.min_speedup)} times; {report.nothing_fused}",
            report,
        )
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
    with (
        learned_from(options.cost_model),
        registered(options.custom_ops),
        opened(source) as given,
    ):
        original, _ = resolved(promised(given, options)[0])
        planner = Planner(archs, options, NOTHING, progress, watch)
        return planner.tuned(Subject.of(original, options, archs=archs))


def tune_together(
    sources: Iterable[Source],
    options: Options,
    watch: Progress | None = None,
) -> Tuning:
    """Measure the kernels of several models in one run, each problem once, and those first that
    take most of the time of all models; the times are kept in the tuning database.

    Models that cannot be used are left out: `optimize` tells why. Raises InputError if there is no
    GPU.
    """
    extensions.load()
    archs = [by_name(name).number for name in options.archs or default_archs()]
    kernels = kernels_of(options.ort_version)
    problems: list[Problem] = []
    with learned_from(options.cost_model), registered(options.custom_ops):
        for source in sources:
            with contextlib.suppress(OnnxboltError), opened(source) as given:
                original, _ = resolved(promised(given, options)[0])
                problems += kernel_problems(
                    Subject.of(original, options, kernels, archs=archs), archs
                )
        return tune_kernels(problems, archs, options, watch)


def promised(model: ModelProto, options: Options) -> tuple[ModelProto, list[str]]:
    """The model that promises no more and no less about its inputs than the options say, with lines
    for the report."""
    model, fixed = frozen(model, options.freeze_initializers)
    model, unequal = unshared(model, options)
    return model, [*fixed, *unequal]


def default_archs() -> tuple[str, ...]:
    """The local GPU's architecture; without a GPU, one of each of the two common generations."""
    local = gpu.local_arch()
    return (local,) if local else ("sm_80", "sm_90a")
