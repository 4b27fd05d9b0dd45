"""Measurements to learn a cost model from: all feasible kernels of many problems, whatever their
predicted times.

    # renews benchmarks/collection.jsonl: the problems, in the order in which they are measured
    python -m benchmarks.collect draw
    # measures for 25 minutes; what measurements.jsonl.gz has already is not measured again
    python -m benchmarks.collect measure measurements.jsonl.gz --within 25m
    # products of codes of 8 bits alone
    python -m benchmarks.collect measure measurements.jsonl.gz --only "quantized *"
    # so that they stay valid where other kernels change
    python -m tests.same_results note
    # from any number of such files: onnxbolt cache merge FILE, then onnxbolt cache train model.json

Problems are those of models/ and tests/zoo on sm_90a in fp16, and others with sizes between those
of two problems of a kind. A seed draws them, so that every run draws the same ones; those of four
models are all there, so that whole models can be held out. Kinds take turns in the order, so that
any beginning of it has all of them. Behind these come products of codes of 8 bits, chosen likewise:
all those of four quantized models, and others. All GPUs of one kind measure, each a problem of its
own. A file of measurements is that of `onnxbolt cache export`: files of several runs or machines
can be merged. It is renewed every half minute, so that a run that is killed loses no more than
that.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import queue
import random
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx

from benchmarks.common import time_argument
from benchmarks.racing import say
from models import build
from onnxbolt import gpu
from onnxbolt.archs import by_name, get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError, OnnxboltError
from onnxbolt.families import KernelConfig
from onnxbolt.measurements.keys import canonical, kernel_key, plain, problem_from
from onnxbolt.measurements.records import Machine, Measurement, Status
from onnxbolt.measurements.strategy import Task
from onnxbolt.options import METHODS, Options
from onnxbolt.plan.cost import candidates
from onnxbolt.problems import ConvProblem, Problem, QuantizedConvProblem
from onnxbolt.quantize.data import Data
from onnxbolt.quantize.making import calibrated, quantized
from onnxbolt.quantize.scales import Scales
from onnxbolt.tune import library, worker
from onnxbolt.tune.compiling import Build, Compiling
from onnxbolt.tune.database import Database
from onnxbolt.tune.library import Uncompiled, profiler_library
from onnxbolt.tune.measuring import Candidates, Gpus, Measured
from onnxbolt.tune.measuring import Profiler as Stopwatch
from onnxbolt.tune.profiler import Profiler
from onnxbolt.tune.stage import kernel_problems
from onnxbolt.tune.subject import Subject
from onnxbolt.tune.tasks import instance_of
from onnxbolt.verify.feeds import random_feeds
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
CODE_COUNTS: Mapping[str, int] = {"quantized conv": 44, "quantized gemm": 24}  # products of codes
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
# the models of which all problems are in the collection, and the first in its order
WHOLE = (("bert_base", 1), ("bert_base", 32), ("resnet50", 32), ("mobilenet_v3_large", 32))
# the models whose products of codes are in the collection, all of them at the first batch
QUANTIZED = (
    ("resnet50", "int8", (32, 1)),
    ("mobilenet_v3_large", "int8", (32, 1)),
    ("vit_b16", "fp8", (32,)),
    ("bert_base", "fp8", (32,)),
)
_ARCH = "sm_90a"
Image = ConvProblem | QuantizedConvProblem
# the fields that sizes between two problems' replace, by class; others stay as they are
_FREE: Mapping[str, tuple[str, ...]] = {
    "GemmProblem": ("m", "n", "k", "inner"),
    "ConvProblem": ("n", "h", "w", "c", "k", "inner"),
    "AttentionProblem": ("batch", "queries", "keys"),
    "NormProblem": ("m", "c"),
    "QuantizedGemmProblem": ("m", "n", "k"),
    "QuantizedConvProblem": ("n", "h", "w", "c", "k"),
}
_ATTEMPTS = 200  # for each problem that is asked for
_KERNELS_PER_CORE = 16  # that are compiled in one go, so that no core works alone for long
_SAMPLES = 6
_LIBRARIES = 300  # that a profiler's worker loads
_PATIENCE, _TURN = 1.0, 0.1  # seconds to wait for kernels or measurements
_LAST = 20.0  # seconds that measurements which have begun may take in the end
_SAVED, _TOLD = 30.0, 10.0  # seconds between two states of the file, and two lines


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    try:
        if chosen.do == "draw":
            codes = of_quantized_models()
            found = [
                *ordered(of_whole_models(), drawn(of_models())),
                *ordered(_in_turns(each[0] for each in codes), drawn_of_codes(codes)),
            ]
            write(found, chosen.problems)
            say(f"{len(found)} problems in {chosen.problems}")
            return 0
        start = time.monotonic()
        with local_gpus(chosen.gpus) as gpus:
            measured = measure(
                [p for p in read(chosen.problems) if fnmatchcase(_kind(p), chosen.only)],
                chosen.out,
                gpus,
                lambda instances, stop: library.build(instances, stop=stop),
                chosen.within - (time.monotonic() - start),
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


def of_whole_models() -> list[Problem]:
    """The problems of WHOLE, in turns."""
    options = Options(archs=(_ARCH,))
    found = [
        [problem for problem in of_model(name, batch, options) if _feasible(problem)]
        for name, batch in WHOLE
    ]
    return _in_turns(found)


def of_model(name: str, batch: int, options: Options) -> Counter[Problem]:
    """The problems of a model of models/, and how often each occurs there."""
    archs = [by_name(arch).number for arch in options.archs]
    return Counter(kernel_problems(Subject.of(build(name, batch), options), archs))


def of_quantized_models() -> list[list[list[Problem]]]:
    """The products of codes of each model of QUANTIZED at each of its batches."""
    return [
        [
            [problem for problem in of_quantized(name, precision, batch) if _feasible(problem)]
            for batch in batches
        ]
        for name, precision, batches in QUANTIZED
    ]


def of_quantized(name: str, precision: str, batch: int) -> Counter[Problem]:
    """The products of codes of a model of models/, and how often each occurs there."""
    options = Options(archs=(_ARCH,))
    archs = [by_name(_ARCH).number]
    model = quantized(build(name, batch), _scales(name, precision)).model
    found = kernel_problems(Subject.of(model, options, archs=archs), archs)
    return Counter(problem for problem in found if _kind(problem) in CODE_COUNTS)


@functools.cache
def _scales(name: str, precision: str) -> Scales:
    """Scales from random inputs: no problem depends on them."""
    model = build(name, 1)
    with tempfile.TemporaryDirectory(prefix="onnxbolt-") as directory:
        path = Path(directory, "inputs.npz")
        np.savez(path, **random_feeds(model, 0))  # type: ignore[arg-type]
        return calibrated(model, precision, Data(path, model), METHODS[0]).scales


def ordered(whole: Sequence[Problem], others: Sequence[Problem]) -> list[Problem]:
    """Each problem once, those of whole models in turns with others."""
    return list(dict.fromkeys(_in_turns([whole, [p for p in others if p not in set(whole)]])))


def _in_turns(queues: Iterable[Sequence[Problem | None]]) -> list[Problem]:
    """The first problem of each queue, then the second of each, and so on."""
    turns = itertools.zip_longest(*queues)
    return [problem for turn in turns for problem in turn if problem is not None]


def drawn(
    problems: Iterable[Problem],
    counts: Mapping[str, int] = COUNTS,
    dtypes: Container[DType] = (DType.F16,),
) -> list[Problem]:
    """So many problems of each kind, the kinds in turns: some of `problems`, and some of sizes
    between theirs."""
    rng = random.Random("a cost model's problems")
    kinds: dict[str, list[Problem]] = defaultdict(list)
    for problem in sorted(problems, key=_text):
        if problem.dtype in dtypes and _feasible(problem):
            kinds[_kind(problem)].append(problem)
    queues = [_of_kind(kinds[kind], count, rng) for kind, count in counts.items() if kinds[kind]]
    return _in_turns(_spread(queue, queues) for queue in queues)


def drawn_of_codes(models: Iterable[Iterable[Iterable[Problem]]]) -> list[Problem]:
    """So many products of codes of each kind, as CODE_COUNTS tells."""
    known = {problem for batches in models for found in batches for problem in found}
    return drawn(known, CODE_COUNTS, (DType.I8, DType.E4M3))


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
    return _with_output(changed) if isinstance(changed, Image) else changed


def _between(one: Any, other: Any, rng: random.Random) -> Any:
    """A size between two, evenly by its logarithm; a multiple of 8 where both are."""
    if isinstance(one, tuple):
        return tuple(_between(a, b, rng) for a, b in zip(one, other, strict=True))
    step = 8 if one % 8 == other % 8 == 0 else 1
    least, most = sorted((one, other))
    size = math.exp(rng.uniform(math.log(least), math.log(most)))
    return min(max(round(size / step) * step, least), most)


def _with_output(problem: Image) -> Image | None:
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
    """A profiler that takes few samples: noise of a percent matters less than many kernels. Its
    worker, in which every library has a CUDA runtime of its own, is started again in time."""

    profiler: Profiler
    loaded: set[Path] = dataclasses.field(default_factory=set)

    def measure(
        self, problem: Problem, found: Sequence[tuple[KernelConfig, Path]]
    ) -> list[Measurement]:
        libraries = {library for _, library in found}
        if self.loaded and len(self.loaded | libraries) > _LIBRARIES:
            self.profiler.restart()
            self.loaded.clear()
        self.loaded.update(libraries)
        return self.profiler.measure(problem, found, samples=_SAMPLES, sweep=False)


class SideBySide(Gpus):
    """A profiler for each GPU of this host, which a thread asks; a context manager. Whichever is
    idle takes the problem that was submitted first."""

    def __init__(self, profilers: Sequence[Stopwatch], machine: Machine) -> None:
        self._machine = machine
        self._submitted: queue.SimpleQueue[tuple[int, Problem, Candidates] | None] = (
            queue.SimpleQueue()
        )
        self._measured: queue.SimpleQueue[Measured | Exception] = queue.SimpleQueue()
        self._under_way = 0
        self._threads = [
            threading.Thread(target=self._work, args=(each,), daemon=True) for each in profilers
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        for _thread in self._threads:
            self._submitted.put(None)

    @property
    def machine(self) -> Machine:
        return self._machine

    def submit(self, task: int, problem: Problem, candidates: Candidates) -> None:
        self._under_way += 1
        self._submitted.put((task, problem, candidates))

    def done(self, timeout: float) -> list[Measured]:
        found: list[Measured] = []
        with contextlib.suppress(queue.Empty):
            item = self._measured.get(timeout=max(timeout, 0.0))
            while True:
                if isinstance(item, Exception):
                    raise item
                self._under_way -= 1
                found.append(item)
                item = self._measured.get_nowait()
        return found

    @property
    def busy(self) -> bool:
        return self._under_way > 0

    def cancel(self, task: int | None = None) -> None:
        kept = []
        with contextlib.suppress(queue.Empty):
            while (item := self._submitted.get_nowait()) is not None:
                if task in (None, item[0]):
                    self._under_way -= 1
                else:
                    kept.append(item)
        for item in kept:
            self._submitted.put(item)

    def _work(self, profiler: Stopwatch) -> None:
        try:
            while (item := self._submitted.get()) is not None:
                task, problem, candidates = item
                start = time.monotonic()
                outcome: Sequence[Measurement] | OnnxboltError
                try:
                    outcome = profiler.measure(problem, candidates)
                except OnnxboltError as error:
                    outcome = error
                self._measured.put(Measured(task, outcome, time.monotonic() - start))
        except Exception as error:  # the waiting thread raises it
            self._measured.put(error)


@contextlib.contextmanager
def local_gpus(count: int | None) -> Iterator[SideBySide]:
    """So many GPUs of this host, or all. Raises InputError without one; others than the first one's
    kind are left out, since their times could not be compared."""
    local = gpu.local_arch()
    if local is None:
        raise InputError("no NVIDIA GPU of a supported architecture here")
    arch = by_name(local).number
    library = str(profiler_library(arch))
    with contextlib.ExitStack() as stack:
        profilers = [
            stack.enter_context(Profiler(arch, _pinned(uuid, library)))
            for uuid in gpu.uuids()[:count]
        ]
        with ThreadPoolExecutor(len(profilers)) as pool:  # CUDA starts in seconds
            machines = list(pool.map(lambda profiler: profiler.machine, profilers))
        machine = machines[0]
        alike = [
            Quick(profiler)
            for profiler, its in zip(profilers, machines, strict=True)
            if its == machine
        ]
        say(f"{len(alike)} of {len(profilers)} GPUs measure: {machine.gpu}")
        yield stack.enter_context(SideBySide(alike, machine))


def _pinned(uuid: str, library: str) -> tuple[str, ...]:
    """The command of a profiler's worker that finds one GPU alone."""
    return ("env", f"CUDA_VISIBLE_DEVICES={uuid}", sys.executable, "-P", worker.__file__, library)


