"""Whole models: onnxbolt against ONNX Runtime at its best, on one GPU, in one run; PyTorch at its best beside them.

    python -m benchmarks.end_to_end --tune --cache DIR     # optimize, tune, measure, write results/end_to_end-<gpu>.json
    python -m benchmarks.end_to_end --tune --cache DIR --budget 90s --missing --begin-within 5m   # in parts, as often as it takes
    python -m benchmarks.end_to_end --prepare DIR --arch sm_90a   # on a machine without a GPU: compile the libraries only
    python -m benchmarks.end_to_end --prepared DIR         # measure with these

ONNX Runtime's best is the fastest of {NHWC, NCHW} x {EXHAUSTIVE, HEURISTIC} x {CUDA graph, none}, cuDNN with all the
workspace it wants and tuned GEMMs, of that with cuDNN's fused bias, with fp16 or fp32 graph inputs and outputs, and for transformers
also of what onnxruntime.transformers.optimizer makes of them. onnxbolt is given the same models (of the two inputs and outputs the fp16
ones), and its results get the same settings to choose from. Weights and inputs are seeded; errors are against the fp32 model without
TF32. DIR is an ordinary cache directory of onnxbolt's: it may be carried to another machine of the same kind.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
from rich.console import Console
from rich.table import Table

import onnxbolt
from benchmarks import peers
from benchmarks.common import ClockSampler, Row, time_argument
from benchmarks.device_time import device_times
from benchmarks.documents import result_path, write_results
from benchmarks.floors import floor_us
from benchmarks.whole_models import error_of, exact_outputs, seeded_feeds, stream_for
from models import build
from onnxbolt.archs import get
from onnxbolt.gpu import local_arch
from onnxbolt.options import ARCHS, arch_number
from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.sessions import Measure, Source, interleave, search
from onnxbolt.tune.summary import Tuning


@dataclass(frozen=True)
class Target:
    """A model at a batch; `transformer` is onnxruntime.transformers' name for its kind."""

    model: str
    batch: int
    transformer: str = ""

    @property
    def name(self) -> str:
        return f"{self.model}-{self.batch}"


TARGETS = (
    Target("resnet50", 32),
    Target("vgg16", 32),
    Target("repvgg_a0_deploy", 32),
    Target("mobilenet_v3_large", 32),
    *(Target(model, 1) for model in ("resnet50", "vgg16", "repvgg_a0_deploy", "mobilenet_v3_large")),
    Target("bert_base", 32, "bert"),
    Target("vit_b16", 1, "vit"),
    Target("vit_b16", 32, "vit"),
    *(Target(model, rows) for model in ("dlrm_mlp", "dlrm_bottom", "dlrm_top", "dcn_v2") for rows in (2048, 16384)),
)


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    search_runs: int
    rounds: int
    runs: int


FULL, QUICK = Effort(20, 10, 20), Effort(2, 2, 3)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.tune and (chosen.prepare or chosen.prepared):
        parser.error("--tune chooses kernels while it measures: a library cannot be prepared")
    targets = [t for t in TARGETS if not chosen.models or chosen.models & {t.model, t.name}]
    unknown = chosen.models - {name for t in TARGETS for name in (t.model, t.name)}
    if unknown:
        print(f"error: --models {','.join(sorted(unknown))}: choose from {', '.join(t.name for t in TARGETS)}", file=sys.stderr)
        return 2
    if chosen.prepare:
        for target in targets:
            _prepare(target, chosen.prepare, chosen)
        return 0
    stream = stream_for(chosen, parser)
    return _measure_all(targets, stream, chosen)


def _measure_all(targets: Sequence[Target], stream: Stream | None, chosen: argparse.Namespace) -> int:
    """Row by row, each written at once: what an interrupted run knows is kept, and a model that fails costs itself alone."""
    known = _known(chosen) if chosen.missing else set()
    rows: list[Row] = []
    start = time.monotonic()
    for target in targets:
        if target.name in known:
            continue
        if time.monotonic() - start > chosen.begin_within:
            print(f"{target.name}: not begun, {chosen.begin_within:.0f} s are over; --missing goes on from here", flush=True)
            break
        with tempfile.TemporaryDirectory() as scratch:
            try:
                rows.append(_measure(target, Path(scratch), stream, chosen))
            except Exception as error:  # whatever it is: the other models are still to be measured
                rows.append(Row(target.model, target.batch, "fp16", values={"failure": f"{type(error).__name__}: {error}"[:500]}))
        _print(rows)
        write_results("end_to_end", rows, chosen.out, chosen.append or chosen.missing)
    return 1 if any("failure" in row.values for row in rows) else 0


