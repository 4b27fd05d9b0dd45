"""The plan of dynamic programming against the greedy one, fp16: the same model planned both ways
with the same measurements, and run in turns in one process on one GPU.

    # all of MODELS: tune, measure, write results/plans-<gpu>.json
    python -m benchmarks.plans --tune --cache DIR
    python -m benchmarks.plans vit_base-1 resnet50-32 --tune --budget 45s --append
    # a look at predicted plans, without a GPU
    python -m benchmarks.plans detr_mha-1 --provider cpu --quick

With --tune each plan is tuned first, since each may need kernels that the other lacks. Then both
are made anew from all that is in the database. Names are those of benchmarks/transformers.py
(PyTorch's exports), of benchmarks/end_to_end.py, and of benchmarks/fixed_sizes.py. Where both plans
are the same, the row says so: its ratio is noise. A difference is certain if it exceeds 2% and
three median absolute deviations of each side.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import ModelProto

from benchmarks import exports, fixed_sizes, targets
from benchmarks.common import Row, check_names
from benchmarks.end_to_end import FULL, QUICK, Measured, device_ratio, in_turns, measure_all, told
from benchmarks.whole_models import (
    add_options,
    add_tuning_options,
    checked_error,
    exact_outputs,
    seeded_feeds,
    stream_for,
)
from models import build
from onnxbolt import library, pipeline
from onnxbolt.gpu import local_arch
from onnxbolt.measurements.records import wins
from onnxbolt.measurements.timings import NOTHING, Timings
from onnxbolt.options import Options
from onnxbolt.report import Report
from onnxbolt.runtime import get_library_path
from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.library import compiled
from onnxbolt.tune.lockfile import Lock
from onnxbolt.tune.sessions import Arrays, Sample, Source, search

DYNAMIC, GREEDY = "dynamic programming", "greedy plan"
# schedules that follow from times, and none at all
_DECIDED = {DYNAMIC: NOTHING, GREEDY: Timings(schedules={})}
MODELS = (
    "vit_base-1",
    "bert_base-32x40",
    "swin_tiny-32",
    "detr_r50_e6-1",
    "setr_naive-1",
    "resnet50-32",
    "retinanet_r50",
    "unet",
)


@dataclass(frozen=True)
class Case:
    """A model to plan, which `given` makes; `exact` makes the fp32 model of it, and `feeds` the
    inputs of that. `selects`: the model selects boxes by scores, so that rounding may exchange
    some, answers are not compared, and no CUDA graph is possible."""

    target: Measured
    given: Callable[[], ModelProto]
    exact: Callable[[ModelProto], ModelProto]
    feeds: Callable[[ModelProto], Arrays]
    selects: bool = False

    @property
    def model(self) -> str:
        return self.target.model

    @property
    def batch(self) -> int:
        return self.target.batch


def _exported(target: exports.Exported) -> Case:
    return Case(
        target,
        lambda: exports.load(exports.STORED, target),
        exports.widened,
        lambda model: exports.feeds_for(model, target),
    )


def _built(target: targets.Target) -> Case:
    return Case(
        target,
        lambda: build(target.model, target.batch, "fp16"),
        lambda _: build(target.model, target.batch),
        seeded_feeds,
    )


def _of_fixed_size(target: fixed_sizes.Target) -> Case:
    selects = target.subject.selects
    return Case(target, target.given, lambda model: model, target.feeds, selects)


CASES = {
    **{name: _exported(target) for name, target in exports.BY_NAME.items()},
    **{target.name: _built(target) for target in targets.TARGETS},
    **{name: _of_fixed_size(target) for name, target in fixed_sizes.TARGETS.items()},
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    check_names(chosen.models, CASES, parser)
    stream = stream_for(chosen, parser)

    def measure(case: Case, scratch: Path) -> Row:
        return _measure(case, scratch, stream, chosen)

    cases = [CASES[name] for name in chosen.models or MODELS]
    everything = [CASES[name] for name in MODELS]
    return measure_all("plans", cases, everything, measure, chosen)


def _measure(case: Case, scratch: Path, stream: Stream | None, chosen: argparse.Namespace) -> Row:
    """Raises RuntimeError for a wrong answer."""
    effort, given = QUICK if chosen.quick else FULL, case.given()
    exact = case.exact(given)
    feeds = case.feeds(exact)
    reports, sources = _both(given, scratch, stream is not None, chosen)
    graphs = (False,) if case.selects else (False, True)
    found = {
        label: search([source], feeds, stream, effort.search_runs, graphs)
        for label, source in sources.items()
    }
    samples, device, clock_mhz = in_turns(found, None, feeds, stream, effort, not case.selects)
    error = None
    if not case.selects:
        reference = exact_outputs(exact, feeds, stream)
        error = max(checked_error(name, found[name].session, reference) for name in found)
    totals, ours, greedy = reports[DYNAMIC].planning, samples[DYNAMIC], samples[GREEDY]
    return Row(
        case.model,
        case.batch,
        "fp16",
        round(ours.median, 2),
        GREEDY,
        round(greedy.median, 2),
        round(greedy.median / ours.median, 4),
        spread=round(ours.spread, 4),
        error=None if error is None else float(f"{error:.3e}"),
        clock_mhz=clock_mhz,
        config=str(found[DYNAMIC].setting),
        values={
            "configurations": "measured" if chosen.tune else "predicted",
            "difference": _difference(sources, ours, greedy),
            **({"planning": dataclasses.asdict(totals)} if totals else {}),
            "nodes": {label: len(report.fused) for label, report in reports.items()},
            "peer_config": str(found[GREEDY].setting),
            **device_ratio("device_ratio", device[GREEDY], device[DYNAMIC]),
            "peer_spread": round(greedy.spread, 4),
        },
    )


def _both(
    given: ModelProto, scratch: Path, on_gpu: bool, chosen: argparse.Namespace
) -> tuple[dict[str, Report], dict[str, Source]]:
    """The model by each plan, made from all measurements after both are tuned."""
    options = Options(
        precision="fp16",
        archs=(local_arch() or "sm_90a",),
        fuse=chosen.fuse,
        verify=False,
        library=False,
    )
    if chosen.tune:
        for label in _DECIDED:
            _tune(label, given, dataclasses.replace(options, tune=True, budget=chosen.budget))
    reports, sources = dict[str, Report](), dict[str, Source]()
    for label in _DECIDED:
        out = scratch / f"{label.partition(' ')[0]}.onnx"
        reports[label] = _planned(label, given, out, options)
        sources[label] = Source(label, out.read_bytes(), library_of(out) if on_gpu else None)
    return reports, sources


def _difference(sources: Mapping[str, Source], ours: Sample, greedy: Sample) -> str:
    """The verdict on the plan of dynamic programming in words, from what was measured."""
    if sources[DYNAMIC].model == sources[GREEDY].model:
        return "same plan"
    if wins(ours.median, ours.mad, greedy.median, greedy.mad):
        return "faster"
    slower = wins(greedy.median, greedy.mad, ours.median, ours.mad)
    return "slower" if slower else "within noise"


def _planned(label: str, given: ModelProto, out: Path | None, options: Options) -> Report:
    return pipeline.optimize_as_decided(given, out, options, Lock(), _DECIDED[label])


def _tune(label: str, given: ModelProto, options: Options) -> None:
    """Fill the database with what a plan needs."""
    if (tuning := _planned(label, given, None, options).tuning) is not None:
        print(f"{label}: {told(tuning)}", flush=True)


def library_of(model: Path) -> Path:
    """The library of a model, linked from what was compiled as candidates as far as possible."""
    manifest = library.manifest_of_model(onnx.load(model))
    path = get_library_path(model)
    library.build(manifest, path, compiled=compiled(manifest.instances))
    return path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(MODELS)}")
    add_options(parser, "plans")
    add_tuning_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
