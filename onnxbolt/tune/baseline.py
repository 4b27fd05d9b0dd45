"""No regret: each region of the plan as ONNX Runtime runs it at its best, and as fused nodes, both measured as sessions.

Both sides get the same inputs in the region's own types, bound to the device, and the same CUDA-graph setting (without one where
either cannot be captured); runs are interleaved. ONNX Runtime's side is the best of NHWC and NCHW, exhaustive and heuristic
algorithm search, and of that with cuDNN's fused bias. Fused nodes bring their layout changes with them, since the region's ends
are as ONNX has them. Small regions are repeated side by side with inputs of their own, so that launching a session does
not hide the difference.

Inside a region that won, the nodes of one problem are left to ONNX Runtime where that is faster still. That is tried only where the kernel
takes nearly as long as ONNX Runtime is predicted to take for the same nodes, or longer, the most promising first, with
kernels that are compiled anyway, and as long as the budget lasts. The region as it was measured is what has to be
beaten: leaving out has to win by more than the noise.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnxruntime as ort
from onnx import ModelProto

from onnxbolt import library
from onnxbolt.archs import ARCHS
from onnxbolt.library import Manifest
from onnxbolt.plan.choose import choices
from onnxbolt.plan.cost import ort_us
from onnxbolt.plan.problems import describe_problem, problem_of
from onnxbolt.plan.regions import Region
from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.database import Database
from onnxbolt.tune.records import Machine, Measurement, Problem, Status, canonical, plain, wins
from onnxbolt.tune.sessions import Arrays, Found, Sample, Setting, Source, interleave, search
from onnxbolt.tune.submodels import Fused, Original, fuse, repeat
from onnxbolt.tune.timings import Comparison, Timings
from onnxbolt.verify.feeds import random_feeds
from onnxbolt.verify.session import CUDA, RUNTIME_ERRORS, available_providers

Progress = Callable[[str], None]
ORT, FUSED = "ort", "fused"
Side = str | Problem  # ORT, FUSED, or fused but for the nodes of a problem
_SEARCH_RUNS, _ROUNDS, _RUNS = 10, 10, 10
_REPEAT_BELOW, _MOST_COPIES = 200.0, 16  # microseconds that a session should take at least
_CLOSE = 0.8  # of ONNX Runtime's predicted time for its nodes; a kernel that takes less is not worth leaving out
_MOST_LEFT_OUT = 3  # problems of a region


@dataclass(frozen=True)
class Bench:
    """What comparing takes: where measurements go, on which machine, until when (time.monotonic), and how they run (None: on the CPU)."""

    timings: Timings
    database: Database
    machine: Machine
    deadline: float
    stream: Stream | None
    progress: Progress

    @property
    def over(self) -> bool:
        return time.monotonic() > self.deadline


def compare(regions: Sequence[Region], original: ModelProto, precision: str, timings: Timings, database: Database, machine: Machine,
            budget: float, stream: Stream | None, progress: Progress = lambda message: None) -> dict[str, Comparison]:
    """Both times of each distinct region, and of problems left out of those that won, by `Region.key` and `Region.key_without`.

    `regions` are those of a plan of `original` that fuses everything, in the target `precision`; what the database knows is not
    measured again. After `budget` seconds no further region is begun: those without an answer are left to prediction. Raises
    BuildError where kernels do not compile.
    """
    bench = Bench(timings, database, machine, time.monotonic() + budget, stream, progress)
    distinct = {region.key: region for region in regions}
    known = {key: found for key, region in distinct.items() if (found := _recall(bench, region)) is not None}
    missing = sorted((region for key, region in distinct.items() if key not in known), key=lambda region: -_predicted(region))
    answers = {key: comparison for found in known.values() for key, comparison in found.items()}
    if missing and not bench.over:
        answers |= _measure_all(bench, missing, Original(original, precision))
    return answers


def _predicted(region: Region) -> float:
    return sum(ort_us(problem_of(c, None, region.at), ARCHS[region.arch]) for c in region.candidates)


# --- what is remembered -----------------------------------------------------------------------------------------------------


def session_key(bench: Bench, region: Region, side: Side) -> str:
    """The key of the time of a region's side."""
    name = side if isinstance(side, str) else f"{FUSED} without {describe_problem(side)}"
    parts: dict[str, object] = {"session": name, "region": region.key, "machine": plain(bench.machine), **_runtime()}
    if not isinstance(side, str):
        parts["without"] = plain(side)
    if side != ORT:
        rows = [canonical([plain(p), c.config.row()]) for p, c in choices(region.problems, ARCHS[region.arch], bench.timings).items()]
        parts["configs"] = hashlib.sha256(canonical(sorted(rows)).encode()).hexdigest()[:32]
    return canonical(parts)


