"""Kernels of models with symbolic sizes, at sizes between and beyond the points that were planned
for: the kernel that each node's table names for a size, against the fastest of the table.

    python -m benchmarks.regret                       # writes results/regret-<gpu>.json
    python -m benchmarks.regret resnet50 --within 2m --append

A row is a model of benchmarks/varying.py at 20 seeded sizes, 6 of them beyond its range, from half
the least to one and a half times the largest size. At each size all kernels of every node whose
table has several are timed by the tuner's profiler, results checked, launches overlapping. A size's
regret is the sum of the times of the kernels that the tables name, divided by the sum of the
fastest ones' times; a model's regret is the geometric mean over sizes. Tables follow from
predictions, and from earlier measurements of this machine if the cache holds any. With --within
only as many sizes are measured as fit.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Row, check_names, time_argument
from benchmarks.documents import write_results
from benchmarks.racing import say
from benchmarks.varying import SUBJECTS, Shapes, Subject
from onnxbolt import gpu
from onnxbolt.archs import by_name
from onnxbolt.codegen.render import Instance
from onnxbolt.errors import OnnxboltError
from onnxbolt.families import KernelConfig
from onnxbolt.graph.shapes import infer_at
from onnxbolt.inspection import describe
from onnxbolt.measurements.records import Status
from onnxbolt.measurements.timings import NOTHING
from onnxbolt.options import Options
from onnxbolt.plan.choose import Plan
from onnxbolt.plan.problems import problem_of
from onnxbolt.plan.ranges import Point
from onnxbolt.problems import UNBOUNDED, Problem
from onnxbolt.tune import subject as planning
from onnxbolt.tune.library import build
from onnxbolt.tune.profiler import Profiler
from onnxbolt.tune.stage import plan_with_timings
from onnxbolt.tune.tasks import instance_of
from onnxbolt.verify.feeds import graph_inputs

MODELS = ("resnet50", "db_text_detector", "unet")
SIZES, BEYOND = 20, 6
_SAMPLES = 6


@dataclass(frozen=True)
class Node:
    """A fused node at one size: its problem, the kernels of its table, and the one that the table
    names for the size."""

    problem: Problem
    kernels: tuple[KernelConfig, ...]
    named: KernelConfig


@dataclass(frozen=True)
class Regret:
    """Microseconds, summed over a model's nodes at one size: of the kernels that their tables name,
    and of the fastest ones. `worst` is the largest ratio of a single node. `failed` says which
    kernels of which problems did not run right."""

    named_us: float
    best_us: float
    worst: float
    failed: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        return self.named_us / self.best_us


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    names = chosen.models or MODELS
    check_names(names, SUBJECTS, parser)
    local = gpu.local_arch()
    if local is None:
        print("error: no NVIDIA GPU of a supported architecture here", file=sys.stderr)
        return 1
    rows: list[Row] = []
    try:
        with Profiler(by_name(local).number) as profiler:
            for name in names:
                rows.append(measured(SUBJECTS[name], profiler, local, chosen))
                write_results(
                    "regret", rows, chosen.out, chosen.append, [(name, 0) for name in MODELS]
                )
                say(f"{name}: {rows[-1].values}")
    except OnnxboltError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def measured(subject: Subject, profiler: Profiler, local: str, chosen: argparse.Namespace) -> Row:
    """A model's row. Raises OnnxboltError where nothing can be measured."""
    start = time.monotonic()
    sizes = drawn(subject)
    every = nodes_at(subject, local, sizes)
    kernels = dict.fromkeys(
        instance_of(node.problem, config)
        for nodes in every
        for node in nodes
        for config in node.kernels
    )
    libraries = {
        instance: library for instance, library in build(kernels) if isinstance(library, Path)
    }
    known = dict[Node, Regret]()
    found = list[Regret]()
    for number, nodes in enumerate(every, 1):
        for node in nodes:
            if node not in known:
                known[node] = regret_of(node, profiler, libraries)
        found.append(together([known[node] for node in nodes]))
        say(f"{subject.name}: size {number}: regret {found[-1].ratio:.3f}")
        if time.monotonic() - start > chosen.within:
            break
    failed = sorted({line for regret in found for line in regret.failed})
    values = {
        "sizes": len(found),
        "beyond": sum(is_beyond(subject, at) for at in sizes[: len(found)]),
        "nodes": len(every[0]),
        "kernels": len(kernels),
        "regret": round(statistics.geometric_mean(regret.ratio for regret in found), 4),
        "worst_size": round(max(regret.ratio for regret in found), 4),
        "worst_node": round(max(regret.worst for regret in found), 4),
        "regrets": [round(regret.ratio, 4) for regret in found],
        "shapes": [list(map(list, at)) for at in sizes[: len(found)]],
        **({"failed": failed} if failed else {}),
    }
    return Row(subject.name, 0, "fp16", values=values)


