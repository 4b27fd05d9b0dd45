"""Whole models: onnxbolt against ONNX Runtime at its best, on one GPU, in one run; PyTorch at its
best beside them.

    # optimize, tune, measure, write results/end_to_end-<gpu>.json
    python -m benchmarks.end_to_end --tune --cache DIR
    # in parts, at one commit, as benchmarks.all does it
    python -m benchmarks.end_to_end --models vgg16-32 --tune --cache DIR --append
    # on a machine without a GPU: compile the libraries only; then measure with these
    python -m benchmarks.end_to_end --prepare DIR --arch sm_90a
    python -m benchmarks.end_to_end --prepared DIR

ONNX Runtime's best is that of its CUDA execution provider: the fastest of {NHWC, NCHW} x
{EXHAUSTIVE, HEURISTIC} x {CUDA graph, none}, cuDNN with all the workspace it wants, of that with
cuDNN's fused bias, with fp16 or fp32 graph inputs and outputs, and of all forms of a transformer
(benchmarks/forms.py). Its `enable_gemm_auto_tune` is on: it chooses between cuBLAS's default
algorithm and kernels of ONNX Runtime's own for few rows, shape by shape, and searches none of
cuBLAS's other algorithms. onnxbolt is given the plain export, and for transformers, in columns of
their own, what onnxruntime.transformers.optimizer makes of it and PyTorch's export at opset 23; its
results get the same settings to choose from. A row's ratio is that of the plain export. Weights and
inputs are seeded; errors are against the fp32 model without TF32. DIR is an ordinary cache
directory of onnxbolt's: it may be carried to another machine of the same kind.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import onnx
import onnxruntime as ort
from rich.console import Console
from rich.table import Table

import onnxbolt
from benchmarks.common import ClockSampler, Row
from benchmarks.device_time import DeviceTime, device_times
from benchmarks.documents import write_results
from benchmarks.floors import floor_us
from benchmarks.forms import FUSED, PLAIN, exported_by_pytorch, fused_by_onnxruntime
from benchmarks.pytorch_peer import Tried, fastest_way, whole_model_on
from benchmarks.targets import TARGETS, Target
from benchmarks.whole_models import (
    add_options,
    add_racing_options,
    error_of,
    exact_outputs,
    seeded_feeds,
    stream_for,
)
from models import build
from onnxbolt.archs import by_name, names
from onnxbolt.errors import OnnxboltError
from onnxbolt.gpu import local_arch
from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.sessions import Arrays, Found, Measure, Sample, Source, interleave, search
from onnxbolt.tune.summary import Tuning


class Measured(Protocol):
    """A model at a batch."""

    @property
    def model(self) -> str: ...
    @property
    def batch(self) -> int: ...


Model = TypeVar("Model", bound=Measured)


@dataclass(frozen=True)
class Effort:
    """The length of a measurement. In each round a side runs for `settle` seconds before its runs
    are timed."""

    search_runs: int
    rounds: int
    runs: int
    settle: float


PEER, PYTORCH = "ONNX Runtime", "PyTorch"  # sides beside the forms that onnxbolt is given
# those beside the plain export, by the name of their values
_ALSO = {FUSED: "transformers", "PyTorch's export, opset 23": "opset23"}
FULL, QUICK = Effort(20, 10, 20, 0.2), Effort(2, 2, 3, 0.0)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.tune and (chosen.prepare or chosen.prepared):
        parser.error("--tune chooses kernels while it measures: a library cannot be prepared")
    targets = [t for t in TARGETS if not chosen.models or chosen.models & {t.model, t.name}]
    unknown = chosen.models - {name for t in TARGETS for name in (t.model, t.name)}
    if unknown:
        print(
            f"error: --models {','.join(sorted(unknown))}: choose from"
            f" {', '.join(t.name for t in TARGETS)}",
            file=sys.stderr,
        )
        return 2
    if chosen.prepare:
        for target in targets:
            _prepare(target, chosen.prepare, chosen)
        return 0
    stream = stream_for(chosen, parser)

    def measure(target: Target, scratch: Path) -> Row:
        return _measure(target, scratch, stream, chosen)

    return measure_all("end_to_end", targets, TARGETS, measure, chosen)


def measure_all(
    benchmark: str,
    targets: Sequence[Model],
    everything: Sequence[Measured],
    measure: Callable[[Model, Path], Row],
    chosen: argparse.Namespace,
) -> int:
    """Measure row by row and write each at once, so that an interrupted run keeps its rows, and a
    model that fails costs only its own. `everything`: the models that the result file is to have;
    `measure` gets a directory for its files. Returns the exit code."""
    rows: list[Row] = []
    planned = [(target.model, target.batch) for target in everything]
    for target in targets:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                rows.append(measure(target, Path(scratch)))
            except Exception as error:  # any failure: the other models are still to be measured
                rows.append(
                    Row(
                        target.model,
                        target.batch,
                        "fp16",
                        values={"failure": f"{type(error).__name__}: {error}"[:500]},
                    )
                )
        print_rows(rows)
        write_results(benchmark, rows, chosen.out, chosen.append, planned)
    return 1 if any("failure" in row.values for row in rows) else 0


def _measure(
    target: Target, scratch: Path, stream: Stream | None, chosen: argparse.Namespace
) -> Row:
    effort = QUICK if chosen.quick else FULL
    exact = build(target.model, target.batch)
    feeds = seeded_feeds(exact)
    reference = exact_outputs(exact, feeds, stream)
    models, missing = _forms(target, exact, feeds, scratch, stream)
    tunings: dict[str, Tuning] = {}
    found: dict[str, Found] = {}
    for form in (PLAIN, *(form for form in _ALSO if form in models)):
        try:
            source = _optimized(
                form, models[form], target, scratch, stream is not None, chosen, tunings
            )
            found[form] = search([source], feeds, stream, effort.search_runs)
        except (OnnxboltError, RuntimeError) as error:
            if form == PLAIN:
                raise
            missing[form] = f"{type(error).__name__}: {error}"[:300]
    found[PEER] = search(_peers(target, models), feeds, stream, effort.search_runs)
    thorough = not chosen.quick_compile
    with whole_model_on(stream, target.model, feeds, chosen.compile_within, thorough) as raced:
        pytorch, tried = raced()
        samples, device, clock_mhz = in_turns(found, pytorch, feeds, stream, effort)
    # PyTorch's export has weights of its own: its reference is ONNX Runtime's answer in fp16
    errors = {
        form: error_of(
            found[form].session,
            reference if form in (PLAIN, FUSED) else exact_outputs(model, feeds, stream),
        )
        for form, model in models.items()
        if form in found
    }
    row = compared(target, samples, device, found, errors)
    values = {**row.values, **facts(chosen, tried, missing, tunings)}
    floor = floor_us(exact, by_name(_arch(chosen)))
    return dataclasses.replace(row, floor_us=round(floor, 2), clock_mhz=clock_mhz, values=values)


def facts(
    chosen: argparse.Namespace,
    tried: Tried,
    missing: Mapping[str, str],
    tunings: Mapping[str, Tuning],
) -> dict[str, Any]:
    """Values that tell how a row was measured: onnxbolt's kernels and tuning, PyTorch's ways, and
    why a form is missing."""
    way = fastest_way(tried)
    return {
        "configurations": "measured" if chosen.tune else "predicted",
        **({"pytorch": tried} if tried else {}),
        **({"pytorch_way": way} if way else {}),
        **({"missing": missing} if missing else {}),
        **({"tuning": {form: told(tuning) for form, tuning in tunings.items()}} if tunings else {}),
    }


def in_turns(
    found: Mapping[str, Found],
    pytorch: Measure | None,
    feeds: Arrays,
    stream: Stream | None,
    effort: Effort,
    capture: bool = True,
) -> tuple[dict[str, Sample], dict[str, DeviceTime], int | None]:
    """The samples of each side, measured in turns, the device times of ONNX Runtime's sessions, and
    the median clock in MHz. `capture`: device times may be those of CUDA graphs."""
    measures: dict[str, Measure] = {name: best.session.measure for name, best in found.items()}
    if pytorch is not None:
        measures[PYTORCH] = pytorch
    with ClockSampler() as clock:
        samples = interleave(measures, effort.rounds, effort.runs, effort.settle)
        device = device_times(
            found, feeds, stream, effort.rounds, effort.runs, effort.settle, capture
        )
    return samples, device, clock.mhz


def compared(
    target: Measured,
    samples: Mapping[str, Sample],
    device: Mapping[str, DeviceTime],
    found: Mapping[str, Found],
    errors: Mapping[str, float],
    also: Mapping[str, str] = _ALSO,
    plain: str = PLAIN,
) -> Row:
    """The row of a measured model: onnxbolt's time of the form `plain` against the peers; other
    forms have fields of their own, whose names begin as `also` says. Forms without an error are
    not compared."""
    mine, peer = samples[plain], samples[PEER]
    queued = {"device_us": device[plain], "peer_device_us": device[PEER]}
    values: dict[str, Any] = {
        "peer_config": f"{found[PEER].source.label}: {found[PEER].setting}",
        "peer_spread": round(peer.spread, 4),
        **{name: round(time.us, 2) for name, time in queued.items()},
        **device_ratio("device_ratio", device[PEER], device[plain]),
    }
    if apart := [name for name, time in queued.items() if not time.queued]:
        values["not_queued"] = apart
    for form, name in also.items():
        if form in found:
            values |= {
                f"{name}_us": round(samples[form].median, 2),
                f"{name}_ratio": round(peer.median / samples[form].median, 3),
                **device_ratio(f"{name}_device_ratio", device[PEER], device[form]),
            }
        if form in errors:
            values[f"{name}_error"] = float(f"{errors[form]:.3e}")
    if PYTORCH in samples:
        pytorch = samples[PYTORCH].median
        values |= {
            "pytorch_us": round(pytorch, 2),
            "pytorch_ratio": round(pytorch / mine.median, 3),
        }
    ours = {
        name: us for form, best in found.items() if form != PEER for name, us in best.tried.items()
    }
    values["tried"] = {"onnxbolt": ours, "onnxruntime": dict(found[PEER].tried)}
    values["forms"] = _best_of_each_form(found[PEER].tried)
    return Row(
        target.model,
        target.batch,
        "fp16",
        round(mine.median, 2),
        f"onnxruntime {ort.__version__}, CUDA execution provider, best",
        round(peer.median, 2),
        round(peer.median / mine.median, 3),
        spread=round(mine.spread, 4),
        error=float(f"{errors[plain]:.3e}") if plain in errors else None,
        config=str(found[plain].setting),
        values=values,
    )


def device_ratio(name: str, peer: DeviceTime, mine: DeviceTime) -> dict[str, float]:
    """None where one of the times includes the host's."""
    return {name: round(peer.us / mine.us, 3)} if peer.queued and mine.queued else {}


