"""Compares each region of the plan, as fused nodes and as ONNX Runtime runs it at its best, both
measured as sessions, so that fusing never makes a region slower.

Both sides get the same inputs in the region's own types, bound to the device, and the same
CUDA-graph setting (without one where either cannot be captured); runs are interleaved. ONNX
Runtime's side is the best of NHWC and NCHW, of exhaustive and heuristic algorithm search, and of
that with cuDNN's fused bias. The fused side includes layout conversions, since the region's ends
have ONNX's layout. A session repeats a small region several times, each with inputs of its own, so
that its launch does not hide the difference.

A region may also be fused in part (parts.py) and leave the rest to ONNX Runtime's best setting. A
part has to win by more than the noise against fusing the whole region and against fusing nothing.
All kernels were compiled by the tuner: comparing compiles nothing.
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnxruntime as ort
from onnx import ModelProto

from onnxbolt import library
from onnxbolt.archs import ARCHS
from onnxbolt.library import Manifest
from onnxbolt.measurements.keys import canonical, plain
from onnxbolt.measurements.records import Machine, Measurement, Status
from onnxbolt.measurements.timings import Comparison, Timings
from onnxbolt.plan.choose import choices
from onnxbolt.plan.cost import ort_us
from onnxbolt.plan.problems import problem_of
from onnxbolt.plan.regions import Part, Region
from onnxbolt.tune.cuda import CudaError, Stream
from onnxbolt.tune.database import Database
from onnxbolt.tune.library import compiled
from onnxbolt.tune.parts import promising
from onnxbolt.tune.racing import Here, Lap, Race, RaceError, Racing
from onnxbolt.tune.sessions import cudnn_version
from onnxbolt.tune.submodels import Fused, Original, fuse, repeat

Progress = Callable[[str], None]
ORT, FUSED = "ort", "fused"
Side = str | Part  # ORT, FUSED, or fused in part
# share of the time for comparing that may go to compiling kernels that were not measured
_COMPILING = 0.3
_ALONE = 3.0  # how many times longer a kernel compiles alone than together with others in a unit
# the least microseconds of a session, and the most copies of a region to reach them
_REPEAT_BELOW, _MOST_COPIES = 200.0, 16


@dataclass(frozen=True)
class Bench:
    """The means of comparing: the database, the machine, the deadline (time.monotonic), and the
    stream (None: on the CPU)."""

    timings: Timings
    database: Database
    machine: Machine
    deadline: float
    stream: Stream | None
    progress: Progress = lambda message: None
    racing: Racing | None = None  # the place for races; None: this process
    _configs: dict[str, str] = field(default_factory=dict)

    def configs(self, region: Region) -> str:
        """A digest of the configurations of the region's kernels."""
        if region.key not in self._configs:
            chosen = choices(region.problems, ARCHS[region.arch], self.timings)
            rows = sorted(
                canonical([plain(problem), choice.config.row()])
                for problem, choice in chosen.items()
            )
            self._configs[region.key] = digest(rows)
        return self._configs[region.key]

    @property
    def runtime(self) -> dict[str, object]:
        """The versions, besides the machine, that ONNX Runtime's times depend on."""
        cudnn = cudnn_version() if self.racing is None else self.racing.cudnn
        return {"onnxruntime": ort.__version__, "cudnn": cudnn}

    @property
    def builds(self) -> bool:
        """True if fused nodes run by kernels, and not as function bodies on the CPU."""
        return self.racing is not None or self.stream is not None

    @property
    def over(self) -> bool:
        return time.monotonic() > self.deadline


def compare(
    regions: Sequence[Region], original: ModelProto, precision: str, bench: Bench
) -> dict[str, Comparison]:
    """Both times of each distinct region, and of its parts that were measured, by `Region.key` and
    `Region.key_of`.

    `regions` are those of a plan of `original` that fuses everything, in the target `precision`.
    Nothing that the database knows is measured again; it also knows which regions cannot be
    compared. Regions that take most of the model's time come first, and after `bench.deadline` no
    further one is begun. Raises BuildError if kernels do not compile, and CudaError if the device
    is lost.
    """
    count = Counter(region.key for region in regions)
    distinct = {region.key: region for region in regions}
    known = {
        key: found
        for key, region in distinct.items()
        if (found := _recall(bench, region)) is not None
    }
    missing = sorted(
        (region for key, region in distinct.items() if key not in known),
        key=lambda r: -count[r.key] * _predicted(r),
    )
    answers = {key: comparison for found in known.values() for key, comparison in found.items()}
    if missing and not bench.over:
        answers |= _measure_all(bench, missing, Original(original, precision))
    return answers


