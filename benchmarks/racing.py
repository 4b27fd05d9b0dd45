"""Runs our tuned kernels in turns with their peers; shared by the benchmarks of single kernels.

A benchmark lists its rows as `Entry`s. `run` tunes all their problems at once, measures row by row,
and writes the result file after each, so that an interrupted run has kept what it knows and a row
that fails costs itself alone.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks import peers
from benchmarks.common import Row, time_argument
from benchmarks.documents import write_results
from onnxbolt import gpu
from onnxbolt.archs import Arch, by_name, get
from onnxbolt.epilogues import EPILOGUES
from onnxbolt.errors import OnnxboltError
from onnxbolt.families import KernelConfig
from onnxbolt.inspection import describe
from onnxbolt.measurements.keys import kernel_key
from onnxbolt.measurements.records import Status
from onnxbolt.measurements.timings import Timings
from onnxbolt.options import TRIALS
from onnxbolt.plan.cost import floor_us
from onnxbolt.problems import GemmProblem, Problem
from onnxbolt.tune.database import Database
from onnxbolt.tune.library import build
from onnxbolt.tune.profiler import Profiler
from onnxbolt.tune.progress import Plain
from onnxbolt.tune.sessions import Measure, Sample
from onnxbolt.tune.summary import Tuning
from onnxbolt.tune.tasks import instance_of, tasks_of
from onnxbolt.tune.tuner import tune

_ROUNDS, _SAMPLES = 8, 15
_QUEUED = 4  # kernels for each core in the compiler's queue, as the product has it


@dataclass(frozen=True)
class Entry:
    """A row to be measured: its name, its batch, the problems that have to be tuned for it, and the
    function that measures it."""

    name: str
    batch: int
    problems: tuple[Problem, ...]
    measure: Callable[[Tuned], Row]


@dataclass
class Ours:
    """The kernel that the tuner chose, timed by its profiler."""

    problem: Problem
    config: KernelConfig
    profiler: Profiler
    error: float = 0.0
    clocks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        ((_, library),) = build([instance_of(self.problem, self.config)])
        if not isinstance(library, Path):
            raise OnnxboltError(f"the chosen kernel is not compiled: {library.detail}")
        self.library = library

    def measure(self, count: int, overlap: bool = True) -> list[float]:
        """The median of `count` samples, microseconds."""
        (mine,) = self.profiler.measure(
            self.problem, [(self.config, self.library)], samples=count, sweep=False, overlap=overlap
        )
        if mine.status is not Status.OK:
            raise OnnxboltError(f"the chosen kernel failed: {mine.status.value}, {mine.detail}")
        self.error = mine.error
        self.clocks.append(mine.clock_mhz)
        return [mine.us]

    def measure_serial(self, count: int) -> list[float]:
        """The same where each launch begins when the one before it has ended, as the launches of
        cuBLAS and cuDNN do."""
        return self.measure(count, overlap=False)

    @property
    def facts(self) -> dict[str, Any]:
        """Fields of a row, after measuring."""
        return {
            "error": float(f"{self.error:.3e}"),
            "clock_mhz": round(statistics.median(self.clocks)),
            "config": describe(self.config),
        }


@dataclass(frozen=True)
class Tuned:
    """The tuner's results, and the profiler to time kernels with."""

    profiler: Profiler
    timings: Timings
    tuning: Tuning

    @property
    def arch(self) -> Arch:
        return get(self.profiler.machine.arch)

    def kernel(self, problem: Problem) -> Ours:
        """The chosen kernel. Raises OnnxboltError where none ran right."""
        choice = self.timings.choice(problem, self.arch.number)
        if choice is None:
            raise OnnxboltError(
                f"no candidate ran right: {problem.description}{self._first_failure(problem)}"
            )
        return Ours(problem, choice.config, self.profiler)

    def _first_failure(self, problem: Problem) -> str:
        with Database() as database:
            failed = [
                m
                for m in database.measurements(kernel_key(problem, self.profiler.machine))
                if m.status is not Status.OK
            ]
        return f"; {failed[0].status.value}: {failed[0].detail[-300:]}" if failed else ""

    def notes(self, problem: Problem) -> dict[str, Any]:
        """Facts about the problem's tuning, for a row's values."""
        task = next(row for row in self.tuning.tasks if row.name == problem.description)
        return {
            "candidates": task.tried,
            "failed": task.failed,
            "predicted_us": round(task.first_us, 3),
            "tuned_us": round(task.best_us, 3),
            "regret": round(task.regret, 4),
        }