def _best_of_each_form(tried: Mapping[str, float | str]) -> dict[str, float]:
    """Microseconds of each source that a search tried, with its fastest setting."""
    best: dict[str, float] = {}
    for name, us in tried.items():
        form = name.partition(": ")[0]
        if isinstance(us, float):
            best[form] = min(us, best.get(form, us))
    return best


def _forms(
    target: Target, exact: onnx.ModelProto, feeds: Arrays, scratch: Path, stream: Stream | None
) -> tuple[dict[str, onnx.ModelProto], dict[str, str]]:
    """The model in fp16 in every form, and the reason why a form is missing; PyTorch's exports need
    a GPU."""
    exports, missing = exported_by_pytorch(target, feeds, scratch) if stream else ({}, {})
    return {
        PLAIN: build(target.model, target.batch, "fp16"),
        **fused_by_onnxruntime(target, exact),
        **exports,
    }, missing


def optimized(
    label: str,
    model: onnx.ModelProto,
    out: Path,
    stream: Stream | None,
    chosen: argparse.Namespace,
    tunings: dict[str, Tuning],
    **options: Any,
) -> Source:
    """onnxbolt's model, written to `out`, with its library if there is a stream; `tunings` gets the
    facts of its tuning by `label`."""
    report = onnxbolt.optimize(
        model,
        out,
        library=stream is not None,
        archs=(local_arch() or "sm_90a",),
        verify=False,
        **{"fuse": chosen.fuse, **_tuning(chosen), **options},
    )
    if report.tuning is not None:
        tunings[label] = report.tuning
        print(f"{out.stem}, {label}: {told(report.tuning)}", flush=True)
    return Source(label, out.read_bytes(), onnxbolt.get_library_path(out))


