"""Measurements to learn a cost model from: all feasible kernels of many problems, whatever their
predicted times.

    # renews benchmarks/collection.jsonl: the problems, in the order in which they are measured
    python -m benchmarks.collect draw
    # measures for 25 minutes; what measurements.jsonl.gz has already is not measured again
    python -m benchmarks.collect measure measurements.jsonl.gz --within 25m
    # from any number of such files: onnxbolt cache merge FILE, then onnxbolt cache train model.json

Problems are those of models/ and tests/zoo on sm_90a in fp16, and others with sizes between those
of two problems of a kind. A seed draws them, so that every run draws the same ones. Kinds take
turns in the order, so that any beginning of it has all of them. A file of measurements is that of
`onnxbolt cache export`: files of several runs or machines can be merged. It is renewed every
minute, so that a run that is killed loses no more than that.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from benchmarks.common import time_argument
from benchmarks.racing import say
from models import build
from onnxbolt import gpu
from onnxbolt.archs import Arch, by_name, get
from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError, OnnxboltError
from onnxbolt.families import KernelConfig
from onnxbolt.measurements.keys import canonical, plain, problem_from
from onnxbolt.measurements.records import Machine, Measurement
from onnxbolt.measurements.strategy import Task
from onnxbolt.options import Options
from onnxbolt.plan.cost import candidates
from onnxbolt.problems import ConvProblem, Problem
from onnxbolt.tune import library
from onnxbolt.tune.compiling import Build
from onnxbolt.tune.database import Database
from onnxbolt.tune.guided import Guided
from onnxbolt.tune.measuring import Profiler as Stopwatch
from onnxbolt.tune.profiler import Profiler
from onnxbolt.tune.stage import kernel_problems
from onnxbolt.tune.subject import Subject
from onnxbolt.tune.tasks import tasks_of
from onnxbolt.tune.tuner import tune
from tests.zoo.materialize import materialize

ROOT = Path(__file__).parents[1]
PROBLEMS = ROOT / "benchmarks" / "collection.jsonl"
# problems of each kind (`Task.kind`); where models have fewer, sizes between theirs fill up
COUNTS: Mapping[str, int] = {
    "gemm": 90,
    "conv": 90,
    "gemm chain": 35,
    "conv chain": 45,
    "attention": 30,
    "norm": 30,
}
_OF_MODELS = 0.6  # the most of a kind that models themselves have
MODELS = (
    *((name, batch) for name in ("resnet50", "mobilenet_v3_large") for batch in (1, 8, 32)),
    *((name, 32) for name in ("vgg16", "resnet18", "resnext50", "repvgg_a0_deploy")),
    *((name, 32) for name in ("repvggaug_a0_deploy", "squeezenet1_1", "densenet121")),
    *((name, batch) for name in ("bert_base", "vit_b16") for batch in (1, 32)),
    *((name, 2048) for name in ("dlrm_mlp", "dlrm_bottom", "dlrm_top", "dcn_v2")),
)
ZOO = (
    "bert_base.dynamo",
    "detr_r50.dynamo",
    "mobilenet_v3_large.dynamo",
    "segformer_b0.dynamo",
    "shufflenet_v2.dynamo",
    "timm_vit_base_patch16_224.dynamo",
    "unet_odd_channels.dynamo",
)
_ARCH = "sm_90a"
# the fields that sizes between two problems' replace, by class; others stay as they are
_FREE: Mapping[str, tuple[str, ...]] = {
    "GemmProblem": ("m", "n", "k", "inner"),
    "ConvProblem": ("n", "h", "w", "c", "k", "inner"),
    "AttentionProblem": ("batch", "queries", "keys"),
    "NormProblem": ("m", "c"),
}
_ATTEMPTS = 200  # for each problem that is asked for
_TOGETHER = 4  # problems whose kernels are compiled while those of others are measured
_MOST = 10_000  # kernels of a problem
_SAMPLES = 6
_SAVED = 60.0  # seconds between two states of the file


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    try:
        if chosen.do == "draw":
            found = drawn(of_models())
            write(found, chosen.problems)
            say(f"{len(found)} problems in {chosen.problems}")
            return 0
        local = gpu.local_arch()
        if local is None:
            raise InputError("no NVIDIA GPU of a supported architecture here")
        with Profiler(by_name(local).number) as profiler:
            measured = measure(
                read(chosen.problems),
                chosen.out,
                Quick(profiler),
                lambda instances, stop: library.build(instances, stop=stop),
                profiler.machine,
                chosen.within,
            )
        say(f"{measured} problems are measured completely")
    except OnnxboltError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


# --- problems -------------------------------------------------------------------------------------


def of_models() -> list[Problem]:
    """The problems of all models, each once."""
    found: dict[Problem, None] = {}
    graphs = itertools.chain(
        (build(name, batch) for name, batch in MODELS),
        (
            materialize(
                onnx.load(ROOT / "tests" / "zoo" / f"{name}.onnx", load_external_data=False)
            )
            for name in ZOO
        ),
    )
    options = Options(archs=(_ARCH,))
    for (name, *_), model in zip((*MODELS, *((name,) for name in ZOO)), graphs, strict=True):
        before = len(found)
        problems = kernel_problems(Subject.of(model, options), [by_name(_ARCH).number])
        found.update(dict.fromkeys(problems))
        say(f"{name}: {len(found) - before} new problems")
    return list(found)


def drawn(problems: Iterable[Problem], counts: Mapping[str, int] = COUNTS) -> list[Problem]:
    """So many problems of each kind, the kinds in turns: some of `problems`, and some of sizes
    between theirs."""
    rng = random.Random("a cost model's problems")
    kinds: dict[str, list[Problem]] = defaultdict(list)
    for problem in sorted(problems, key=_text):
        if problem.dtype is DType.F16 and _feasible(problem):
            kinds[_kind(problem)].append(problem)
    queues = [_of_kind(kinds[kind], count, rng) for kind, count in counts.items() if kinds[kind]]
    turns = itertools.zip_longest(*(_spread(queue, queues) for queue in queues))
    return [problem for turn in turns for problem in turn if problem is not None]


def _of_kind(known: Sequence[Problem], count: int, rng: random.Random) -> list[Problem]:
    own = rng.sample(known, min(len(known), round(_OF_MODELS * count)))
    found = dict.fromkeys(own)
    for _ in range(_ATTEMPTS * count):
        if len(found) >= count:
            break
        new = between(rng.choice(known), rng.choice(known), rng)
        if new is not None and _feasible(new):
            found[new] = None
    mixed = list(found)
    rng.shuffle(mixed)
    return mixed


def _spread(queue: Sequence[Problem], queues: Sequence[Sequence[Problem]]) -> list[Problem | None]:
    """A queue with gaps, so that all queues end at about the same turn."""
    turns = max(map(len, queues))
    places = {round(i * turns / len(queue)): problem for i, problem in enumerate(queue)}
    return [places.get(turn) for turn in range(turns)]


def between(one: Problem, other: Problem, rng: random.Random) -> Problem | None:
    """`one` with sizes between its own and those of `other`; None where sizes depend on what is
    not drawn, as those of masks and windows."""
    free = _FREE.get(type(one).__name__)
    fixed = any(getattr(one, name, ()) for name in ("mask", "windows", "band", "padding"))
    if free is None or type(one) is not type(other) or fixed or getattr(one, "groups", 1) > 1:
        return None
    if len(one.inner) != len(other.inner):
        return None
    values = {
        name: _between(getattr(one, name), getattr(other, name), rng)
        for name in free
        if hasattr(one, name)
    }
    changed = dataclasses.replace(one, **values)
    return _with_output(changed) if isinstance(changed, ConvProblem) else changed


def _between(one: Any, other: Any, rng: random.Random) -> Any:
    """A size between two, evenly by its logarithm; a multiple of 8 where both are."""
    if isinstance(one, tuple):
        return tuple(_between(a, b, rng) for a, b in zip(one, other, strict=True))
    step = 8 if one % 8 == other % 8 == 0 else 1
    least, most = sorted((one, other))
    size = math.exp(rng.uniform(math.log(least), math.log(most)))
    return min(max(round(size / step) * step, least), most)


def _with_output(problem: ConvProblem) -> ConvProblem | None:
    """A convolution with the output's height and width that follow from the others."""
    top, left, bottom, right = problem.pads
    ends = ((problem.h, top + bottom, problem.r), (problem.w, left + right, problem.s))
    p, q = (
        (size + pads - dilation * (taps - 1) - 1) // stride + 1
        for (size, pads, taps), stride, dilation in zip(
            ends, problem.strides, problem.dilations, strict=True
        )
    )
    return dataclasses.replace(problem, p=p, q=q) if min(p, q) > 0 else None