def run(benchmark: str, entries: Sequence[Entry], chosen: argparse.Namespace) -> int:
    """Tune, measure, write; the exit code. `chosen` comes from `parser`."""
    arch = gpu.local_arch()
    if arch is None:
        print("error: no NVIDIA GPU of a supported architecture here", file=sys.stderr)
        return 1
    rows: list[Row] = []
    planned = [(entry.name, entry.batch) for entry in entries]
    try:
        entries = selected(entries, chosen.shapes)
        with Profiler(by_name(arch).number) as profiler:
            tuned = _tune(
                [problem for entry in entries for problem in entry.problems], profiler, chosen
            )
            for entry in entries:
                rows.append(_survive(entry, tuned))
                write_results(benchmark, rows, chosen.out, chosen.append, planned)
                say(_line(rows[-1]))
                peers.release()
    except OnnxboltError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    say(_summary(rows, tuned.tuning))
    return 0


def selected(entries: Sequence[Entry], shapes: Sequence[str]) -> list[Entry]:
    """Those whose names contain one of `shapes`, all without any. Raises OnnxboltError for a
    text that no name contains."""
    if unknown := [text for text in shapes if not any(text in entry.name for entry in entries)]:
        raise OnnxboltError(
            f"--shapes: nothing is called {', '.join(unknown)}; choose from"
            f" {', '.join(entry.name for entry in entries)}"
        )
    return [entry for entry in entries if not shapes or any(text in entry.name for text in shapes)]


def versus_bare(
    name: str, batch: int, problem: peers.LibraryProblem, library: str, tuned: Tuned
) -> Row:
    """Our kernel with the problem's epilogue against `library`'s without any, our launches
    overlapping one another and not.

    A residual's bytes, at the bandwidth of a copy measured in the same run, are added to the
    library's time; the row says so.
    """
    ours, operations = tuned.kernel(problem), peers.bare(problem) if peers.pytorch() else {}
    bare = {form: operation.measure() for form, operation in operations.items()}
    others = _others(problem, operations)
    samples = take_turns({"ours": ours.measure, **serial_of({"serial": ours}), **bare, **others})
    mine = samples["ours"]
    values = {
        **tuned.notes(problem),
        "epilogue": "+".join(problem.chain) or "none",
        "tflops": round(problem.flops / mine.median / 1e6, 1),
    }
    fields: dict[str, Any] = {"ours_us": round(mine.median, 3), "spread": round(mine.spread, 4)}
    if bare:
        tried = {form: samples[form] for form in bare}
        peer, residual = samples[best := fastest(tried)], _residual_us(problem, samples)
        values |= {
            "peer_config": best,
            "peer_spread": round(peer.spread, 4),
            "tried": medians(tried),
            "residual_us": round(residual, 3),
            "unfused_us": round(samples["unfused"].median, 3),
            **({"estimated": "the residual's bytes at a copy's bandwidth"} if residual else {}),
        }
        fields = against(mine, peer.median + residual) | {
            "peer": f"{peers.library(library, bare)}, bare" + " + residual" * (residual > 0)
        }
    values |= serial(samples.get("serial"), fields.get("peer_us"))
    floor = round(floor_us(problem, tuned.arch), 3)
    return Row(name, batch, "fp16", floor_us=floor, values=values, **fields, **ours.facts)


def _others(
    problem: peers.LibraryProblem, operations: Mapping[str, peers.Operation]
) -> dict[str, Measure]:
    """Further measurements besides the peers: the epilogue as separate kernels, and a copy if there
    is a residual."""
    if not operations:
        return {}
    unfused = peers.unfused(problem, peers.quickest(operations))
    return {
        "unfused": unfused.measure(),
        **({"copy": peers.copy_rate()} if _residuals(problem) else {}),
    }


def _residuals(problem: peers.LibraryProblem) -> int:
    return sum(EPILOGUES[step].operand == "tensor" for step in problem.chain)


def _residual_us(problem: peers.LibraryProblem, samples: Mapping[str, Sample]) -> float:
    """Reading the residuals as fast as a copy reads and writes."""
    columns = problem.n if isinstance(problem, GemmProblem) else problem.k
    size = _residuals(problem) * problem.rows * columns * problem.dtype.bytes
    return size / peers.bytes_per_us(samples["copy"].median) if size else 0.0


def take_turns(
    measures: Mapping[str, Measure], rounds: int = _ROUNDS, samples: int = _SAMPLES
) -> dict[str, Sample]:
    """`samples` samples of each per round, in turn; every other round in reverse, so that no side
    always follows the same one."""
    times: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(rounds + 1):
        for name in list(measures)[:: -1 if turn % 2 else 1]:
            measured = measures[name](samples)
            if turn:  # the first round warms up
                times[name].append(statistics.median(measured))
    return {name: Sample(tuple(values)) for name, values in times.items()}


def fastest(samples: Mapping[str, Sample]) -> str:
    """The name of the one with the smallest median."""
    return min(samples, key=lambda name: samples[name].median)