def told(tuning: Tuning) -> dict[str, object]:
    """Facts about the tuning of one model, and the last message about the whole model."""
    whole = (
        {
            "ours_us": round(tuning.whole.ours_us, 1),
            "ort_us": round(tuning.whole.ort_us, 1),
            "dropped": len(tuning.whole.dropped),
        }
        if tuning.whole
        else None
    )
    return {
        "seconds": round(tuning.seconds, 1),
        "ended_by": tuning.ended_by,
        "trials": tuning.trials,
        "kernels": tuning.kernels,
        "whole_model": whole,
    }


def _optimized(
    label: str,
    model: onnx.ModelProto,
    target: Target,
    scratch: Path,
    compile_library: bool,
    chosen: argparse.Namespace,
    tunings: dict[str, Tuning],
) -> Source:
    """Our model with the prepared library, or with one that is compiled now; `tunings` gets the
    facts of its tuning."""
    out = scratch / _file(label, target)
    library = onnxbolt.get_library_path(chosen.prepared / out.name if chosen.prepared else out)
    report = onnxbolt.optimize(
        model, out, library=compile_library and not chosen.prepared, **_options(chosen)
    )
    if report.tuning is not None:
        tunings[label] = report.tuning
        print(f"{target.name}, {label}: {told(report.tuning)}", flush=True)
    return Source(label, out.read_bytes(), library)


