"""GEMMs with bias and GELU fused, as the tuner chooses them, against cuBLAS's product alone, in fp16, in one run.

    python -m benchmarks.gemm                              # all of SHAPES; writes results/gemm-<gpu>.json
    python -m benchmarks.gemm --shapes 1280x3072x768 --append

Both sides are timed alike: launches in a CUDA graph of at least 0.2 ms, operands rotated past the L2 cache, random values of the
same distribution. Ours is timed by the tuner's worker process, cuBLAS here through PyTorch; they take turns, and the one that
begins changes. cuBLAS gets the weight in either layout, and the faster one counts.
"""
from __future__ import annotations

import argparse
import dataclasses
import math
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.common import Row, time_argument, write_results
from onnxbolt import gpu
from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.errors import OnnxboltError
from onnxbolt.inspection import describe
from onnxbolt.kernels.config import GemmProblem, KernelConfig
from onnxbolt.options import TRIALS, arch_number
from onnxbolt.plan.cost import floor_us
from onnxbolt.plan.problems import describe_problem
from onnxbolt.tune.database import Database
from onnxbolt.tune.library import build
from onnxbolt.tune.profiler import Profiler
from onnxbolt.tune.progress import Plain
from onnxbolt.tune.records import Status
from onnxbolt.tune.sessions import Measure, Sample
from onnxbolt.tune.summary import TunedTask, Tuning
from onnxbolt.tune.tasks import instance_of, tasks_of
from onnxbolt.tune.timings import Timings
from onnxbolt.tune.tuner import tune

SHAPES = ((1280, 3072, 768), (1280, 768, 3072), (1280, 768, 768), (1024,) * 3, (2048,) * 3, (4096,) * 3)  # M, N, K
CHAIN = ("Bias", "GeluErf")
_ROUNDS, _SAMPLES = 12, 15
_LEAST_US, _MAX_NODES, _MAX_SETS = 200.0, 2048, 256  # of a graph, as custom_ops/profiler has them
_QUEUED = 4  # kernels for each core in the compiler's queue, as the product has it


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    arch = gpu.local_arch()
    if arch is None:
        print("error: no NVIDIA GPU of a supported architecture here", file=sys.stderr)
        return 1
    problems = [GemmProblem(m, n, k, DType.F16, DType.F16, CHAIN) for m, n, k in chosen.shapes]
    try:
        with Profiler(arch_number(arch)) as profiler:
            timings, tuning = _tune(problems, profiler, chosen)
            rows: list[Row] = []
            for problem in problems:
                rows.append(_survive(problem, timings, tuning, profiler))
                write_results("gemm", rows, chosen.out, chosen.append)
                _say(_line(rows[-1]))
    except OnnxboltError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    _say(_summary(rows, tuning))
    return 0


def _tune(problems: Sequence[GemmProblem], profiler: Profiler, chosen: argparse.Namespace) -> tuple[Timings, Tuning]:
    """The product's tuner on all problems at once, so that they share kernels and the compilers never wait."""
    machine = profiler.machine
    tasks = tasks_of(problems, get(machine.arch), chosen.trials)
    capacity = _QUEUED * len(os.sched_getaffinity(0))

    def tuned(database: Database, budget: float) -> tuple[Timings, Tuning]:
        return tune(tasks, database, profiler, lambda instances, stop: build(instances, stop=stop), machine, budget=budget,
                    progress=Plain(_say), capacity=capacity)

    with Database() as database:
        try:
            return tuned(database, chosen.budget)
        except OnnxboltError as error:
            _say(f"tuning ended early: {error}")
            return tuned(database, 0.0)  # what is remembered


# --- one row ----------------------------------------------------------------------------------------------------------------


def _survive(problem: GemmProblem, timings: Timings, tuning: Tuning, profiler: Profiler) -> Row:
    """The row, or one that says why there is none: a long run is not lost to one problem."""
    try:
        return _measure(problem, timings, tuning, profiler)
    except (OnnxboltError, RuntimeError, OSError) as error:  # RuntimeError: PyTorch's
        return Row(_shape(problem), 1, "fp16", values={"failure": str(error)[:500]})