def _runtime() -> dict[str, object]:
    return {"onnxruntime": ort.__version__, "cudnn": cudnn_version()}


@functools.cache
def cudnn_version() -> int:
    """What the cuDNN that ONNX Runtime has loaded calls itself (92000 is 9.20.0), 0 where there is none."""
    if CUDA not in available_providers():  # asking for them has loaded it
        return 0
    try:
        return int(ctypes.CDLL("libcudnn.so.9").cudnnGetVersion())
    except (OSError, AttributeError):
        return 0


def _recall(bench: Bench, region: Region) -> dict[str, Comparison] | None:
    """What the database knows of a region; None where it has to be measured."""
    ours, theirs = (bench.database.best(session_key(bench, region, side)) for side in (FUSED, ORT))
    if ours is None or theirs is None:
        return None
    found = {region.key: Comparison(ours.us, ours.mad, theirs.us, theirs.mad, region=region.description)}
    for problem in dict.fromkeys(region.problems):
        without = bench.database.best(session_key(bench, region, problem))
        if without is not None:
            found[region.key_without(problem)] = _left_out(region, ours, without)
    return found


def _left_out(region: Region, ours: Measurement, without: Measurement) -> Comparison:
    """The region as it is against the region without a problem: this time the change has to win."""
    better = wins(without.us, without.mad, ours.us, ours.mad)
    return Comparison(ours.us, ours.mad, without.us, without.mad, decided=not better, region=f"{region.description}, one problem left out")


# --- measuring --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """A region to measure: its nodes for ONNX Runtime, itself fused, and with problems left out."""

    region: Region
    nodes: ModelProto
    fused: Fused
    variants: dict[Problem, Fused]

    @property
    def copies(self) -> int:
        return max(1, min(_MOST_COPIES, round(_REPEAT_BELOW / max(_predicted(self.region), 1.0))))


def _measure_all(bench: Bench, missing: Sequence[Region], original: Original) -> dict[str, Comparison]:
    works = [work for region in missing if (work := _work(bench, region, original)) is not None]
    parts = [part for work in works for part in (work.fused, *work.variants.values())]
    manifest = library.make_manifest((op for part in parts for op in part.ops), (i for part in parts for i in part.instances))
    answers: dict[str, Comparison] = {}
    with tempfile.TemporaryDirectory(prefix="onnxbolt-") as directory:
        path = Path(directory) / "regions.so"
        if bench.stream and manifest.ops:
            library.build(manifest, path, bench.progress)
        for work in works:
            if bench.over:
                bench.progress("the budget for comparing with ONNX Runtime is spent; what is left is decided by prediction")
                break
            answers |= _measure(bench, work, manifest, path if bench.stream else None)
    return answers