def _feasible(problem: Problem) -> bool:
    return problem.reference is not None and bool(candidates(problem, by_name(_ARCH)))


def _kind(problem: Problem) -> str:
    return Task(problem, 1, (), 0.0).kind


def _text(problem: Problem) -> str:
    return canonical({"kind": type(problem).__name__, "problem": plain(problem)})


def write(problems: Iterable[Problem], path: Path) -> None:
    """A line of JSON for each problem, in their order."""
    path.write_text("".join(f"{_text(problem)}\n" for problem in problems), encoding="utf-8")


def read(path: Path = PROBLEMS) -> list[Problem]:
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [problem_from(row["kind"], row["problem"]) for row in rows]


# --- measurements ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Quick:
    """A profiler that takes few samples: noise of a percent matters less than many kernels."""

    profiler: Profiler

    def measure(
        self, problem: Problem, found: Sequence[tuple[KernelConfig, Path]]
    ) -> list[Measurement]:
        return self.profiler.measure(problem, found, samples=_SAMPLES, sweep=False)


@dataclasses.dataclass(frozen=True)
class Everything:
    """Proposes all feasible kernels of a problem."""

    arch: Arch
    name: str = "everything"

    def propose(self, task: Task, measurements: Sequence[Measurement]) -> Iterable[KernelConfig]:
        return candidates(task.problem, self.arch)