def _predicted(region: Region) -> float:
    return sum(
        ort_us(problem_of(c, None, region.at), ARCHS[region.arch]) for c in region.candidates
    )


def _ready(region: Region, bench: Bench) -> bool:
    """True if the region's kernels are compiled, or if there is time to compile those that were
    chosen by prediction."""
    unknown = [
        p
        for p in region.problems
        if (choice := bench.timings.choice(p, region.arch)) is None or not choice.measured
    ]
    families = [
        choice.config.family
        for choice in choices(unknown, ARCHS[region.arch], bench.timings).values()
    ]
    at_once = min(len(families), len(os.sched_getaffinity(0)))
    seconds = (
        _ALONE * sum(family.compile_seconds for family in families) / at_once
        if bench.builds and families
        else 0.0
    )
    return seconds <= _COMPILING * max(bench.deadline - time.monotonic(), 0.0)


# --- remembered times -----------------------------------------------------------------------------


def session_key(bench: Bench, region: Region, side: Side) -> str:
    """The key of the time of a region's side."""
    part = side if isinstance(side, Part) else None
    parts: dict[str, object] = {
        "session": f"{FUSED} {part.kind}" if part else side,
        "region": region.key_of(part) if part else region.key,
        "machine": plain(bench.machine),
        **bench.runtime,
    }
    if side != ORT:
        parts["configs"] = bench.configs(region)
    return canonical(parts)


