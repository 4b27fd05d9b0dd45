"""RepVGG with other activations, and deepened by 1x1 convolutions, against the plain one: Bolt's
tables 4, 5 and 6, in one run. Times are measured here; accuracies are the paper's.

    # all of VARIANTS; writes results/variants-<gpu>.json
    python -m benchmarks.variants
    python -m benchmarks.variants repvggaug_a0_deploy --tune --budget 40s --cache DIR --append

Each variant is compared with the plain RepVGG of its size. All models are optimized alike and run
by ONNX Runtime in a CUDA graph each, in turns. Where a session's buffers lie in memory changes a
model's time by up to 2%: sessions are opened several times, and the times of all count. Answers are
checked against the fp32 model without TF32. The ratio is the plain model's time over the variant's;
`values.of_sessions` has its reciprocal for each opening, and `planned` times are those that the
plan of each model sums up.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnxbolt
from benchmarks.bolt import BOLT
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
VARIANTS = tuple(BOLT)
_OPENINGS, _ROUNDS, _RUNS = 5, 10, 20


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    names = tuple(chosen.models) or VARIANTS
    if unknown := set(names) - set(VARIANTS):
        parser.error(f"no variant {', '.join(sorted(unknown))}: choose from {', '.join(VARIANTS)}")
    stream = stream_for(chosen, parser)
    rows = list[Row]()
    for plain in dict.fromkeys(map(plain_of, names)):
        group = [name for name in names if plain_of(name) == plain]
        rows += measured(plain, group, chosen, stream)
    write_results("variants", rows, chosen.out, chosen.append)
    return 0


def plain_of(name: str) -> str:
    """The plain RepVGG of the variant's size."""
    return f"repvgg_{name.split('_')[1]}_deploy"


def measured(
    plain: str, names: Sequence[str], chosen: argparse.Namespace, stream: Stream | None
) -> list[Row]:
    """A row for each variant. Raises RuntimeError where an answer is wrong."""
    feeds = seeded_feeds(build(plain, chosen.batch))
    with tempfile.TemporaryDirectory() as scratch:
        found = {
            name: _optimized(name, Path(scratch), chosen, stream is not None)
            for name in (plain, *names)
        }
        sources = {name: source for name, (source, _) in found.items()}
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
    peer_us, rows = samples[plain].median, []
    planned = {name: us for name, (_, us) in found.items()}
    for name in names:
        mine = samples[name]
        values = {
            "configurations": "measured" if chosen.tune else "predicted",
            "times_plain": round(mine.median / peer_us, 3),
            "of_sessions": [
                round(opening[name].median / opening[plain].median, 3) for opening in openings
            ],
            "planned_us": round(planned[name], 2),
            "planned_times_plain": round(planned[name] / planned[plain], 3),
            "images_per_s": round(chosen.batch / mine.median * 1e6),
        }
        rows.append(
            Row(
                name,
                chosen.batch,
                "fp16",
                round(mine.median, 2),
                plain,
                round(peer_us, 2),
                round(peer_us / mine.median, 3),
                spread=round(mine.spread, 4),
                error=float(f"{errors[name]:.3e}"),
                clock_mhz=clock.mhz,
                values=values,
            )
        )
        print(
            f"{name}: {mine.median:.1f} us, {values['times_plain']} times {plain}'s"
            f" {peer_us:.1f} us",
            flush=True,
        )
    return rows


def _optimized(
    name: str, directory: Path, chosen: argparse.Namespace, measures: bool
) -> tuple[Source, float]:
    """The optimized model, and the microseconds that its plan takes."""
    out = directory / f"{name}.onnx"
    tuning = {"tune": True, "budget": chosen.budget} if chosen.tune else {}
    arch = gpu.local_arch() or "sm_90a"
    report = onnxbolt.optimize(
        build(name, chosen.batch, "fp16"),
        out,
        verify=False,
        archs=(arch,),
        library=measures,
        **tuning,
    )
    library = onnxbolt.get_library_path(out) if measures else None
    return Source(name, out.read_bytes(), library), report.whole[0].ours_us


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