def _known(chosen: argparse.Namespace) -> set[str]:
    """The targets that the result file has a row of."""
    path = result_path("end_to_end", chosen.out)
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return {f"{row['name']}-{row['batch']}" for row in rows if "failure" not in row["values"]}


def _measure(target: Target, scratch: Path, stream: Stream | None, chosen: argparse.Namespace) -> Row:
    effort = QUICK if chosen.quick else FULL
    exact = build(target.model, target.batch)
    feeds = seeded_feeds(exact)
    reference = exact_outputs(exact, feeds, stream)
    inputs = {"onnxbolt": build(target.model, target.batch, "fp16"), **_optimized_by_onnxruntime(target, exact, scratch)}
    tunings: dict[str, Tuning] = {}
    ours = [_optimized(label, model, target, scratch, stream is not None, chosen, tunings) for label, model in inputs.items()]
    found = {"ours": search(ours, feeds, stream, effort.search_runs),
             "peer": search(_peers(target, inputs), feeds, stream, effort.search_runs)}
    whole_model = peers.whole_model(target.model, feeds, chosen.max_autotune) if stream else contextlib.nullcontext((None, {}))
    with whole_model as (pytorch, tried), ClockSampler() as clock:
        measures: dict[str, Measure] = {name: best.session.measure for name, best in found.items()}
        samples = interleave(measures | ({"pytorch": pytorch} if pytorch else {}), effort.rounds, effort.runs)
        device = device_times(found, feeds, stream, effort.rounds, effort.runs)
    errors = {name: error_of(best.session, reference) for name, best in found.items()}
    mine, peer = samples["ours"], samples["peer"]
    theirs = samples["pytorch"].median if pytorch else None
    return Row(
        target.model, target.batch, "fp16", round(mine.median, 2), f"onnxruntime {ort.__version__}, best", round(peer.median, 2),
        round(peer.median / mine.median, 3), round(floor_us(exact, get(arch_number(_arch(chosen)))), 2), round(mine.spread, 4),
        float(f"{errors['ours']:.3e}"), clock.mhz, f"{found['ours'].source.label}: {found['ours'].setting}",
        {
            "configurations": "measured" if chosen.tune else "predicted",
            "peer_config": f"{found['peer'].source.label}: {found['peer'].setting}",
            "peer_spread": round(peer.spread, 4),
            "peer_error": float(f"{errors['peer']:.3e}"),
            **device,
            "tried": found["ours"].tried | found["peer"].tried,
            **({"pytorch": tried} if tried else {}),
            **({"pytorch_us": round(theirs, 2), "pytorch_ratio": round(theirs / mine.median, 3)} if theirs else {}),
            **({"tuning": {label: _told(tuning) for label, tuning in tunings.items()}} if tunings else {}),
        },
    )


def _told(tuning: Tuning) -> dict[str, object]:
    """What tuning one model took, and the last word on the whole of it."""
    whole = {"ours_us": round(tuning.whole.ours_us, 1), "ort_us": round(tuning.whole.ort_us, 1),
             "dropped": len(tuning.whole.dropped)} if tuning.whole else None
    return {"seconds": round(tuning.seconds, 1), "ended_by": tuning.ended_by, "trials": tuning.trials, "kernels": tuning.kernels,
            "whole_model": whole}


def _optimized(label: str, model: onnx.ModelProto, target: Target, scratch: Path, compile_library: bool,
               chosen: argparse.Namespace, tunings: dict[str, Tuning]) -> Source:
    """Our model, with the library that was prepared, or one compiled now; `tunings` gets what tuning it did."""
    out = scratch / _file(label, target)
    library = onnxbolt.get_library_path(chosen.prepared / out.name if chosen.prepared else out)
    report = onnxbolt.optimize(model, out, library=compile_library and not chosen.prepared, **_options(chosen))
    if report.tuning is not None:
        tunings[label] = report.tuning
        print(f"{target.name}, {label}: {_told(report.tuning)}", flush=True)
    return Source(label, out.read_bytes(), library)


def _prepare(target: Target, directory: Path, chosen: argparse.Namespace) -> None:
    """Compile one model's libraries into `directory`. The models themselves are not kept: the same input gives the same bytes again."""
    directory.mkdir(parents=True, exist_ok=True)
    models = {"onnxbolt": build(target.model, target.batch, "fp16")}
    with tempfile.TemporaryDirectory() as scratch:
        models |= _optimized_by_onnxruntime(target, build(target.model, target.batch), Path(scratch))
    for label, model in models.items():
        out = directory / _file(label, target)
        onnxbolt.optimize(model, out, **_options(chosen))
        out.unlink()
        print(onnxbolt.get_library_path(out))


