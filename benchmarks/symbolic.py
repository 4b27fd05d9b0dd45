"""A symbolic batch, tuned for 1 to 64: one session for every batch against ONNX Runtime with the
best settings for each batch.

    python -m benchmarks.symbolic                     # writes results/symbolic-<gpu>.json
    python -m benchmarks.symbolic resnet50 --budget 2m --cache DIR --append

Ours is one session for all batches, 100 among them, which is beyond what was tuned for; it keeps a
CUDA graph for each. ONNX Runtime gets the model with the batch as a fixed size, a session for each
of its settings. Answers are checked against the fp32 model without TF32, and neither a new session
nor a compiler is there to help once the first answer is given.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnxruntime as ort

import onnxbolt
from benchmarks.common import ClockSampler, Row, check_names, time_argument
from benchmarks.documents import write_results
from benchmarks.whole_models import (
    add_options,
    checked_error,
    exact_outputs,
    seeded_feeds,
    stream_for,
)
from models import NAMES, build
from onnxbolt import gpu
from onnxbolt.options import cache_directory
from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.sessions import Arrays, Session, Setting, Source, interleave, search
from onnxbolt.verify.session import RUNTIME_ERRORS

MODELS = ("resnet50", "dlrm_bottom")
LEAST, OPT, MOST = 1, 32, 64
BATCHES = (1, 3, 17, 32, 64, 100)
_SEARCH_RUNS, _ROUNDS, _RUNS = 20, 10, 20


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    names = chosen.models or MODELS
    check_names(names, NAMES, parser)
    stream = stream_for(chosen, parser)
    rows: list[Row] = []
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            source = _optimized(name, Path(scratch), chosen, stream)
            with _empty_cache(Path(scratch) / "cache"):
                rows += measured(name, source, stream)
        write_results("symbolic", rows, chosen.out, chosen.append)
    return 0


def _optimized(
    name: str, directory: Path, chosen: argparse.Namespace, stream: Stream | None
) -> Source:
    """The model for all batches, tuned where there is a GPU."""
    model, out = build(name, "batch", "fp16"), directory / f"{name}.onnx"
    least, opt, most = (
        {value.name: tuple(_shape(value, batch)) for value in model.graph.input}
        for batch in (LEAST, OPT, MOST)
    )
    measures = stream is not None
    report = onnxbolt.optimize(
        model,
        out,
        verify=False,
        fuse=chosen.fuse,
        archs=(gpu.local_arch() or "sm_90a",),
        library=measures,
        tune=measures,
        budget=chosen.budget,
        progress=_say,
        min_shapes=least,
        opt_shapes=opt,
        max_shapes=most,
    )
    if report.tuning:
        _say(
            f"{name}: tuned in {report.tuning.seconds:.0f} s, {report.tuning.ended_by}; whole model"
            f" {report.tuning.whole}"
        )
    return Source("onnxbolt", out, onnxbolt.get_library_path(out) if measures else None)


def measured(name: str, source: Source, stream: Stream | None) -> list[Row]:
    """A row for each batch. Raises RuntimeError where an answer is wrong, or anything was
    compiled on the way."""
    ours: Session | None = None
    rows = []
    before = _compiled(source)
    for number, batch in enumerate(BATCHES):
        feeds = seeded_feeds(build(name, batch))
        ours = ours.rebound(feeds, number) if ours else _session(source, feeds, stream)
        rows.append(_row(name, batch, ours, feeds, stream))
        _say(
            f"{name}, batch {batch}: {rows[-1].ours_us} us, ONNX Runtime {rows[-1].peer_us} us,"
            f" error {rows[-1].error:.1e}"
        )
    if (after := _compiled(source)) != before:
        raise RuntimeError(
            f"{name}: compiled after the session was there: {sorted(map(str, after - before))}"
        )
    return rows


@contextmanager
def _empty_cache(directory: Path) -> Iterator[None]:
    """A cache for this process alone, so that a new file in it means that a session compiled, and
    not another benchmark."""
    before = os.environ.get("ONNXBOLT_CACHE_DIR")
    os.environ["ONNXBOLT_CACHE_DIR"] = str(directory)
    try:
        yield
    finally:
        del os.environ["ONNXBOLT_CACHE_DIR"]
        if before is not None:
            os.environ["ONNXBOLT_CACHE_DIR"] = before


def _session(source: Source, feeds: Arrays, stream: Stream | None) -> Session:
    """A session with CUDA graphs if they can be captured."""
    try:
        return Session(source, Setting(graph=stream is not None), feeds, stream)
    except RUNTIME_ERRORS as error:
        _say(f"without CUDA graphs, since {str(error).splitlines()[0][:200]}")
        return Session(source, Setting(), feeds, stream)


def _row(name: str, batch: int, ours: Session, feeds: Arrays, stream: Stream | None) -> Row:
    error = checked_error(
        f"{name}, batch {batch}", ours, exact_outputs(build(name, batch), feeds, stream)
    )
    peer = search(
        [Source("fp16", build(name, batch, "fp16").SerializeToString())],
        feeds,
        stream,
        _SEARCH_RUNS,
    )
    with ClockSampler() as clock:
        samples = interleave({"ours": ours.measure, "peer": peer.session.measure}, _ROUNDS, _RUNS)
    mine, theirs = samples["ours"], samples["peer"]
    return Row(
        name,
        batch,
        "fp16",
        round(mine.median, 2),
        f"onnxruntime {ort.__version__}, best",
        round(theirs.median, 2),
        round(theirs.median / mine.median, 3),
        spread=round(mine.spread, 4),
        error=float(f"{error:.3e}"),
        clock_mhz=clock.mhz,
        config="one session",
        values={"peer_config": str(peer.setting), "tuned_for": f"{LEAST} to {MOST}"},
    )


def _shape(value: onnx.ValueInfoProto, batch: int) -> list[int]:
    """The shape with `batch` for a symbolic dimension."""
    return [dim.dim_value or batch for dim in value.type.tensor_type.shape.dim]


def _compiled(source: Source) -> set[tuple[Path, int]]:
    """Everything that a compiler could have written, with its time."""
    paths = [path for path in cache_directory().rglob("*") if path.suffix in (".o", ".so")] + [
        source.library
    ] * bool(source.library)
    return {(path, path.stat().st_mtime_ns) for path in paths if path}


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(MODELS)}")
    parser.add_argument(
        "--budget",
        type=time_argument,
        metavar="TIME",
        help="of tuning each model, e.g. 2m (default: none)",
    )
    parser.add_argument("--fuse", choices=("winning", "all"), default="winning")
    add_options(parser, "symbolic")
    return parser


if __name__ == "__main__":
    sys.exit(main())