def drawn(subject: Subject) -> list[Shapes]:
    """Different sizes from half the least to one and a half times the largest one of each range,
    BEYOND of them outside of it, the same in each process. The two kinds take turns as evenly as
    they can, so that the first sizes have both."""
    wider = {
        letter: (max(low // 2 // step, 1) * step, high * 3 // 2 // step * step, step)
        for letter, (low, high, step) in subject.ranges.items()
    }
    rng, found = random.Random(f"regret of {subject.name}"), dict[Shapes, None]()
    while len(found) < SIZES:
        ranges = wider if (len(found) + 1) * BEYOND // SIZES > len(found) * BEYOND // SIZES else {}
        sizes = {
            letter: rng.randrange(low, high + 1, step)
            for letter, (low, high, step) in {**subject.ranges, **ranges}.items()
        }
        shapes = subject.at(sizes)
        if bool(ranges) == is_beyond(subject, shapes):
            found[shapes] = None
    return list(found)


def is_beyond(subject: Subject, shapes: Shapes) -> bool:
    """True if some size is less than the least, or larger than the largest, that was planned
    for."""
    least, most = subject.extremes()
    return any(
        not a <= size <= b
        for shape, low, high in zip(shapes, least, most, strict=True)
        for size, a, b in zip(shape, low, high, strict=True)
    )


def nodes_at(subject: Subject, local: str, sizes: Sequence[Shapes]) -> list[list[Node]]:
    """The fused nodes whose tables have several kernels, at each of `sizes`. Raises OnnxboltError
    if there are none."""
    model, number = subject.graph(), by_name(local).number
    least, opt, most = subject.planned_for(model)
    options = Options(min_shapes=least, opt_shapes=opt, max_shapes=most, archs=(local,))
    planned = planning.Subject.of(model, options)
    plan, _ = plan_with_timings(planned, [number], options, NOTHING)
    names = [value.name for value in graph_inputs(model)]
    points = infer_at(planned.graph, [dict(zip(names, at, strict=True)) for at in sizes])
    every = [list(_nodes(plan, Point(shapes))) for shapes in points]
    if not every[0]:
        raise OnnxboltError(f"{subject.name}: no node has several kernels to choose from")
    return every


def _nodes(plan: Plan, at: Point) -> Iterator[Node]:
    for candidate in plan.candidates:
        table = plan.configs[candidate.anchor.node]
        problem = problem_of(candidate, plan.assignment, at)
        kernels = tuple(dict.fromkeys(map(without_range, table)))
        if len(kernels) > 1 and problem.reference is not None:
            yield Node(problem, kernels, named_for(table, problem.rows))


def named_for(table: Sequence[KernelConfig], m: int) -> KernelConfig:
    """The kernel that a table names for m rows."""
    return without_range(next(row for row in table if row.min_m <= m <= row.max_m))


def regret_of(node: Node, profiler: Profiler, libraries: Mapping[Instance, Path]) -> Regret:
    """The node's times. Raises OnnxboltError if the kernel that its table names does not run
    right."""
    candidates = [
        (config, libraries[instance])
        for config in node.kernels
        if (instance := instance_of(node.problem, config)) in libraries
    ]
    times, failed = dict[KernelConfig, float](), list[str]()
    results = profiler.measure(node.problem, candidates, samples=_SAMPLES, sweep=False)
    for (config, _), result in zip(candidates, results, strict=True):
        if result.status is Status.OK:
            times[config] = result.us
        else:
            kernel = f"{node.problem.description}, {describe(config)}"
            failed.append(f"{kernel}: {result.status.value}, {result.detail[:200]}")
    if node.named not in times:
        raise OnnxboltError(f"the kernel of a table does not run: {'; '.join(failed)}")
    ours, best = times[node.named], min(times.values())
    return Regret(ours, best, ours / best, tuple(failed))


def together(regrets: Sequence[Regret]) -> Regret:
    """A model's regret, from those of its nodes."""
    return Regret(
        sum(regret.named_us for regret in regrets),
        sum(regret.best_us for regret in regrets),
        max(regret.worst for regret in regrets),
        tuple(line for regret in regrets for line in regret.failed),
    )


def without_range(config: KernelConfig) -> KernelConfig:
    """The same kernel for any m."""
    return dataclasses.replace(config, min_m=0, max_m=UNBOUNDED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(MODELS)}")
    parser.add_argument(
        "--within",
        type=time_argument,
        default=math.inf,
        metavar="TIME",
        help="for each model; no further size is begun then, e.g. 2m (default: all sizes)",
    )
    parser.add_argument(
        "--out", type=Path, help="result file (default: benchmarks/results/regret-<gpu>.json)"
    )
    parser.add_argument(
        "--append", action="store_true", help="keep the result file's rows of other models"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
