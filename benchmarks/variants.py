"""RepVGG-A0 with other activations, and deepened by 1x1 convolutions, against the plain one: Bolt's tables 4 and 5, in one run.

    python -m benchmarks.variants                       # all of VARIANTS; writes results/variants-<gpu>.json
    python -m benchmarks.variants repvggaug_a0_deploy --tune --budget 40s --cache DIR --append

All models are optimized alike and run by ONNX Runtime in a CUDA graph each, in turns. Answers are checked against the fp32 model
without TF32. The ratio is the plain model's time over the variant's.
"""
from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import onnxbolt
from benchmarks.common import ClockSampler, Row, time_argument, write_results
from models import build
from onnxbolt import gpu
from onnxbolt.tolerances import relative_l2
from onnxbolt.tune.cuda import CudaError, Stream
from onnxbolt.tune.sessions import Arrays, Session, Setting, Source, interleave

PLAIN = "repvgg_a0_deploy"
VARIANTS = ("repvgg_a0_deploy_hard_swish", "repvgg_a0_deploy_gelu", "repvgg_a0_deploy_softplus",
            "repvggaug_a0_deploy", "repvggaug_a0_deploy_hard_swish")
_LIMIT = 1e-2  # relative L2, of fp16 against fp32
_ROUNDS, _RUNS = 10, 20


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    names = tuple(chosen.models) or VARIANTS
    if unknown := set(names) - set(VARIANTS):
        parser.error(f"no variant {', '.join(sorted(unknown))}: choose from {', '.join(VARIANTS)}")
    try:
        stream = None if chosen.provider == "cpu" else Stream()
    except CudaError as error:
        print(f"error: {error}; --provider cpu tries the script out without one", file=sys.stderr)
        return 1
    if chosen.cache:
        os.environ["ONNXBOLT_CACHE_DIR"] = str(chosen.cache.resolve())
    write_results("variants", measured(names, chosen, stream), chosen.out, chosen.append)
    return 0


def measured(names: Sequence[str], chosen: argparse.Namespace, stream: Stream | None) -> list[Row]:
    """A row for each variant. Raises RuntimeError where an answer is wrong."""
    (image,) = build(PLAIN, chosen.batch).graph.input
    shape = [dim.dim_value for dim in image.type.tensor_type.shape.dim]
    feeds = {image.name: np.random.default_rng(0).standard_normal(shape).astype(np.float16).astype(np.float32)}
    with tempfile.TemporaryDirectory() as scratch:
        sources = {name: _optimized(name, Path(scratch), chosen, stream is not None) for name in (PLAIN, *names)}
        sessions = {name: Session(source, Setting(graph=stream is not None), feeds, stream) for name, source in sources.items()}
        errors = {name: _error(name, session, chosen.batch, feeds, stream) for name, session in sessions.items()}
        with ClockSampler() as clock:
            samples = interleave({name: session.measure for name, session in sessions.items()}, _ROUNDS, _RUNS)
    plain = samples[PLAIN].median
    rows = []
    for name in names:
        mine = samples[name]
        values = {"configurations": "measured" if chosen.tune else "predicted", "times_plain": round(mine.median / plain, 3)}
        rows.append(Row(name, chosen.batch, "fp16", round(mine.median, 2), PLAIN, round(plain, 2), round(plain / mine.median, 3),
                        spread=round(mine.spread, 4), error=float(f"{errors[name]:.3e}"), clock_mhz=clock.mhz, values=values))
        print(f"{name}: {mine.median:.1f} us, {values['times_plain']} times {PLAIN}'s {plain:.1f} us", flush=True)
    return rows


def _optimized(name: str, directory: Path, chosen: argparse.Namespace, measures: bool) -> Source:
    out = directory / f"{name}.onnx"
    tuning = {"tune": True, "budget": chosen.budget} if chosen.tune else {}
    arch = gpu.local_arch() or "sm_90a"
    onnxbolt.optimize(build(name, chosen.batch, "fp16"), out, verify=False, archs=(arch,), library=measures, **tuning)
    return Source(name, out.read_bytes(), onnxbolt.get_library_path(out) if measures else None)


def _error(name: str, session: Session, batch: int, feeds: Arrays, stream: Stream | None) -> float:
    exact = Source("fp32", build(name, batch).SerializeToString())
    reference = Session(exact, Setting(search="HEURISTIC", tf32=False), feeds, stream).outputs()
    error = max(map(relative_l2, session.outputs(), reference))
    if not error <= _LIMIT:
        raise RuntimeError(f"{name}: relative error {error:.2g} exceeds {_LIMIT}")
    return error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(VARIANTS)}")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tune", action="store_true", help="measure kernels instead of predicting them")
    parser.add_argument("--budget", type=time_argument, metavar="TIME", help="with --tune: at most so long for each model, e.g. 2m")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="onnxbolt's cache directory for this run")
    parser.add_argument("--out", type=Path, help="result file (default: benchmarks/results/variants-<gpu>.json)")
    parser.add_argument("--append", action="store_true", help="keep the result file's rows of other models")
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda", help="cpu: function bodies, to try the script out")
    return parser


if __name__ == "__main__":
    sys.exit(main())
