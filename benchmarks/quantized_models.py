"""Whole models in 8 bits against our own fp16, in one process on one GPU, batch 32; ONNX Runtime on
the same quantized file, and on the model of floats at its best, beside them.

    # all of MODELS: quantize, tune, measure, write results/quantized_models-<gpu>.json
    python -m benchmarks.quantized_models --tune --cache DIR
    python -m benchmarks.quantized_models resnet50-32 --tune --budget 60s --append
    # precisions by time and error
    python -m benchmarks.quantized_models resnet50-32-auto --tune --budget 120s --append
    # a look, without a GPU
    python -m benchmarks.quantized_models mobilenet_v3_large-32 --provider cpu --quick

Weights are seeded, and so is the calibration data: two batches of the model's inputs. Both of our
models are made of the fp32 one, whose inputs and outputs they have; each gets half of the budget.
ONNX Runtime's best is that of the model in fp16 and in fp32, over the settings of
benchmarks/end_to_end.py; the quantized file gets the best of them, with and without CUDA graph.
Errors are relative to the fp32 model without TF32.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto

from benchmarks.common import Row, check_names
from benchmarks.end_to_end import (
    FULL,
    QUICK,
    Effort,
    device_ratio,
    in_turns,
    measure_all,
    optimized,
    told,
)
from benchmarks.whole_models import (
    add_options,
    add_tuning_options,
    error_of,
    exact_outputs,
    seeded_feeds,
    stream_for,
)
from models import build
from onnxbolt.output import quantized_path
from onnxbolt.precision import rounded_original
from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.lockfile import Lock
from onnxbolt.tune.sessions import Arrays, Found, Source, only, search
from onnxbolt.tune.summary import Tuning
from onnxbolt.verify.feeds import random_feeds
from onnxbolt.verify.session import RUNTIME_ERRORS

HALF, QDQ, FLOAT = "fp16", "ONNX Runtime, quantized file", "ONNX Runtime, floats"
_BATCHES = 2


@dataclass(frozen=True)
class Case:
    """A model at a batch, and the 8 bits that it gets."""

    architecture: str
    batch: int
    precision: str
    limit: float | None = None  # with precision "auto": the largest error

    @property
    def name(self) -> str:
        return f"{self.architecture}-{self.batch}{'-auto' if self.limit else ''}"

    @property
    def model(self) -> str:
        """The name of the row."""
        return f"{self.architecture}{', auto' if self.limit else ''}"

    @property
    def options(self) -> dict[str, Any]:
        """Those of `optimize`, without the calibration data."""
        limit = {"max_error": self.limit} if self.limit else {}
        return {"precision": self.precision, **limit}


CASES = {
    case.name: case
    for case in (
        Case("resnet50", 32, "int8"),
        Case("mobilenet_v3_large", 32, "int8"),
        Case("vit_b16", 32, "fp8"),
        Case("bert_large", 32, "fp8"),
        Case("resnet50", 32, "auto", 0.015),
        Case("mobilenet_v3_large", 32, "auto", 0.03),
        Case("vit_b16", 32, "auto", 0.03),
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    check_names(chosen.models, CASES, parser)
    stream = stream_for(chosen, parser)

    def measure(case: Case, scratch: Path) -> Row:
        return _measure(case, scratch, stream, chosen)

    cases = [CASES[name] for name in chosen.models or CASES]
    everything = list(CASES.values())
    return measure_all("quantized_models", cases, everything, measure, chosen)


def _measure(case: Case, scratch: Path, stream: Stream | None, chosen: argparse.Namespace) -> Row:
    effort, exact = QUICK if chosen.quick else FULL, build(case.architecture, case.batch)
    feeds = seeded_feeds(exact)
    tunings = dict[str, Tuning]()
    sources, qdq = _ours(case, exact, scratch, stream, chosen, tunings)
    found = {
        label: search([source], feeds, stream, effort.search_runs)
        for label, source in sources.items()
    }
    peers, missing = _peers(exact, qdq, feeds, stream, effort)
    found |= peers
    samples, device, clock_mhz = in_turns(found, None, feeds, stream, effort)
    reference = exact_outputs(exact, feeds, stream)
    errors = {label: error_of(each.session, reference) for label, each in found.items()}
    ours, half = samples[case.precision], samples[HALF]
    values: dict[str, Any] = {
        "configurations": "measured" if chosen.tune else "predicted",
        "errors": {label: float(f"{error:.3e}") for label, error in errors.items()},
        "fp16_spread": round(half.spread, 4),
        "peer_config": str(found[HALF].setting),
        **device_ratio("device_ratio", device[HALF], device[case.precision]),
        **_beside(samples[case.precision].median, found, {k: s.median for k, s in samples.items()}),
        **_front(scratch),
        **({"missing": missing} if missing else {}),
        "tuning": {label: told(tuning) for label, tuning in tunings.items()},
    }
    return Row(
        case.model,
        case.batch,
        case.precision,
        round(ours.median, 2),
        "our fp16 model",
        round(half.median, 2),
        round(half.median / ours.median, 4),
        spread=round(ours.spread, 4),
        error=float(f"{errors[case.precision]:.3e}"),
        clock_mhz=clock_mhz,
        config=str(found[case.precision].setting),
        values=values,
    )


def _ours(
    case: Case,
    exact: ModelProto,
    scratch: Path,
    stream: Stream | None,
    chosen: argparse.Namespace,
    tunings: dict[str, Tuning],
) -> tuple[dict[str, Source], Path]:
    """Both of our models, and the quantized file."""
    data = scratch / "calibration"
    data.mkdir()
    for number in range(_BATCHES):
        np.savez(data / f"{number}.npz", **_calibration(exact, number))  # type: ignore[arg-type]
    halved = argparse.Namespace(**{**vars(chosen), "budget": chosen.budget and chosen.budget / 2})
    made = dict[str, Source]()
    lock = _lock(scratch)
    for label, more in (
        (case.precision, {**case.options, "calibration": data, "lock": lock}),
        (HALF, {"precision": "fp16"}),
    ):
        out = scratch / f"{case.name}-{label}.onnx"
        made[label] = optimized(label, exact, out, stream, halved, tunings, **more)
    return made, quantized_path(scratch / f"{case.name}-{case.precision}.onnx")


def _lock(scratch: Path) -> Path:
    return scratch / "quantized.lock"


def _front(scratch: Path) -> dict[str, Any]:
    """The models that a search for precisions compared, and its choice."""
    (found,) = Lock.read(_lock(scratch)).quantized.values()
    if found.chosen is None:
        return {}
    points = [dataclasses.asdict(point) for point in found.points]
    return {"front": points, "chosen": dataclasses.asdict(found.chosen), "floats": found.floats}


def _calibration(exact: ModelProto, number: int) -> dict[str, np.ndarray]:
    """Other inputs of the same kind as those that are measured."""
    feeds = random_feeds(exact, number + 1)
    like = seeded_feeds(exact)
    return {name: like[name] if "mask" in name else each for name, each in feeds.items()}


def _peers(
    exact: ModelProto, qdq: Path, feeds: Arrays, stream: Stream | None, effort: Effort
) -> tuple[dict[str, Found], dict[str, str]]:
    """ONNX Runtime at its best, and on the quantized file, with the reason where that does not
    run."""
    half = rounded_original(exact, "fp16")
    floats = [Source("fp16", half.SerializeToString()), Source("fp32", exact.SerializeToString())]
    best = search(floats, feeds, stream, effort.search_runs)
    found, missing = {FLOAT: best}, dict[str, str]()
    tried = dict[float, Found]()
    if not qdq.exists():
        return found, {QDQ: "no product has 8 bits"}
    for graph in (False, True) if stream else (False,):
        setting = dataclasses.replace(best.setting, graph=graph)
        try:
            one = only(Source("quantized", qdq), setting, feeds, stream)
        except RUNTIME_ERRORS as error:
            missing[QDQ] = str(error).splitlines()[0][:300]
        else:
            tried[float(np.median(one.session.measure(effort.search_runs)))] = one
    if tried:
        found[QDQ] = tried[min(tried)]
        missing.pop(QDQ, None)
    return found, missing


def _beside(ours: float, found: Mapping[str, Found], us: Mapping[str, float]) -> dict[str, Any]:
    """The times of ONNX Runtime, and how they compare with ours."""
    values = dict[str, Any]()
    for label, name in ((FLOAT, "onnxruntime"), (QDQ, "onnxruntime_quantized")):
        if label in us:
            values |= {
                f"{name}_us": round(us[label], 2),
                f"{name}_ratio": round(us[label] / ours, 3),
                f"{name}_config": f"{found[label].source.label}: {found[label].setting}",
            }
    values["onnxruntime"] = ort.__version__
    return values


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(CASES)}")
    add_options(parser, "quantized_models")
    add_tuning_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