def _file(label: str, target: Target) -> str:
    return f"{target.name}.onnx" if label == "onnxbolt" else f"{target.name}-transformers.onnx"


def _options(chosen: argparse.Namespace) -> dict[str, object]:
    return {"archs": (_arch(chosen),), "fuse": chosen.fuse, "verify": False, **_tuning(chosen)}


def _optimized_by_onnxruntime(target: Target, exact: onnx.ModelProto, scratch: Path) -> dict[str, onnx.ModelProto]:
    """What onnxruntime.transformers.optimizer makes of a transformer, in fp16; nothing for other models."""
    if not target.transformer:
        return {}
    from onnxruntime.transformers import optimizer

    path = scratch / "fp32.onnx"
    onnx.save(exact, path)
    fused = optimizer.optimize_model(str(path), model_type=target.transformer, num_heads=12, hidden_size=768, opt_level=0, use_gpu=True)
    fused.convert_float_to_float16(keep_io_types=False)
    return {"onnxruntime.transformers": fused.model}


def _peers(target: Target, inputs: dict[str, onnx.ModelProto]) -> list[Source]:
    """What ONNX Runtime is given: the model in fp16 with fp16 and with fp32 inputs and outputs, and as its own tool optimizes it."""
    wide = build(target.model, target.batch, "fp16", io="fp32")
    models = {"fp16, fp16 inputs": inputs["onnxbolt"], "fp16, fp32 inputs": wide, **{n: m for n, m in inputs.items() if n != "onnxbolt"}}
    return [Source(label, model.SerializeToString()) for label, model in models.items()]


def _tuning(chosen: argparse.Namespace) -> dict[str, Any]:
    return {"tune": True, "budget": chosen.budget} if chosen.tune else {}


def _arch(chosen: argparse.Namespace) -> str:
    return chosen.arch or local_arch() or "sm_90a"


def _print(rows: Sequence[Row]) -> None:
    table = Table(title="microseconds, median")
    for heading in ("model", "batch", "onnxbolt", "ONNX Runtime", "ratio", "PyTorch", "floor", "spread", "error", "MHz", "settings"):
        table.add_column(heading, justify="left" if heading in ("model", "settings") else "right")
    for row in rows:
        cells = (row.name, row.batch, row.ours_us, row.peer_us, row.ratio, row.values.get("pytorch_us"), row.floor_us, row.spread,
                 row.error, row.clock_mhz)
        settings = row.values.get("failure") or f"{row.config} / {row.values['peer_config']}"
        table.add_row(*("" if cell is None else str(cell) for cell in cells), settings)
    with contextlib.suppress(statistics.StatisticsError):  # no model ran
        table.caption = f"geometric mean of the ratios: {statistics.geometric_mean(row.ratio for row in rows if row.ratio):.3f}"
    Console(width=180).print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=lambda text: set(text.split(",")), default=set(), help="names, or name-batch, with commas between")
    parser.add_argument("--out", type=Path, help="result file (default: benchmarks/results/end_to_end-<gpu>.json)")
    parser.add_argument("--append", action="store_true", help="keep the result file's rows of other models")
    parser.add_argument("--missing", action="store_true", help="measure what the result file lacks, and keep its rows")
    parser.add_argument("--begin-within", type=time_argument, default=float("inf"), metavar="TIME", help="begin no further model after it")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="onnxbolt's cache directory for this run")
    parser.add_argument("--max-autotune", action="store_true", help="PyTorch also by torch.compile, which takes minutes for each model")
    parser.add_argument("--prepare", type=Path, metavar="DIR", help="compile the libraries into DIR and stop")
    parser.add_argument("--prepared", type=Path, metavar="DIR", help="take the libraries from DIR")
    parser.add_argument("--arch", choices=ARCHS, help="default: the local GPU's, else sm_90a")
    parser.add_argument("--fuse", choices=("winning", "all"), default="winning")
    parser.add_argument("--tune", action="store_true", help="measure kernels instead of predicting them")
    parser.add_argument("--budget", type=time_argument, help="with --tune: at most so long for each model, e.g. 2m")
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda", help="cpu: function bodies, to try the script out")
    parser.add_argument("--quick", action="store_true", help="few runs: a look, no measurement")
    return parser


if __name__ == "__main__":
    sys.exit(main())
