"""Inputs of varying sizes, as services get them: a size that a session has not seen before, and one
that it has.

    python -m benchmarks.varying                          # writes results/varying-<gpu>.json
    python -m benchmarks.varying unet resnet50 --tune --budget 2m --append
    python -m benchmarks.varying --provider cpu --quick   # a look, without a GPU

A time is that of a whole run as the application sees it: arrays on the host in, arrays on the host
out. Each side runs the same 40 seeded sizes once each, all of them new to it, and then up to five
times in other orders, as often as 20 seconds allow, but at least once; a revisited size counts with
its median. Before that, each side runs one more size twice, so that loading libraries is no part of
the first.

ONNX Runtime gets the fp32 original (with TF32) and its fp16 conversion, every search for
algorithms, and both layouts. A search may take seconds for each size, so all of these first run at
up to eight of the sizes, a new one and the one before it in turn, the cheap searches first. One
stops after the first size at which it has taken three seconds, or from the second size on once it
is over three times slower than another, at new and at revisited sizes. A search and layout that is
over six times slower at both in fp16 is not run in fp32. The row has the times and the number of
sizes of each. The fastest for new sizes and the fastest for revisited ones, with those within 10%
of them (two for each at most), run at all 40 in a new session; sides are compared at the sizes that
both ran. Rows are written before PyTorch runs, and again with its times.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import ModelProto

import onnxbolt
from benchmarks import varying_pytorch, whole_models
from benchmarks.common import ClockSampler, Row, check_names, time_argument
from benchmarks.documents import write_results
from benchmarks.pytorch_peer import OF_ZOO
from benchmarks.varying_pytorch import Run, Times, in_steps, timed
from benchmarks.whole_models import add_options, stream_for
from models import build
from onnxbolt import gpu
from onnxbolt.metadata import read_metadata
from onnxbolt.precision import rounded_original
from onnxbolt.runtime import CUDA, keep_channels
from onnxbolt.tolerances import relative_l2
from onnxbolt.tune.sessions import Arrays
from onnxbolt.verify.feeds import drawn, graph_inputs
from onnxbolt.verify.session import CPU, RUNTIME_ERRORS
from tests.zoo import stored

SIZES, ROUNDS = 40, 5
QUICK_SIZES, QUICK_ROUNDS = 3, 2
_TRIED, _SECONDS = 8, 3.0  # at most, of each of ONNX Runtime's sides before the best go on
# times slower at new and at revisited sizes: runs no further; does not run in the other precision
_BEHIND, _HOPELESS = 3.0, 6.0
_FINALISTS, _CLOSE = 2, 1.1  # how many go on, of those that are so many times slower than the best
_COMPARED = 3  # sizes at which answers are compared with the original's without TF32
_SEARCHES = ("DEFAULT", "HEURISTIC", "EXHAUSTIVE")  # the cheapest first
NEW, REVISITED = KINDS = "new", "revisited"

Shapes = tuple[tuple[int, ...], ...]  # shapes of all inputs, in the order of the model
Named = dict[str, tuple[int, ...]]  # the same by the inputs' names


@dataclass(frozen=True)
class Subject:
    """A model with its inputs' shapes, in its order; a letter stands for a size from the least to
    the largest of its range, in steps. `graph` makes the model; `pytorch` is its name in
    benchmarks/pytorch.py. `selects`: the model selects boxes by scores, so that rounding may
    exchange some, and answers are not compared."""

    name: str
    graph: Callable[[], ModelProto]
    inputs: tuple[tuple[int | str, ...], ...]
    ranges: Mapping[str, tuple[int, int, int]]
    pytorch: str
    selects: bool = False

    def drawn(self, count: int, quick: bool) -> list[Shapes]:
        """Different sizes, the same in each process; if `quick`, small ones."""
        found = dict[Shapes, None]()
        for shapes in itertools.islice(self.random(quick), 100 * count):
            found[shapes] = None
            if len(found) == count:
                break
        return list(found)

    def random(self, quick: bool) -> Iterator[Shapes]:
        """Sizes without end, some of which come again, the same in each process; if `quick`, small
        ones."""
        rng = random.Random(self.name)
        ranges = {letter: _small(*r) if quick else r for letter, r in self.ranges.items()}
        while True:
            yield self.at(
                {
                    letter: rng.randrange(low, high + 1, step)
                    for letter, (low, high, step) in ranges.items()
                }
            )

    def planned_for(self, model: ModelProto) -> tuple[Named, Named, Named]:
        """The least, the opt and the largest shapes that `optimize` plans for."""
        names = [value.name for value in graph_inputs(model)]
        least, most = (dict(zip(names, shapes, strict=True)) for shapes in self.extremes())
        middle = {
            name: tuple(_middle(low, high) for low, high in zip(shape, most[name], strict=True))
            for name, shape in least.items()
        }
        return least, middle, most

    def extremes(self) -> Iterator[Shapes]:
        """The least and the largest shapes."""
        for end in (0, 1):
            yield self.at({letter: limits[end] for letter, limits in self.ranges.items()})

    def at(self, sizes: Mapping[str, int]) -> Shapes:
        """The inputs' shapes with these sizes for letters."""
        return tuple(
            tuple(size if isinstance(size, int) else sizes[size] for size in shape)
            for shape in self.inputs
        )