def _prepare(target: Target, directory: Path, chosen: argparse.Namespace) -> None:
    """Compile one model's libraries into `directory`. The models themselves are not kept: the
    same input gives the same bytes again."""
    directory.mkdir(parents=True, exist_ok=True)
    models = {PLAIN: build(target.model, target.batch, "fp16")}
    models |= fused_by_onnxruntime(target, build(target.model, target.batch))
    for label, model in models.items():
        out = directory / _file(label, target)
        onnxbolt.optimize(model, out, **_options(chosen))
        out.unlink()
        print(onnxbolt.get_library_path(out))


def _file(label: str, target: Target) -> str:
    return f"{target.name}.onnx" if label == PLAIN else f"{target.name}-{_ALSO[label]}.onnx"


def _options(chosen: argparse.Namespace) -> dict[str, Any]:
    return {"archs": (_arch(chosen),), "fuse": chosen.fuse, "verify": False, **_tuning(chosen)}


def _peers(target: Target, models: Mapping[str, onnx.ModelProto]) -> list[Source]:
    """The models for ONNX Runtime: the model in fp16 with fp16 and with fp32 inputs and outputs,
    and its other forms."""
    wide = build(target.model, target.batch, "fp16", io="fp32")
    others = {form: model for form, model in models.items() if form != PLAIN}
    named = {f"{PLAIN}, fp16 inputs": models[PLAIN], f"{PLAIN}, fp32 inputs": wide, **others}
    return [Source(label, model.SerializeToString()) for label, model in named.items()]


def _tuning(chosen: argparse.Namespace) -> dict[str, Any]:
    return {"tune": True, "budget": chosen.budget} if chosen.tune else {}


def _arch(chosen: argparse.Namespace) -> str:
    return chosen.arch or local_arch() or "sm_90a"


def print_rows(rows: Sequence[Row]) -> None:
    table = Table(title="microseconds, median")
    for heading in (
        "model",
        "batch",
        "onnxbolt",
        "peer",
        "ratio",
        "PyTorch",
        "floor",
        "spread",
        "error",
        "MHz",
        "settings",
    ):
        table.add_column(heading, justify="left" if heading in ("model", "settings") else "right")
    for row in rows:
        cells = (
            row.name,
            row.batch,
            row.ours_us,
            row.peer_us,
            row.ratio,
            row.values.get("pytorch_us"),
            row.floor_us,
            row.spread,
            row.error,
            row.clock_mhz,
        )
        settings = row.values.get("failure") or f"{row.config} / {row.values['peer_config']}"
        table.add_row(*("" if cell is None else str(cell) for cell in cells), settings)
    with contextlib.suppress(statistics.StatisticsError):  # no model ran
        table.caption = (
            "geometric mean of the ratios:"
            f" {statistics.geometric_mean(row.ratio for row in rows if row.ratio):.3f}"
        )
    Console(width=180).print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--models",
        type=lambda text: set(text.split(",")),
        default=set(),
        help="names, or name-batch, with commas between",
    )
    parser.add_argument(
        "--prepare", type=Path, metavar="DIR", help="compile the libraries into DIR and stop"
    )
    parser.add_argument("--prepared", type=Path, metavar="DIR", help="take the libraries from DIR")
    parser.add_argument("--arch", choices=names(), help="default: the local GPU's, else sm_90a")
    add_options(parser, "end_to_end")
    add_racing_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