def _work(bench: Bench, region: Region, original: Original) -> Work | None:
    """None where the region cannot be taken out of the graph, or comes out of our stages in another form than in the plan."""
    models = original.nodes_of(region)
    if models is None:
        bench.progress(f"{region.description}: cannot be measured by itself")
        return None
    fused = fuse(models[1], region.arch, bench.timings)
    if len(fused.problems) != len(region.candidates):
        bench.progress(f"{region.description}: is fused in another way by itself, and not measured")
        return None
    leaving = {problem: fuse(models[1], region.arch, bench.timings, problem) for problem in _doubtful(region, bench.timings)}
    variants = {problem: variant for problem, variant in leaving.items() if variant.instances <= fused.instances}
    return Work(region, models[0], fused, variants)


def _doubtful(region: Region, timings: Timings) -> list[Problem]:
    """Problems whose kernels take nearly as long as ONNX Runtime is predicted to take, the most promising to leave out first."""
    arch = ARCHS[region.arch]
    theirs = {problem: ort_us(problem_of(c, None, region.at), arch) for c, problem in zip(region.candidates, region.problems, strict=True)}
    if len(theirs) < 2:  # the region as a whole says it all
        return []
    ours = {problem: choice.us for problem in theirs if (choice := timings.choice(problem, region.arch)) is not None and choice.measured}
    close = [problem for problem, us in ours.items() if us > _CLOSE * theirs[problem]]
    count = {problem: region.problems.count(problem) for problem in close}
    return sorted(close, key=lambda p: (count[p] * (theirs[p] - ours[p]), repr(p)))[:_MOST_LEFT_OUT]


def _measure(bench: Bench, work: Work, manifest: Manifest, path: Path | None) -> dict[str, Comparison]:
    """Both sides of one region and, where it looks like a winner, its variants: in one interleaved measurement."""
    region, copies = work.region, work.copies
    nodes = repeat(work.nodes, copies)
    feeds = random_feeds(nodes)

    def fused(part: Fused) -> Source:
        return Source("fused", repeat(part.model(manifest), copies).SerializeToString(), path)

    try:
        found = _best(bench, {ORT: Source("nodes", nodes.SerializeToString()), FUSED: fused(work.fused)}, feeds)
    except RUNTIME_ERRORS as error:
        bench.progress(f"{region.description}: not comparable, {str(error).splitlines()[0][:200]}")
        return {}
    for problem, variant in work.variants.items() if _is_faster(found) else ():
        if not bench.over:
            with contextlib.suppress(*RUNTIME_ERRORS):  # a variant that does not run is none
                graphs = (found[FUSED].setting.graph,)
                found[problem] = search([fused(variant)], feeds, bench.stream, _SEARCH_RUNS, graphs)
    samples = interleave({side: best.session.measure for side, best in found.items()}, _ROUNDS, _RUNS)
    for side, sample in samples.items():
        _remember(bench, region, side, sample, found[side].setting, copies)
    answer = _recall(bench, region) or {}
    times = answer[region.key]
    bench.progress(f"{region.description}: fused {times.ours_us:.1f} us, ONNX Runtime {times.ort_us:.1f} us ({found[ORT].setting})")
    return answer


def _best(bench: Bench, sources: dict[Side, Source], feeds: Arrays) -> dict[Side, Found]:
    """Each side at its best, with CUDA graphs where both can be captured, else without."""
    try:
        return {side: search([source], feeds, bench.stream, _SEARCH_RUNS, (True,)) for side, source in sources.items()}
    except RUNTIME_ERRORS:
        return {side: search([source], feeds, bench.stream, _SEARCH_RUNS, (False,)) for side, source in sources.items()}


def _is_faster(found: dict[Side, Found]) -> bool:
    ours, theirs = (statistics.median(found[side].session.measure(_SEARCH_RUNS)) for side in (FUSED, ORT))
    return ours < theirs


def _remember(bench: Bench, region: Region, side: Side, sample: Sample, setting: Setting, copies: int) -> None:
    bench.database.add(Measurement(session_key(bench, region, side), None, Status.OK, sample.median / copies, sample.mad / copies,
                                   len(sample.times), detail=str(setting)))