def _measure(problem: GemmProblem, timings: Timings, tuning: Tuning, profiler: Profiler) -> Row:
    arch = profiler.machine.arch
    choice = timings.choice(problem, arch)
    if choice is None:
        raise OnnxboltError("no candidate ran right")
    ours = _Ours(problem, choice.config, profiler)
    (task,) = [row for row in tuning.tasks if row.name == describe_problem(problem)]
    samples = take_turns({"ours": ours.measure, **cublas(problem)}, _ROUNDS, _SAMPLES)
    mine = samples.pop("ours")
    row = Row(
        _shape(problem), 1, "fp16", round(mine.median, 3), floor_us=round(floor_us(problem, get(arch)), 3), spread=round(mine.spread, 4),
        error=float(f"{ours.error:.3e}"), clock_mhz=round(statistics.median(ours.clocks)),
        config=f"{describe(choice.config)} swizzle {choice.config.swizzle}",
        values={**_values(task), "epilogue": "+".join(CHAIN), "tflops": round(problem.flops / mine.median / 1e6, 1)},
    )
    return _compared(row, mine, samples) if samples else row


def _compared(row: Row, mine: Sample, peers: Mapping[str, Sample]) -> Row:
    """The row with the fastest of `peers`."""
    best = min(peers, key=lambda name: peers[name].median)
    peer = peers[best]
    values = {"peer_config": best, "peer_spread": round(peer.spread, 4), "tried": {name: round(p.median, 3) for name, p in peers.items()}}
    return dataclasses.replace(
        row, peer=f"cuBLAS (torch {metadata.version('torch')}), bare product", peer_us=round(peer.median, 3),
        ratio=round(peer.median / mine.median, 3), values=row.values | values)


def _values(task: TunedTask) -> dict[str, Any]:
    """What tuning did for the problem."""
    return {"candidates": task.tried, "failed": task.failed, "predicted_us": round(task.first_us, 3),
            "tuned_us": round(task.best_us, 3), "regret": round(task.regret, 4)}


@dataclass
class _Ours:
    """The chosen kernel, timed by the tuner's profiler."""

    problem: GemmProblem
    config: KernelConfig
    profiler: Profiler
    error: float = 0.0
    clocks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        ((_, library),) = build([instance_of(self.problem, self.config)])
        if not isinstance(library, Path):
            raise OnnxboltError(f"the chosen kernel is not compiled: {library.detail}")
        self._library = library

    def measure(self, count: int) -> list[float]:
        """The median of `count` samples, microseconds."""
        measured = self.profiler.measure(self.problem, [(self.config, self._library)], samples=count)
        (mine,) = [m for m in measured if m.config == self.config]  # the others are its other swizzles
        if mine.status is not Status.OK:
            raise OnnxboltError(f"the chosen kernel failed: {mine.status.value}, {mine.detail}")
        self.error = mine.error
        self.clocks.append(mine.clock_mhz)
        return [mine.us]


def take_turns(measures: Mapping[str, Measure], rounds: int, samples: int) -> dict[str, Sample]:
    """In each round `samples` samples of each, in turn; every other round in reverse, so that nobody always follows the same one."""
    times: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(rounds + 1):
        for name in list(measures)[:: -1 if turn % 2 else 1]:
            measured = measures[name](samples)
            if turn:  # the first round warms up
                times[name].append(statistics.median(measured))
    return {name: Sample(tuple(values)) for name, values in times.items()}


# --- cuBLAS -----------------------------------------------------------------------------------------------------------------


def cublas(problem: GemmProblem) -> dict[str, Measure]:
    """The bare product, for the weight stored [N, K] and [K, N]; nothing where PyTorch is missing."""
    try:
        import torch
    except ImportError as error:
        _say(f"no cuBLAS to compare with, since PyTorch cannot be imported: {error}")
        return {}
    return {f"weight {layout}": _CuBlas(torch, problem, layout == "[N, K]").measure for layout in ("[N, K]", "[K, N]")}


