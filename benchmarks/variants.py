"""RepVGG-A0 with other activations, and deepened by 1x1 convolutions, against the plain one: Bolt's
tables 4 and 5, in one run.

    # all of VARIANTS; writes results/variants-<gpu>.json
    python -m benchmarks.variants
    python -m benchmarks.variants repvggaug_a0_deploy --tune --budget 40s --cache DIR --append

All models are optimized alike and run by ONNX Runtime in a CUDA graph each, in turns. Where a
session's buffers lie in memory changes a model's time by up to 2%: sessions are opened several
times, and the times of all count. Answers are checked against the fp32 model without TF32. The
ratio is the plain model's time over the variant's; `values.of_sessions` has its reciprocal for each
opening.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnxbolt
from benchmarks.common import ClockSampler, Row, time_argument
from benchmarks.documents import write_results
from benchmarks.whole_models import (
    add_options,
    checked_error,
    exact_outputs,
    seeded_feeds,
    stream_for,
)
from models import build
from onnxbolt import gpu
from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.sessions import Sample, Session, Setting, Source, interleave

PLAIN = "repvgg_a0_deploy"
VARIANTS = (
    "repvgg_a0_deploy_hard_swish",
    "repvgg_a0_deploy_gelu",
    "repvgg_a0_deploy_softplus",
    "repvggaug_a0_deploy",
    "repvggaug_a0_deploy_hard_swish",
)
_OPENINGS, _ROUNDS, _RUNS = 5, 10, 20


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    names = tuple(chosen.models) or VARIANTS
    if unknown := set(names) - set(VARIANTS):
        parser.error(f"no variant {', '.join(sorted(unknown))}: choose from {', '.join(VARIANTS)}")
    stream = stream_for(chosen, parser)
    write_results("variants", measured(names, chosen, stream), chosen.out, chosen.append)
    return 0


def measured(names: Sequence[str], chosen: argparse.Namespace, stream: Stream | None) -> list[Row]:
    """A row for each variant. Raises RuntimeError where an answer is wrong."""
    feeds = seeded_feeds(build(PLAIN, chosen.batch))
    with tempfile.TemporaryDirectory() as scratch:
        sources = {
            name: _optimized(name, Path(scratch), chosen, stream is not None)
            for name in (PLAIN, *names)
        }
        exact = {name: exact_outputs(build(name, chosen.batch), feeds, stream) for name in sources}
        openings: list[dict[str, Sample]] = []
        for _ in range(_OPENINGS):
            sessions = {
                name: Session(source, Setting(graph=stream is not None), feeds, stream)
                for name, source in sources.items()
            }
            errors = {
                name: checked_error(name, session, exact[name])
                for name, session in sessions.items()
            }
            with ClockSampler() as clock:
                openings.append(
                    interleave(
                        {name: session.measure for name, session in sessions.items()},
                        _ROUNDS,
                        _RUNS,
                    )
                )
    samples = {
        name: Sample(tuple(time for opening in openings for time in opening[name].times))
        for name in sources
    }
    plain, rows = samples[PLAIN].median, []
    for name in names:
        mine = samples[name]
        values = {
            "configurations": "measured" if chosen.tune else "predicted",
            "times_plain": round(mine.median / plain, 3),
            "of_sessions": [
                round(opening[name].median / opening[PLAIN].median, 3) for opening in openings
            ],
        }
        rows.append(
            Row(
                name,
                chosen.batch,
                "fp16",
                round(mine.median, 2),
                PLAIN,
                round(plain, 2),
                round(plain / mine.median, 3),
                spread=round(mine.spread, 4),
                error=float(f"{errors[name]:.3e}"),
                clock_mhz=clock.mhz,
                values=values,
            )
        )
        print(
            f"{name}: {mine.median:.1f} us, {values['times_plain']} times {PLAIN}'s {plain:.1f} us",
            flush=True,
        )
    return rows


def _optimized(name: str, directory: Path, chosen: argparse.Namespace, measures: bool) -> Source:
    out = directory / f"{name}.onnx"
    tuning = {"tune": True, "budget": chosen.budget} if chosen.tune else {}
    arch = gpu.local_arch() or "sm_90a"
    onnxbolt.optimize(
        build(name, chosen.batch, "fp16"),
        out,
        verify=False,
        archs=(arch,),
        library=measures,
        **tuning,
    )
    return Source(name, out.read_bytes(), onnxbolt.get_library_path(out) if measures else None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(VARIANTS)}")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument(
        "--tune", action="store_true", help="measure kernels instead of predicting them"
    )
    parser.add_argument(
        "--budget",
        type=time_argument,
        metavar="TIME",
        help="with --tune: at most so long for each model, e.g. 2m",
    )
    add_options(parser, "variants")
    return parser


if __name__ == "__main__":
    sys.exit(main())
