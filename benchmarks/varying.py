"""Inputs of varying sizes, as services get them: a size that a session has not seen before, and one
that it has.

    python -m benchmarks.varying                          # writes results/varying-<gpu>.json
    python -m benchmarks.varying unet resnet50 --tune --budget 2m --append
    python -m benchmarks.varying --provider cpu --quick   # a look, without a GPU

A time is that of a whole run as the application sees it: arrays on the host in, arrays on the host
out. Each side runs the same 40 seeded sizes once each, all of them new to it, and then five times
in other orders; a revisited size counts with its median. Before that, each side runs one more size
twice, so that loading libraries is no part of the first. ONNX Runtime gets the fp32 original (with
TF32) and its fp16 conversion, every search for algorithms, and both layouts. An exhaustive search
takes seconds for each size, so all of these run at eight of the sizes first, twice each, and those
that are fastest there, at new sizes or at revisited ones, run at all 40 in a new session.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import ModelProto

import onnxbolt
from benchmarks import varying_pytorch, whole_models
from benchmarks.common import ClockSampler, Row, time_argument
from benchmarks.documents import write_results
from benchmarks.pytorch_peer import OF_ZOO
from benchmarks.varying_pytorch import Run, Times, timed
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
_TRIED, _FINALISTS = 8, 2  # sizes at which all of ONNX Runtime's sides run; how many go on
_COMPARED = 3  # sizes at which answers are compared with the original's without TF32
_SEARCHES = ("EXHAUSTIVE", "HEURISTIC", "DEFAULT")
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
    if unknown := set(names) - set(SUBJECTS):
        parser.error(f"no model {', '.join(sorted(unknown))}: choose from {', '.join(SUBJECTS)}")
    on_gpu = stream_for(chosen, parser) is not None
    rows: list[Row] = []
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                rows += measured(SUBJECTS[name], Path(scratch), on_gpu, chosen)
            except Exception as error:  # any failure: the other models are still to be measured
                failure = {"failure": f"{type(error).__name__}: {error}"[:500]}
                rows.append(Row(name, 0, "fp16", values=failure))
                _say(f"{name}: {failure['failure']}")
        planned = [(f"{name}, {kind}", 0) for name in SUBJECTS for kind in KINDS]
        write_results("varying", rows, chosen.out, chosen.append, planned)
    return 1 if any("failure" in row.values for row in rows) else 0


def measured(
    subject: Subject, scratch: Path, on_gpu: bool, chosen: argparse.Namespace
) -> list[Row]:
    """Two rows: a new size and a revisited one. Raises RuntimeError for a wrong answer."""
    count, rounds = (QUICK_SIZES, QUICK_ROUNDS) if chosen.quick else (SIZES, ROUNDS)
    original = subject.graph()
    warm_up, *feeds = (
        feeds_of(original, shapes, seed)
        for seed, shapes in enumerate(subject.drawn(count + 1, chosen.quick))
    )
    found = dict[str, Times]()
    with ClockSampler() as clock:
        ours = dict(_ours(subject, original, scratch, on_gpu, chosen))
        peers = dict(_onnx_runtime(original, scratch, on_gpu))

        def all_timed(
            sides: Mapping[str, Callable[[], Run]], sizes: int, rounds: int
        ) -> Iterator[str]:
            for label, run in sides.items():
                try:
                    found[label] = timed(run(), warm_up, feeds[:sizes], rounds)
                    _say(f"{subject.name}: {label}: {_told(found[label])}")
                    yield label
                except RUNTIME_ERRORS as failure:
                    _say(f"{subject.name}: {label}: {str(failure).splitlines()[0][:200]}")

        tried = list(all_timed(peers, _TRIED, 1))
        early = Sides("", {label: found.pop(label) for label in tried})
        finalists = {label: peers[label] for kind in KINDS for label in early.fastest(kind)}
        for _ in all_timed({**ours, **finalists}, count, rounds):
            pass
    first, *_ = ours
    error = None if subject.selects else _error(original, ours[first](), feeds, on_gpu)
    pytorch = varying_pytorch.ways(subject.pytorch, warm_up, feeds, rounds, chosen.compile_within)
    for way, times in pytorch.items():
        told = times if isinstance(times, str) else _told(times)
        _say(f"{subject.name}: {way}: {told}")
    return [
        _row(subject, kind, Sides(first, found, pytorch), early, feeds, error, clock.mhz)
        for kind in KINDS
    ]


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

    def fastest(self, kind: str, count: int = _FINALISTS) -> list[str]:
        """The labels of ONNX Runtime's fastest sides, the fastest first."""
        medians = self.medians(kind)
        peers = (label for label in medians if label.startswith(PEER))
        return sorted(peers, key=medians.__getitem__)[:count]


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
    medians, (best,) = sides.medians(kind), sides.fastest(kind, 1)
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
) -> Iterator[tuple[str, Callable[[], Run]]]:
    """Sessions of onnxbolt's models: fp16 with the provider's options as they suit it and, where
    ONNX Runtime convolves, with each search; and `keep`."""
    least, opt, most = subject.planned_for(original)
    for precision in ("fp16", "keep"):
        path = scratch / f"{precision}.onnx"
        onnxbolt.optimize(
            original,
            path,
            precision=precision,
            verify=False,
            fuse=chosen.fuse,
            archs=(gpu.local_arch() or "sm_90a",),
            library=on_gpu,
            tune=chosen.tune and on_gpu,
            budget=chosen.budget if chosen.tune and on_gpu else None,
            min_shapes=least,
            opt_shapes=opt,
            max_shapes=most,
        )
        suited = onnxbolt.cuda_provider(path)
        label = f"onnxbolt {precision}, {suited[1]['cudnn_conv_algo_search']}"
        yield label, functools.partial(_session, path, suited, on_gpu)
        if on_gpu and precision == "fp16" and _convolves(path):
            for search in _SEARCHES:
                other = onnxbolt.cuda_provider(path, cudnn_conv_algo_search=search)
                if other != suited:
                    yield (
                        f"onnxbolt fp16, {search}",
                        functools.partial(_session, path, other, on_gpu),
                    )


def _middle(low: int, high: int) -> int:
    """The geometric mean, as a multiple of 32 where it is one of images."""
    mean = math.isqrt(low * high)
    return max(mean // 32 * 32, low) if low % 32 == 0 else mean


def _convolves(path: Path) -> bool:
    return read_metadata(path)["onnxbolt.convolutions"] != "none"


def _onnx_runtime(
    original: ModelProto, scratch: Path, on_gpu: bool
) -> Iterator[tuple[str, Callable[[], Run]]]:
    """Sessions of the original in fp32 and in fp16, with each search and layout."""
    for precision in ("fp32", "fp16"):
        path = scratch / f"original-{precision}.onnx"
        model = original if precision == "fp32" else rounded_original(original, precision)
        path.write_bytes(model.SerializeToString())
        for search in _SEARCHES if on_gpu else _SEARCHES[:1]:
            for layout in ("NCHW", "NHWC") if on_gpu else ("NCHW",):
                provider = (
                    CUDA,
                    {
                        "cudnn_conv_algo_search": search,
                        "prefer_nhwc": str(int(layout == "NHWC")),
                    },
                )
                yield (
                    f"{PEER} {precision}, {search}, {layout}",
                    functools.partial(_session, path, provider, on_gpu),
                )


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
        help="of tuning each model in one precision, e.g. 2m (default: none)",
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