def _small(low: int, high: int, step: int) -> tuple[int, int, int]:
    """A few sizes that are near a quarter of the least one."""
    least = max(low // 4 // step * step, step)
    return least, min(high, least + 3 * step), step


def _zoo(name: str, form: str, *inputs: tuple[int | str, ...], **more: object) -> Subject:
    """An export of tests/zoo/export, whose modules PyTorch runs as they are."""
    ranges: Mapping[str, tuple[int, int, int]] = more.pop("ranges")  # type: ignore[assignment]
    return Subject(
        name,
        lambda: stored.load(f"{name}.{form}.dynamic"),
        inputs,
        ranges,
        OF_ZOO + name,
        bool(more.pop("selects", False)),
    )


_IMAGES = {"h": (384, 1216, 32), "w": (384, 1216, 32)}
SUBJECTS = {
    subject.name: subject
    for subject in (
        _zoo("db_text_detector", "ts17", (1, 3, "h", "w"), ranges=_IMAGES),
        _zoo("retinanet_r50", "ts17", (3, "h", "w"), ranges=_IMAGES, selects=True),
        _zoo("unet", "ts17", (1, 3, "h", "w"), ranges=_IMAGES),
        _zoo("hifigan", "ts17", (1, "t", 80), ranges={"t": (32, 1024, 1)}),
        _zoo("bert_base", "ts17.sdpa.mask", (1, "s"), (1, "s"), ranges={"s": (8, 512, 1)}),
        Subject(
            "resnet50",
            lambda: build("resnet50", "batch"),
            (("n", 3, 224, 224),),
            {"n": (1, 64, 1)},
            "resnet50",
        ),
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    names = chosen.models or list(SUBJECTS)
    check_names(names, SUBJECTS, parser)
    on_gpu = stream_for(chosen, parser) is not None
    rows: list[Row] = []
    for name in names:
        found: list[Row] = []
        with tempfile.TemporaryDirectory() as scratch:
            try:
                for found in measured(SUBJECTS[name], Path(scratch), on_gpu, chosen):
                    _write([*rows, *found], chosen)
            except Exception as error:  # any failure: the other models are still to be measured
                failure = {"failure": f"{type(error).__name__}: {error}"[:500]}
                found = [Row(name, 0, "fp16", values=failure)]
                _say(f"{name}: {failure['failure']}")
                _write([*rows, *found], chosen)
        rows += found
    return 1 if any("failure" in row.values for row in rows) else 0


def _write(rows: Sequence[Row], chosen: argparse.Namespace) -> None:
    planned = [(f"{name}, {kind}", 0) for name in SUBJECTS for kind in KINDS]
    write_results("varying", rows, chosen.out, chosen.append, planned)


def measured(
    subject: Subject, scratch: Path, on_gpu: bool, chosen: argparse.Namespace
) -> Iterator[list[Row]]:
    """Two rows, a new size and a revisited one: first without PyTorch, then with it. Raises
    RuntimeError for a wrong answer."""
    count, rounds = (QUICK_SIZES, QUICK_ROUNDS) if chosen.quick else (SIZES, ROUNDS)
    original = subject.graph()
    warm_up, *feeds = (
        feeds_of(original, shapes, seed)
        for seed, shapes in enumerate(subject.drawn(count + 1, chosen.quick))
    )
    phase = functools.partial(_phase, subject)
    with ClockSampler() as clock:
        with phase("optimizing"):
            ours, searched = _ours(subject, original, scratch, on_gpu, chosen)
        peers = [*_onnx_runtime(original, scratch, on_gpu), *searched]
        with phase("ONNX Runtime at the first sizes"):
            early = Sides("", _tried(subject, peers, warm_up, feeds[:_TRIED]))
        finalists = {label for kind in KINDS for label in early.close(kind)}
        everything = ours | {peer.label: peer.run for peer in peers if peer.label in finalists}
        found = dict[str, Times]()
        with phase("all sizes"):
            for label, run in everything.items():
                with _told_failures(subject, label):
                    found[label] = timed(run(), warm_up, feeds, rounds)
                    _say(f"{subject.name}: {label}: {_told(found[label])}")
    first, *_ = ours
    with phase("comparing answers"):
        error = None if subject.selects else _error(original, ours[first](), feeds, on_gpu)

    def rows(pytorch: Mapping[str, Times | str]) -> list[Row]:
        sides = Sides(first, found, pytorch)
        return [_row(subject, kind, sides, early, feeds, error, clock.mhz) for kind in KINDS]

    yield rows(dict.fromkeys(varying_pytorch.WAYS, "not run"))
    with phase("PyTorch"):
        pytorch = varying_pytorch.ways(
            subject.pytorch, warm_up, feeds, rounds, chosen.compile_within
        )
    for way, times in pytorch.items():
        told = times if isinstance(times, str) else _told(times)
        _say(f"{subject.name}: {way}: {told}")
    yield rows(pytorch)


@contextlib.contextmanager
def _phase(subject: Subject, name: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    _say(f"{subject.name}: {name} took {time.monotonic() - start:.0f} s")


@contextlib.contextmanager
def _told_failures(subject: Subject, label: str) -> Iterator[None]:
    try:
        yield
    except RUNTIME_ERRORS as failure:
        _say(f"{subject.name}: {label}: {str(failure).splitlines()[0][:200]}")


@dataclass(frozen=True)
class Side:
    """A session to try: its label, its search and layout, and what starts it."""

    label: str
    setting: tuple[str, ...]
    run: Callable[[], Run]


def _tried(
    subject: Subject, sides: Sequence[Side], warm_up: Arrays, feeds: Sequence[Arrays]
) -> dict[str, Times]:
    """The times of each side at the first sizes, as many as are worth it. A side does not run whose
    setting is hopeless in another precision."""
    found, hopeless = dict[str, Times](), set[tuple[str, ...]]()
    for side in sides:
        if side.setting in hopeless:
            _say(f"{subject.name}: {side.label}: not run, since another precision is hopeless")
            continue
        peers = [times for label, times in found.items() if label.startswith(PEER)]
        with _told_failures(subject, side.label):
            for times in in_steps(side.run(), warm_up, feeds):
                behind = len(times.new) > 1 and is_behind(times, peers, _BEHIND)
                if behind or sum(times.new) + sum(times.revisited) > _SECONDS:
                    break
            found[side.label] = times
            if is_behind(times, peers, _HOPELESS):
                hopeless.add(side.setting)
            _say(f"{subject.name}: {side.label}: {_told(times)}, {len(times.new)} sizes")
    return found


def is_behind(times: Times, others: Sequence[Times], factor: float) -> bool:
    """True if one of `others` is over `factor` times faster at new sizes, and one of them at
    revisited sizes."""
    return all(any(relative(times, other, kind) > factor for other in others) for kind in KINDS)


def relative(times: Times, other: Times, kind: str) -> float:
    """The ratio of the medians at the sizes that both ran."""
    a, b = getattr(times, kind), getattr(other, kind)
    both = min(len(a), len(b))
    return statistics.median(a[:both]) / statistics.median(b[:both])


@dataclass(frozen=True)
class Sides:
    """The times of all sides by label: ours by `ours`, those of ONNX Runtime beginning with
    PEER, and those of PyTorch, or why there are none."""

    ours: str
    sessions: Mapping[str, Times]
    pytorch: Mapping[str, Times | str] = field(default_factory=dict)

    def medians(self, kind: str) -> dict[str, float]:
        """Milliseconds by label."""
        every = {**self.sessions, **self.pytorch}
        return {
            label: round(statistics.median(getattr(times, kind)) * 1e3, 3)
            for label, times in every.items()
            if not isinstance(times, str)
        }

    def fastest(self, kind: str) -> list[str]:
        """The labels of ONNX Runtime's sides, the fastest first."""
        peers = {n: times for n, times in self.sessions.items() if n.startswith(PEER)}
        most = max(peers.values(), key=lambda times: len(times.new))
        return sorted(peers, key=lambda label: relative(peers[label], most, kind))

    def close(self, kind: str) -> list[str]:
        """ONNX Runtime's fastest side and those close to it."""
        best, *others = self.fastest(kind)[:_FINALISTS]
        times = self.sessions
        return [best, *(n for n in others if relative(times[n], times[best], kind) <= _CLOSE)]


PEER = "ONNX Runtime"


def largest_step(elements: Sequence[int], seconds: Sequence[float]) -> float:
    """The largest ratio of the time of a size to that of the next larger one. 1.0 or less means
    that no size is slower than a larger one."""
    ordered = [time for _, time in sorted(zip(elements, seconds, strict=True))]
    return max((a / b for a, b in itertools.pairwise(ordered)), default=1.0)


def _row(
    subject: Subject,
    kind: str,
    sides: Sides,
    early: Sides,
    feeds: Sequence[Arrays],
    error: float | None,
    clock_mhz: int | None,
) -> Row:
    medians, (best, *_) = sides.medians(kind), sides.fastest(kind)
    ours, peer = medians[sides.ours] * 1e3, medians[best] * 1e3
    elements = [sum(array.size for array in arrays.values()) for arrays in feeds]
    seconds = getattr(sides.sessions[sides.ours], kind)
    failed = {way: times for way, times in sides.pytorch.items() if isinstance(times, str)}
    return Row(
        f"{subject.name}, {kind}",
        0,
        "fp16",
        round(ours, 1),
        best,
        round(peer, 1),
        round(peer / ours, 3),
        error=None if error is None else float(f"{error:.3e}"),
        clock_mhz=clock_mhz,
        config=sides.ours,
        values={
            "ms": medians,
            "ms_of_first_sizes": early.medians(kind),
            "first_sizes": {label: len(times.new) for label, times in early.sessions.items()},
            "rounds": {label: times.rounds for label, times in sides.sessions.items()},
            "largest_step": round(largest_step(elements, seconds), 3),
            "elements": elements,
            "ours_ms": [round(1e3 * s, 3) for s in seconds],
            "peer_ms": [round(1e3 * s, 3) for s in getattr(sides.sessions[best], kind)],
            **({"pytorch_failed": failed} if failed else {}),
        },
    )


def _ours(
    subject: Subject,
    original: ModelProto,
    scratch: Path,
    on_gpu: bool,
    chosen: argparse.Namespace,
) -> tuple[dict[str, Callable[[], Run]], list[Side]]:
    """Sessions of onnxbolt's models: fp16 with the provider's options as they suit it, and `keep`;
    and, where ONNX Runtime convolves in the first, that with other searches. Tuning `keep` gets a
    third of the budget."""
    least, opt, most = subject.planned_for(original)
    ours, searched = dict[str, Callable[[], Run]](), list[Side]()
    for precision, share in (("fp16", 1.0), ("keep", 1 / 3)):
        path = scratch / f"{precision}.onnx"
        tune = chosen.tune and on_gpu
        onnxbolt.optimize(
            original,
            path,
            precision=precision,
            verify=False,
            fuse=chosen.fuse,
            archs=(gpu.local_arch() or "sm_90a",),
            library=on_gpu,
            tune=tune,
            budget=share * chosen.budget if tune and chosen.budget else None,
            min_shapes=least,
            opt_shapes=opt,
            max_shapes=most,
        )
        suited = onnxbolt.cuda_provider(path)
        label = f"onnxbolt {precision}, {suited[1]['cudnn_conv_algo_search']}"
        ours[label] = functools.partial(_session, path, suited, on_gpu)
        if on_gpu and precision == "fp16" and _convolves(path):
            for search in _SEARCHES:
                other = onnxbolt.cuda_provider(path, cudnn_conv_algo_search=search)
                if other != suited:
                    run = functools.partial(_session, path, other, on_gpu)
                    searched.append(Side(f"onnxbolt fp16, {search}", ("onnxbolt", search), run))
    return ours, searched


def _middle(low: int, high: int) -> int:
    """The geometric mean, as a multiple of 32 where it is one of images."""
    mean = math.isqrt(low * high)
    return max(mean // 32 * 32, low) if low % 32 == 0 else mean


def _convolves(path: Path) -> bool:
    return read_metadata(path)["onnxbolt.convolutions"] != "none"


def _onnx_runtime(original: ModelProto, scratch: Path, on_gpu: bool) -> Iterator[Side]:
    """Sessions of the original in fp16 and in fp32, with each search and layout."""
    paths = {precision: scratch / f"original-{precision}.onnx" for precision in ("fp16", "fp32")}
    for precision, path in paths.items():
        model = original if precision == "fp32" else rounded_original(original, precision)
        path.write_bytes(model.SerializeToString())
    for search in _SEARCHES if on_gpu else _SEARCHES[:1]:
        for layout in ("NCHW", "NHWC") if on_gpu else ("NCHW",):
            provider = (
                CUDA,
                {"cudnn_conv_algo_search": search, "prefer_nhwc": str(int(layout == "NHWC"))},
            )
            for precision, path in paths.items():
                run = functools.partial(_session, path, provider, on_gpu)
                yield Side(f"{PEER} {precision}, {search}, {layout}", (search, layout), run)


def _session(path: Path, provider: tuple[str, dict[str, str]], on_gpu: bool) -> Run:
    """Whole runs of a session. Raises one of RUNTIME_ERRORS."""
    providers = [provider] if on_gpu else [CPU]
    options = onnxbolt.session_options(path, providers=providers)
    options.log_severity_level = 3
    keep_channels(options)
    session = ort.InferenceSession(path, options, providers=providers)
    return lambda feeds: session.run(None, dict(feeds))


def feeds_of(model: ModelProto, shapes: Shapes, seed: int) -> dict[str, np.ndarray]:
    """Seeded inputs, rounded to fp16 so that every precision gets the same."""
    names = [value.name for value in graph_inputs(model)]
    feeds = drawn(model, dict(zip(names, shapes, strict=True)), seed)
    return {
        name: array.astype(np.float16).astype(array.dtype) if array.dtype.kind == "f" else array
        for name, array in feeds.items()
    }


def _error(original: ModelProto, run: Run, feeds: Sequence[Arrays], on_gpu: bool) -> float:
    """The largest relative L2 error at some of the sizes. Raises RuntimeError if it exceeds the
    limit of whole models."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "exact.onnx"
        path.write_bytes(original.SerializeToString())
        exact = _session(
            path, (CUDA, {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}), on_gpu
        )
    found = max(
        relative_l2(y, reference)
        for arrays in feeds[:_COMPARED]
        for y, reference in zip(run(arrays), exact(arrays), strict=True)
    )
    if not found <= whole_models.LIMIT:
        raise RuntimeError(f"relative error {found:.2g} exceeds {whole_models.LIMIT}")
    return found


def _told(times: Times) -> str:
    new, revisited = (1e3 * statistics.median(found) for found in (times.new, times.revisited))
    return f"{new:.2f} ms at a new size, {revisited:.2f} ms at a revisited one"


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(SUBJECTS)}")
    parser.add_argument("--tune", action="store_true", help="tune each model first")
    parser.add_argument(
        "--budget",
        type=time_argument,
        metavar="TIME",
        help="of tuning each model in fp16, e.g. 2m (default: none)",
    )
    parser.add_argument(
        "--compile-within",
        type=time_argument,
        default=300.0,
        metavar="TIME",
        help="for each of PyTorch's ways, runs included (default: 5m)",
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_SIZES} small sizes, to try the script out"
    )
    parser.add_argument("--fuse", choices=("winning", "all"), default="winning")
    add_options(parser, "varying")
    return parser


if __name__ == "__main__":
    sys.exit(main())
