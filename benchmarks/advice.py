"""`onnxbolt explain` held to its word: models that are unfriendly on purpose, and two that nothing
helps, each as it is and with every advice followed, on one GPU, in one run.

    # explain, build, measure; writes results/advice-<gpu>.json
    python -m benchmarks.advice --tune --budget 40s --cache DIR
    python -m benchmarks.advice channels_46 --provider cpu --out FILE

Each advice is a row: ours is the model with the advice followed, the peer is the model as it is,
both optimized alike and run in turns with the fastest settings of ONNX Runtime. All times are those
of the device, as predictions are (onnxbolt/advice/measuring.py). `predicted` times are from before
anything of the model was measured, unless the cache knew its kernels (`known`). `planned` times are
those of the very plans that were built and measured: with --tune, sums of measured kernels and of
predicted times of all else. Errors of these sums are `off`: 0.05 is a prediction that is 5% too
short. `whole` has what tuning found each build to take beside ONNX Runtime, the regions that it
left to that, and why nothing was fused.

No layers are added (the kind of advice "deepening"). Nothing is verified: references in float64
take minutes at these sizes, and tests verify these layers at smaller ones. Each model's rows are
written as soon as they are measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

import onnx

from benchmarks.common import ClockSampler, Row, check_names, time_argument
from benchmarks.documents import write_results
from benchmarks.whole_models import add_options, stream_for
from models import build
from models.unfriendly import UNFRIENDLY, unfriendly
from onnxbolt import gpu
from onnxbolt.advice import Advice, Explanation, explained
from onnxbolt.advice.explanation import Measured
from onnxbolt.options import Choices, Options
from onnxbolt.tune.cuda import Stream

_BATCHES = {"heads_of_72": 8, "opset_11_reshapes": 8}
FRIENDLY = {"vit_b16": 32, "dlrm_mlp": 16384}  # with their batches
MODELS = (*UNFRIENDLY, *FRIENDLY)
_BATCH = 32
AS_IS = "as it is"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    names = tuple(chosen.models) or MODELS
    check_names(names, MODELS, parser)
    stream = stream_for(chosen, parser)
    for number, name in enumerate(names):
        rows = measured(name, chosen, stream)
        write_results("advice", rows, chosen.out, chosen.append or number > 0)
    return 0


def built(name: str) -> tuple[onnx.ModelProto, int]:
    """The model in fp16, and its batch; one of an open batch is planned for that one."""
    if name in UNFRIENDLY:
        batch = _BATCHES.get(name, _BATCH)
        return unfriendly(name, batch), batch
    return build(name, FRIENDLY[name], "fp16"), FRIENDLY[name]


def measured(name: str, chosen: argparse.Namespace, stream: Stream | None) -> list[Row]:
    """A row for each advice; one without a second time where there is none."""
    model, batch = built(name)
    tuning = Choices(tune=True, budget=chosen.budget) if chosen.tune else Choices()
    options = Options(archs=(gpu.local_arch() or "sm_90a",), verify=False)
    with ClockSampler() as clock:
        found = explained(
            model,
            (),
            True,
            None,
            dataclasses.replace(options, **tuning),
            stream,
            lambda line: print(f"{name}: {line}", flush=True),
            deepen=False,
        )
    advices: list[Advice | None] = [*found.advices]
    if found.total is not None:
        advices.append(found.total)
    rows = [_row(name, batch, chosen.tune, found, advice) for advice in advices or [None]]
    for row in rows:
        print(f"{row.name}: {row.peer_us} us as it is, {row.ours_us} us changed", flush=True)
        print(f"{row.name}: {json.dumps(row.values['whole'])}", flush=True)
    return [dataclasses.replace(row, clock_mhz=clock.mhz) for row in rows]


def _row(name: str, batch: int, tuned: bool, found: Explanation, advice: Advice | None) -> Row:
    before = found.measured
    assert before is not None
    values = {
        "known": found.measured_times,
        "configurations": "measured" if tuned else "predicted",
        "advice": advice.words if advice else "",
        "needs_retraining": advice.needs_retraining if advice else None,
        "predicted_before_us": round(found.ms[0] * 1000, 2),
        "planned_before_us": _us(before.planned_ms),
        "off_before": _off(before),
        "whole": {AS_IS: _whole(before)},
    }
    if advice is None or advice.measured is None:
        return Row(name, batch, "fp16", None, AS_IS, _us(before.ms), values=values)
    after = advice.measured
    values |= {
        "predicted_us": round(advice.after_ms[0] * 1000, 2),
        "predicted_ratio": round(advice.before_ms[0] / advice.after_ms[0], 3),
        "planned_us": _us(after.planned_ms),
        "planned_ratio": (
            round(before.planned_ms / after.planned_ms, 3)
            if before.planned_ms and after.planned_ms
            else None
        ),
        "off": _off(after),
        "whole": {AS_IS: _whole(before), "changed": _whole(after)},
    }
    return Row(
        f"{name}, {advice.key}",
        batch,
        "fp16",
        _us(after.ms),
        AS_IS,
        _us(before.ms),
        round(before.ms / after.ms, 3),
        spread=round(after.spread, 4),
        values=values,
    )


def _us(ms: float | None) -> float | None:
    return None if ms is None else round(ms * 1000, 2)


def _off(measured: Measured) -> float | None:
    """The error of the plan's sum."""
    return round(measured.ms / measured.planned_ms - 1, 4) if measured.planned_ms else None


def _whole(measured: Measured) -> dict[str, Any]:
    """The times of a build and of ONNX Runtime while it was tuned, and the regions that were left
    to ONNX Runtime; empty for a build that was not compared."""
    found: dict[str, Any] = dataclasses.asdict(measured.whole) if measured.whole else {}
    return found | ({"nothing_fused": measured.nothing_fused} if measured.nothing_fused else {})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(MODELS)}")
    parser.add_argument(
        "--tune", action="store_true", help="measure kernels instead of predicting them"
    )
    parser.add_argument(
        "--budget",
        type=time_argument,
        metavar="TIME",
        help="with --tune: at most so long for each model and its changes together, e.g. 2m",
    )
    add_options(parser, "advice")
    return parser


if __name__ == "__main__":
    sys.exit(main())