def digest(value: object) -> str:
    """A short digest of a value, for keys."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:32]


def _recall(bench: Bench, region: Region) -> dict[str, Comparison] | None:
    """The database's comparisons of a region; empty if it cannot be compared, None if it has to be
    measured."""
    ours, theirs = (bench.database.best(session_key(bench, region, side)) for side in (FUSED, ORT))
    if ours is None or theirs is None:
        return {} if bench.database.measurements(session_key(bench, region, FUSED)) else None
    found = {
        region.key: Comparison(ours.us, ours.mad, theirs.us, theirs.mad, region=region.description)
    }
    rival = min(ours, theirs, key=lambda side: side.us)
    for part in region.parts:
        if (measured := bench.database.best(session_key(bench, region, part))) is not None:
            found[region.key_of(part)] = _in_part(region, part, measured, rival)
    return found


def _in_part(region: Region, part: Part, ours: Measurement, rival: Measurement) -> Comparison:
    words = f"{region.description}, but for {len(part.left_out)} of them"
    return Comparison(ours.us, ours.mad, rival.us, rival.mad, region=words)


# --- measuring ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """A region to measure: its nodes for ONNX Runtime, itself fused, and fused in part."""

    region: Region
    nodes: ModelProto
    fused: Fused
    parts: dict[Part, Fused]

    @property
    def copies(self) -> int:
        return max(1, min(_MOST_COPIES, round(_REPEAT_BELOW / max(_predicted(self.region), 1.0))))


def _measure_all(
    bench: Bench, missing: Sequence[Region], original: Original
) -> dict[str, Comparison]:
    """Measure one region after another, or as many at once as there are places. Each is prepared
    just before, since preparing all regions of a large model takes minutes and gigabytes."""
    answers: dict[str, Comparison] = {}
    unready = 0
    racing = bench.racing or Here(bench.stream)
    racers: dict[int, Work] = {}

    def finish() -> None:
        try:
            number, laps = racing.done()
        except CudaError as error:
            # the device is lost to this process, so failures of later regions would not be their
            # fault
            for work in racers.values():
                _incomparable(bench, work.region, str(error))
            raise
        answers.update(_finished(bench, racers.pop(number), laps))

    with tempfile.TemporaryDirectory(prefix="onnxbolt-") as directory:
        for number, region in enumerate(missing):
            if bench.over:
                bench.progress("the budget for comparing with ONNX Runtime is spent")
                break
            if not _ready(region, bench):
                unready += 1
            elif (work := _work(bench, region, original)) is not None:
                race = _race(bench, work, *_library(bench, work, Path(directory)))
                racers[number] = work
                racing.submit(number, race)
                while len(racers) >= racing.slots:
                    finish()
        while racers:
            finish()
    if unready:
        bench.progress(
            f"{unready} regions are not compared with ONNX Runtime: the budget ended before"
            " their kernels were compiled"
        )
    return answers


def _library(bench: Bench, work: Work, directory: Path) -> tuple[Manifest, Path | None]:
    """The manifest and library for the region and its parts; no library if they run on the CPU."""
    models = (work.fused, *work.parts.values())
    manifest = library.make_manifest(
        (op for model in models for op in model.ops), work.fused.instances
    )
    if not bench.builds:
        return manifest, None
    path = directory / f"{manifest.digest}.so"
    if manifest.ops and not path.exists():
        library.build(manifest, path, bench.progress, compiled(manifest.instances))
    return manifest, path


def _work(bench: Bench, region: Region, original: Original) -> Work | None:
    """The models of a region. None if it cannot be extracted from the graph, or if the stages turn
    the extract into other nodes than in the plan."""
    models = original.nodes_of(region)
    if models is None:
        _incomparable(bench, region, "it cannot be taken out of the graph")
        return None
    fused = fuse(models[1], region.arch, bench.timings, _ends(region))
    if len(fused.problems) != len(region.candidates):
        _incomparable(bench, region, "it is fused differently by itself")
        return None
    return Work(region, models[0], fused, _parts(bench, region, models[1], fused))


def _parts(bench: Bench, region: Region, model: ModelProto, fused: Fused) -> dict[Part, Fused]:
    """Parts worth measuring, as far as there is time to prepare them. They use only kernels of the
    whole region, since others may not be compiled."""
    found: dict[Part, Fused] = {}
    for part in promising(region, bench.timings):
        if bench.over:
            break
        made = _without(model, region, part, bench.timings)
        if made.instances <= fused.instances:
            found[part] = made
    return found


def _without(model: ModelProto, region: Region, part: Part, timings: Timings) -> Fused:
    return fuse(
        model,
        region.arch,
        timings,
        _ends(region),
        {region.candidates[place].output.name for place in part.left_out},
    )


def _ends(region: Region) -> set[str]:
    return {candidate.output.name for candidate in region.candidates}


def _incomparable(bench: Bench, region: Region, why: str) -> None:
    """Record that a region cannot be compared, so that no run tries it again until its key changes
    (another kernel, machine or version)."""
    bench.database.add(
        Measurement(session_key(bench, region, FUSED), None, Status.REFUSED, detail=why)
    )
    bench.progress(f"{region.description}: cannot be compared with ONNX Runtime, because {why}")


def _race(bench: Bench, work: Work, manifest: Manifest, path: Path | None) -> Race:
    """The race of both sides of a region, and of its parts."""
    models = [
        work.nodes,
        *(made.model(manifest) for made in (work.fused, *work.parts.values())),
    ]
    repeated = [repeat(model, work.copies).SerializeToString() for model in models]
    return Race(repeated, path, -math.inf if bench.over else bench.deadline)


def _finished(
    bench: Bench, work: Work, laps: Sequence[Lap | None] | RaceError
) -> dict[str, Comparison]:
    """Remember the times of a race, and compare them."""
    region = work.region
    if isinstance(laps, RaceError):
        _incomparable(bench, region, str(laps))
        return {}
    sides: list[Side] = [ORT, FUSED, *work.parts]
    for side, lap in zip(sides, laps, strict=True):
        if lap is not None:
            _remember(bench, region, side, lap, work.copies)
    answer = _recall(bench, region) or {}
    times = answer[region.key]
    setting = laps[0].setting if laps[0] else ""
    bench.progress(
        f"{region.description}: fused {times.ours_us:.1f} us, ONNX Runtime {times.ort_us:.1f} us"
        f" ({setting})"
    )
    return answer


def _remember(bench: Bench, region: Region, side: Side, lap: Lap, copies: int) -> None:
    bench.database.add(
        Measurement(
            session_key(bench, region, side),
            None,
            Status.OK,
            lap.sample.median / copies,
            lap.sample.mad / copies,
            len(lap.sample.times),
            detail=lap.setting,
        )
    )