class _CuBlas:
    """torch.matmul into a given output, with PyTorch's default settings, recorded in a CUDA graph."""

    def __init__(self, torch: Any, problem: GemmProblem, transposed: bool) -> None:
        m, n, k = problem.m, problem.n, problem.k
        sets = rotated_sets(2 * (m * k + k * n + m * n), torch.cuda.get_device_properties(0).L2_cache_size)
        options = {"dtype": torch.float16, "device": "cuda"}
        generator = torch.Generator("cuda").manual_seed(0)
        self._torch, self._launches = torch, sets
        self._x = torch.randn((sets, m, k), generator=generator, **options)
        weight = torch.randn((sets, *((n, k) if transposed else (k, n))), generator=generator, **options) / math.sqrt(k)
        self._weight = weight.transpose(1, 2) if transposed else weight
        self._y = torch.empty((sets, m, n), **options)
        self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        self._graph = self._record()

    def _run(self) -> None:
        """Every set of operands, once."""
        for x, weight, y in zip(self._x, self._weight, self._y, strict=True):
            self._torch.matmul(x, weight, out=y)

    def _record(self) -> Any:
        with self._torch.cuda.stream(self._stream):
            self._run()
            passes = graph_passes(self._timed(self._run), self._launches)
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph, stream=self._stream):
            for _ in range(passes):
                self._run()
        self._launches *= passes
        return graph

    def measure(self, count: int) -> list[float]:
        """Microseconds of one product, `count` times, behind one run that is not timed."""
        with self._torch.cuda.stream(self._stream):
            self._graph.replay()
            return [self._timed(self._graph.replay) / self._launches for _ in range(count)]

    def _timed(self, run: Callable[[], None]) -> float:
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(self._stream)
        run()
        end.record(self._stream)
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3


def rotated_sets(size: int, l2_size: int) -> int:
    """How many sets of operands, `size` bytes each, are twice the L2 cache."""
    return min(max(math.ceil(2 * l2_size / size), 1), _MAX_SETS)


def graph_passes(us: float, sets: int) -> int:
    """How many passes over all sets, `us` each, make a graph that is long enough to time."""
    return min(max(int(_LEAST_US / max(us, 1.0)) + 1, 1), max(1, _MAX_NODES // sets))


# --- text -------------------------------------------------------------------------------------------------------------------


def _line(row: Row) -> str:
    if row.ours_us is None:
        return f"{row.name:16} failed: {row.values['failure']}"
    return (f"{row.name:16} {row.ours_us:9.3f} us ({row.values['tflops']:.0f} TFLOP/s), cuBLAS {row.peer_us} us, ratio {row.ratio}, "
            f"regret {row.values['regret']}, {row.clock_mhz} MHz, {row.config}")


def _summary(rows: Sequence[Row], tuning: Tuning) -> str:
    ratios = [row.ratio for row in rows if row.ratio]
    met = f"ratio: geometric mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}; " if ratios else ""
    quality = "; ".join(f"{q.kind}: regret {q.regret:.3f}, rank correlation {q.rank_correlation}" for q in tuning.quality)
    tuned = f"tuning {tuning.seconds:.0f} s, {tuning.trials} trials, {tuning.ended_by}"
    return f"{met}{len(ratios)} of {len(rows)} compared; {quality}; {tuned}"


def _say(line: str) -> None:
    print(line, flush=True)


def _shape(problem: GemmProblem) -> str:
    return f"{problem.m}x{problem.n}x{problem.k}"


def _parse_shapes(text: str) -> list[tuple[int, int, int]]:
    shapes = []
    for shape in text.split(","):
        m, n, k = map(int, shape.split("x"))
        shapes.append((m, n, k))
    return shapes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", type=_parse_shapes, default=list(SHAPES), metavar="MxNxK,..", help="default: all of them")
    parser.add_argument("--trials", type=int, default=TRIALS, help="candidates of each problem (default: as the product, %(default)s)")
    parser.add_argument("--budget", type=time_argument, default=math.inf, metavar="TIME", help="of tuning, e.g. 5m")
    parser.add_argument("--out", type=Path, help="result file (default: benchmarks/results/gemm-<gpu>.json)")
    parser.add_argument("--append", action="store_true", help="keep the result file's rows of other shapes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