def measure(
    problems: Sequence[Problem],
    out: Path,
    profiler: Stopwatch,
    build: Build,
    machine: Machine,
    within: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Measure all kernels of `problems` that `out` lacks, as many as there is time for, write all
    measurements to `out`, and return how many problems are complete."""
    start, saved, complete = clock(), clock(), 0
    arch = get(machine.arch)
    with (
        tempfile.TemporaryDirectory(prefix="onnxbolt-") as directory,
        Database(Path(directory, "collected.sqlite")) as database,
    ):
        if out.exists():
            database.merge(out)
        for i in range(0, len(problems), _TOGETHER):
            tasks = tasks_of(problems[i : i + _TOGETHER], arch, extra=lambda *_: ())
            left = within - (clock() - start)
            if left <= 0:
                break
            _, tuning = tune(
                tasks,
                database,
                profiler,
                build,
                machine,
                budget=left,
                clock=clock,
                capacity=4 * len(os.sched_getaffinity(0)),
                scheduler=Guided(tasks, Everything(arch), arch, _MOST),
            )
            complete += len(tasks) if tuning.ended_by == "done" else 0
            say(f"{i + len(tasks)} of {len(problems)} problems, {len(database)} measurements")
            if clock() - saved > _SAVED:
                database.export(out)
                saved = clock()
            if tuning.ended_by != "done":
                break
        database.export(out)
    return complete


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    commands = parser.add_subparsers(dest="do", required=True)
    for name, text in (("draw", "write the problems"), ("measure", "measure their kernels")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--problems", type=Path, default=PROBLEMS, metavar="FILE")
    command.add_argument("out", type=Path, metavar="FILE.jsonl.gz")
    command.add_argument("--within", type=time_argument, default=math.inf, metavar="TIME")
    return parser


if __name__ == "__main__":
    sys.exit(main())
