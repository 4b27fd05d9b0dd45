"""The table of contents: one line per stage."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import onnx

from onnxbolt import gpu, library, precision
from onnxbolt.canonicalize import canonicalize
from onnxbolt.canonicalize.restore import restore
from onnxbolt.errors import AccuracyError
from onnxbolt.graph.exporter import export_model
from onnxbolt.graph.importer import check_versions, import_model, load_model
from onnxbolt.graph.shapes import infer
from onnxbolt.match.matcher import match
from onnxbolt.match.partition import partition
from onnxbolt.options import Options, arch_number
from onnxbolt.output import Output
from onnxbolt.plan.choose import plan
from onnxbolt.precision.widen import widen
from onnxbolt.report import Report
from onnxbolt.rewrite import rewrite
from onnxbolt.tune import lockfile
from onnxbolt.verify import verify

Source = str | Path | onnx.ModelProto


def optimize(source: Source, out: str | Path | None = None, *, options: Options | None = None,
             progress: Callable[[str], None] | None = None, **choices: object) -> Report:
    """Fuse `source`, and write the new model to `out` with its library beside it; without `out` nothing is written.

    `choices` are fields of `Options`. Raises InputError for what cannot be used as given, BuildError where compiling fails,
    AccuracyError where the answers differ by more than their limits; then no output is left (but for Options.keep_failed).
    FrozenError where the lock file lacks what Options.frozen needs.
    """
    options = dataclasses.replace(options or Options(), **choices)  # type: ignore[arg-type]
    lock = lockfile.open_for(options)
    names = options.archs or (lock.archs if options.frozen else default_archs())
    archs = [arch_number(name) for name in names]
    with Output(source, out) as output:
        original = _read(source)
        graph = import_model(original)
        infer(graph)
        changes = canonicalize(graph)
        kept = precision.convert(graph, options.precision)
        candidates, refusals = match(graph)
        chosen = plan(graph, partition(candidates), archs, options.fuse, lock.timings(options.frozen))
        rewriter = rewrite(graph, chosen.assignment, chosen.configs, archs, chosen.sources)
        restore(graph)
        kept += widen(graph)
        manifest = library.make_manifest(rewriter.ops, rewriter.instances)
        metadata = library.metadata_of(manifest, options.precision, archs)
        model = export_model(graph, list(rewriter.functions.values()), metadata)
        output.write(model, options.save_as_external_data)
        if options.library and manifest.ops:
            library.build(manifest, output.library, progress)
        report = Report.of(original, model, manifest, chosen, refusals, kept, changes, rewriter.shared_weights, options, archs)
        report = report.between(source, output.path)
        if options.verify:
            found = verify(original, output.model, inputs=options.inputs, atol=options.atol, rtol=options.rtol, seed=options.seed)
            report = report.verified(found)
        if report.passed or options.keep_failed:
            output.commit()
        if report.passed and options.lock and output.path and not options.frozen:
            lock.updated(chosen.used, options.precision, names).write(Path(options.lock))
    if not report.passed:
        raise AccuracyError(report.failure(), report)
    return report


def default_archs() -> tuple[str, ...]:
    """The local GPU's architecture; without a GPU one of each of the two common generations."""
    local = gpu.local_arch()
    return (local,) if local else ("sm_80", "sm_90a")


def _read(source: Source) -> onnx.ModelProto:
    if isinstance(source, onnx.ModelProto):
        check_versions(source)
        return source
    return load_model(Path(source))