def measure(
    problems: Sequence[Problem],
    out: Path,
    gpus: Gpus,
    build: Build,
    within: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Measure all kernels of `problems` that `out` lacks, as many as there is time for, write all
    measurements to `out`, and return how many problems are complete."""
    with (
        tempfile.TemporaryDirectory(prefix="onnxbolt-") as directory,
        Database(Path(directory, "collected.sqlite")) as database,
    ):
        if out.exists():
            database.merge(out)
        run = _Run(problems, database, gpus, out, clock)
        try:
            with Compiling(build) as compiling:
                run.until(within, compiling)
        finally:
            database.export(out)
        return run.complete


@dataclasses.dataclass(frozen=True)
class _Job:
    """Kernels of a problem that are measured together, on one GPU: the problem's operands and
    reference are made once for all of them, and they run at the same clock."""

    problem: Problem
    kernels: tuple[KernelConfig, ...]

    @property
    def instances(self) -> list[Instance]:
        return list(dict.fromkeys(instance_of(self.problem, config) for config in self.kernels))


def _jobs(problems: Sequence[Problem], database: Database, machine: Machine) -> list[_Job]:
    """All that the database lacks: kernels of the newest generation of all problems first, since
    the others take longer to compile and are rarely the fastest."""
    newest, others = list[_Job](), list[_Job]()
    for problem in problems:
        known = {row.config for row in database.measurements(kernel_key(problem, machine))}
        found = candidates(problem, get(machine.arch))
        latest = max((config.family.generation for config in found), default=0)
        for jobs, wanted in ((newest, True), (others, False)):
            kernels = tuple(
                config
                for config in found
                if config not in known and (config.family.generation == latest) is wanted
            )
            if kernels:
                jobs.append(_Job(problem, kernels))
    return newest + others


class _Run:
    """The state of one call of `measure`: jobs are measured as soon as their kernels are
    compiled."""

    def __init__(
        self,
        problems: Sequence[Problem],
        database: Database,
        gpus: Gpus,
        out: Path,
        clock: Callable[[], float],
    ) -> None:
        self._database, self._gpus, self._out, self._clock = database, gpus, out, clock
        self._start = self._saved = self._told = clock()
        self._problems = problems
        self._jobs = _jobs(problems, database, gpus.machine)
        self._left = set(range(len(self._jobs)))
        self._queued = deque(self._left)  # jobs whose kernels nobody compiles yet
        self._built: dict[Instance, Path | Uncompiled | None] = {}  # None: not compiled yet
        self._users: dict[Instance, list[int]] = defaultdict(list)
        self._waiting: dict[int, set[Instance]] = {}
        self._compiling = 0
        self._spent = 0.0  # seconds of all GPUs
        self._batch = _KERNELS_PER_CORE * len(os.sched_getaffinity(0))

    @property
    def complete(self) -> int:
        left = {self._jobs[number].problem for number in self._left}
        return sum(problem not in left for problem in self._problems)

    def until(self, within: float, compiling: Compiling) -> None:
        while self._seconds() < within:
            while self._queued and self._compiling <= self._batch:
                self._compile_more(compiling)
            if not self._compiling and not self._gpus.busy:
                break
            for instance, built in compiling.done(0.0 if self._gpus.busy else _PATIENCE):
                self._take(instance, built)
            self._collect(_TURN)
        self._gpus.cancel()
        last = self._seconds() + _LAST
        while self._gpus.busy and self._seconds() < last:
            self._collect(_PATIENCE)
        self._tell()

    def _compile_more(self, compiling: Compiling) -> None:
        """Submit a batch of kernels, those of the next problems."""
        batch: list[Instance] = []
        while self._queued and len(batch) < self._batch:
            number = self._queued.popleft()
            wanted = self._jobs[number].instances
            new = [instance for instance in wanted if instance not in self._built]
            self._built.update(dict.fromkeys(new))
            batch += new
            self._waiting[number] = {i for i in wanted if self._built[i] is None}
            for instance in self._waiting[number]:
                self._users[instance].append(number)
            self._measure_if_compiled(number)
        self._compiling += len(batch)
        if batch:
            compiling.submit(batch)

    def _take(self, instance: Instance, built: Path | Uncompiled) -> None:
        self._compiling -= 1
        self._built[instance] = built
        for number in self._users.pop(instance):
            self._waiting[number].discard(instance)
            self._measure_if_compiled(number)

    def _measure_if_compiled(self, number: int) -> None:
        if self._waiting[number]:
            return
        problem, able = self._jobs[number].problem, []
        for config in self._jobs[number].kernels:
            built = self._built[instance_of(problem, config)]
            if isinstance(built, Path):
                able.append((config, built))
            elif built is not None:
                key = kernel_key(problem, self._gpus.machine)
                self._database.add(Measurement(key, config, Status.UNCOMPILED, detail=built.detail))
        if able:
            self._gpus.submit(number, problem, able)
        else:
            self._left.discard(number)

    def _collect(self, patience: float) -> None:
        """Keep what was measured, after waiting for up to `patience` seconds."""
        for measured in self._gpus.done(patience):
            self._spent += measured.seconds
            if isinstance(measured.outcome, OnnxboltError):
                say(f"{self._jobs[measured.task].problem.description}: {measured.outcome}")
                continue
            self._database.add(*measured.outcome)
            self._left.discard(measured.task)
        if self._clock() - self._told > _TOLD:
            self._tell()
        if self._clock() - self._saved > _SAVED:
            self._database.export(self._out)
            self._saved = self._clock()

    def _tell(self) -> None:
        compiled = sum(built is not None for built in self._built.values())
        say(
            f"{self._seconds():.0f} s: {self.complete} of {len(self._problems)} problems,"
            f" {len(self._database)} measurements, {compiled} kernels compiled,"
            f" {self._spent:.0f} s of GPUs"
        )
        self._told = self._clock()

    def _seconds(self) -> float:
        return self._clock() - self._start


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    commands = parser.add_subparsers(dest="do", required=True)
    for name, text in (("draw", "write the problems"), ("measure", "measure their kernels")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--problems", type=Path, default=PROBLEMS, metavar="FILE")
    command.add_argument("out", type=Path, metavar="FILE.jsonl.gz")
    command.add_argument("--only", default="*", metavar="PATTERN", help="a pattern of kinds")
    command.add_argument("--within", type=time_argument, default=math.inf, metavar="TIME")
    command.add_argument("--gpus", type=int, metavar="N", help="GPUs that measure (default: all)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