def against(mine: Sample, peer_us: float) -> dict[str, Any]:
    """Fields of a row that compares: both times and their ratio."""
    return {
        "ours_us": round(mine.median, 3),
        "spread": round(mine.spread, 4),
        "peer_us": round(peer_us, 3),
        "ratio": round(peer_us / mine.median, 3),
    }


class Serial(Protocol):
    """Kernels that can be timed without overlapping launches."""

    def measure_serial(self, count: int) -> list[float]: ...


def serial_of(kernels: Mapping[str, Serial]) -> dict[str, Measure]:
    """Measures each without overlapping launches; none, and a line that says why, where that
    fails."""
    try:
        for kernel in kernels.values():
            kernel.measure_serial(1)
    except OnnxboltError as error:
        say(f"not timed without overlapping launches: {error}")
        return {}
    return {name: kernel.measure_serial for name, kernel in kernels.items()}


def serial(mine: Sample | None, peer_us: float | None) -> dict[str, float]:
    """Our time without overlapping launches and the ratio with it, for a row's values."""
    if mine is None:
        return {}
    ratio = {"serial_ratio": round(peer_us / mine.median, 3)} if peer_us else {}
    return {"serial_us": round(mine.median, 3), **ratio}


def medians(samples: Mapping[str, Sample]) -> dict[str, float]:
    """The median of each side, for a row's values."""
    return {name: round(sample.median, 3) for name, sample in samples.items()}


def parser(description: str) -> argparse.ArgumentParser:
    """The options that all these benchmarks have."""
    options = argparse.ArgumentParser(description=description.splitlines()[0])
    options.add_argument(
        "--shapes",
        type=lambda text: text.split(","),
        default=[],
        metavar="NAME,..",
        help="rows whose names contain one of these (default: all)",
    )
    options.add_argument(
        "--trials",
        type=int,
        default=TRIALS,
        help="candidates of each problem (default: as the product, %(default)s)",
    )
    options.add_argument(
        "--budget", type=time_argument, default=math.inf, metavar="TIME", help="of tuning, e.g. 5m"
    )
    options.add_argument(
        "--out", type=Path, help="result file (default: benchmarks/results/<benchmark>-<gpu>.json)"
    )
    options.add_argument(
        "--append",
        action="store_true",
        help="keep the result file's other rows, which have to be of this commit",
    )
    return options


def say(line: str) -> None:
    print(line, flush=True)


def _tune(problems: Iterable[Problem], profiler: Profiler, chosen: argparse.Namespace) -> Tuned:
    """The product's tuner on all problems at once, so that they share kernels and the compilers
    never wait."""
    machine = profiler.machine
    tasks = tasks_of(problems, get(machine.arch), chosen.trials)
    capacity = _QUEUED * len(os.sched_getaffinity(0))

    def tuned(database: Database, budget: float) -> Tuned:
        return Tuned(
            profiler,
            *tune(
                tasks,
                database,
                profiler,
                lambda instances, stop: build(instances, stop=stop),
                machine,
                budget=budget,
                progress=Plain(say),
                capacity=capacity,
            ),
        )

    with Database() as database:
        try:
            return tuned(database, chosen.budget)
        except OnnxboltError as error:
            say(f"tuning ended early: {error}")
            return tuned(database, 0.0)  # the measurements of earlier runs


def _survive(entry: Entry, tuned: Tuned) -> Row:
    """The row, or a row with the reason why there is none, so that one failure does not end a long
    run."""
    try:
        return entry.measure(tuned)
    except Exception as error:  # any failure: the other rows are still to be measured
        return Row(
            entry.name,
            entry.batch,
            "fp16",
            values={"failure": f"{type(error).__name__}: {error}"[:500]},
        )


def _line(row: Row) -> str:
    if row.ours_us is None:
        return f"{row.name}: failed: {row.values['failure']}"
    return (
        f"{row.name}: {row.ours_us:.3f} us, {row.peer} {row.peer_us} us, ratio {row.ratio},"
        f" {row.clock_mhz} MHz, {row.config}"
    )


def _summary(rows: Sequence[Row], tuning: Tuning) -> str:
    ratios = [row.ratio for row in rows if row.ratio and "estimated" not in row.values]
    met = (
        f"ratio: geometric mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}; "
        if ratios
        else ""
    )
    quality = "; ".join(
        f"{q.kind}: regret {q.regret:.3f}, rank correlation {q.rank_correlation}"
        for q in tuning.quality
    )
    tuned = f"tuning {tuning.seconds:.0f} s, {tuning.trials} trials, {tuning.ended_by}"
    return f"{met}{len(ratios)} of {len(rows)} compared; {quality}; {tuned}"
