"""The planning stage with measurements: it uses remembered ones and, with --tune, first makes those
that are missing.

Planning and measuring take turns. The first round covers everything that could be fused. Nodes that
lose are dropped, which can change the layouts and thereby the problems of their neighbours; the
next round covers these, and the single layers of back-to-back kernels that lost. Rounds end when
nothing new appears.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from onnxbolt import gpu
from onnxbolt.archs import by_name, get
from onnxbolt.codegen.render import Instance
from onnxbolt.errors import InputError, OnnxboltError
from onnxbolt.families import KernelConfig
from onnxbolt.kernel_time import US
from onnxbolt.measurements.keys import kernel_key
from onnxbolt.measurements.records import Machine, Status
from onnxbolt.measurements.timings import NOTHING, Choice, Comparison, Timings
from onnxbolt.options import Options
from onnxbolt.plan.choose import Plan
from onnxbolt.plan.regions import Region, regions
from onnxbolt.precision.kernel_table import installed, kernels_of
from onnxbolt.problems import Problem
from onnxbolt.spelling import option
from onnxbolt.tune import library
from onnxbolt.tune.baseline import Bench, compare
from onnxbolt.tune.cluster.opening import cluster_gpus
from onnxbolt.tune.cuda import CudaError, Stream
from onnxbolt.tune.database import Database, default_path
from onnxbolt.tune.guided import Guided, strategy_named
from onnxbolt.tune.measuring import Gpus, OneGpu
from onnxbolt.tune.profiler import Profiler
from onnxbolt.tune.progress import Progress, Silent
from onnxbolt.tune.published import Published, of_local_gpu
from onnxbolt.tune.subject import Subject
from onnxbolt.tune.summary import Tuning, together
from onnxbolt.tune.tasks import nothing_runs, tasks_of
from onnxbolt.tune.tuner import tune
from onnxbolt.tune.whole import settle
from onnxbolt.verify.session import CUDA, available_providers

# shares of the remaining budget
_KERNELS_SHARE = 0.6  # for kernels; the rest is for comparing
_FIRST_TURN = 60.0  # seconds, with a target: enough for the first kernels of a model
_REGIONS_SHARE = 0.7  # for regions, of that rest; what remains is for the whole model
# kernels per core in the compiler's queue: with more, kernels are chosen too early; with fewer,
# headers take most of the time
_QUEUED = 4
NOTHING_MEASURED = (
    "no kernel was measured before the budget ended: predictions and the kernels that come with"
    " onnxbolt decide. With an empty cache the profiler and the first kernels compile for up to a"
    " minute; the next run finds them there"
)
logger = logging.getLogger(__name__)
T = TypeVar("T")
Messages = Callable[[str], None]


def plan_with_timings(
    subject: Subject,
    archs: Sequence[int],
    options: Options,
    locked: Timings,
    messages: Messages | None = None,
    watch: Progress | None = None,
) -> tuple[Plan, Tuning | None]:
    """The plan, and a summary of the tuning if Options.tune asked for it.

    A frozen `locked` decides alone; otherwise the database's measurements of the local GPU are used
    as well, and behind them those of the package. Raises as `tuned` does.
    """
    if options.tune:
        return tuned(subject, archs, options, locked, messages, watch)
    with _memory(subject, archs, locked) as memory:
        published = None if locked.frozen else of_local_gpu(archs)
        if memory and published:
            published = _trusted(published, memory.database, memory.machine)
        sources = [source for source in (memory, published) if source]
        if not sources:
            return subject.plan(archs, options.fuse, locked), None
        first = _first(subject, archs, locked)
        source = _InTurn(sources)
        chosen, timings = _rounds(subject, archs, options.fuse, locked, source, first)
        return memory.settled(chosen, archs, options.fuse, timings) if memory else chosen, None


def tuned(
    subject: Subject,
    archs: Sequence[int],
    options: Options,
    locked: Timings,
    messages: Messages | None = None,
    watch: Progress | None = None,
) -> tuple[Plan, Tuning]:
    """The plan after tuning on the local GPU, and a summary of the tuning, whose measurements
    override the lock. Problems that the budget does not reach have the package's measurements.

    Raises InputError if there is no GPU to measure on or the subject is for another ONNX Runtime,
    and BuildError or ToolchainError if nothing can be compiled.
    """
    if subject.kernels != kernels_of():
        raise InputError(
            f"{option('tune', True)} compares with the installed ONNX Runtime {installed()},"
            f" but {option('ort_version', subject.kernels.release)} names another: leave out"
            " one of the two"
        )
    strategy_named(options.strategy)  # before anything is compiled
    start = time.monotonic()  # the budget includes compiling the profiler
    said = messages or _say_nothing
    with _gpus(archs, options, said) as started, Database() as database:
        first = _first(subject, archs, locked)
        measuring = _Measuring(
            subject, options, database, started(), said, watch or Silent(), start
        )
        published = None if options.scheduler else of_local_gpu(archs)
        if published:
            published = _trusted(published, database, measuring.machine)
        source = _InTurn([each for each in (measuring, published) if each])
        for seconds in _turns(measuring.target):
            measuring.begin(seconds)
            chosen, timings = _rounds(subject, archs, options.fuse, locked, source, first)
            chosen = measuring.settled(chosen, archs, timings)
            if measuring.at_end():
                break
        return chosen, measuring.tuning


def _turns(target: float | None) -> Iterator[float]:
    """The seconds of each turn, at whose end the whole model is measured: without a target one turn
    to the end, else each twice as long as the one before."""
    seconds = math.inf if target is None else _FIRST_TURN
    while True:
        yield seconds
        seconds *= 2


def kernel_problems(subject: Subject, archs: Sequence[int]) -> list[Problem]:
    """The problems that tuning of the subject and of the bodies in it begins with, repeated as in
    the model."""
    return [
        problem
        for each in subject
        for problem in _problems(each.plan(archs, "all", NOTHING), each.segments(archs))
    ]


def tune_kernels(
    problems: Sequence[Problem],
    archs: Sequence[int],
    options: Options,
    watch: Progress | None = None,
) -> Tuning:
    """Measure the kernels of these problems, which may come from several models, and keep the times
    in the database; no regions are compared. Raises as `tuned` does."""
    strategy_named(options.strategy)
    start = time.monotonic()
    with _gpus(archs, options, _say_nothing) as started, Database() as database:
        kernels = _Kernels(options, database, started(), watch or Silent(), start)
        kernels.tune(NOTHING, problems, 1.0)
        kernels.take_stock()
        return kernels.tuning


class _Source(Protocol):
    """A source of timings."""

    def extend(
        self, timings: Timings, problems: Sequence[Problem], found: Sequence[Region]
    ) -> Timings:
        """`timings` with known or new measurements of problems (repeated as in the model) and
        regions."""


@dataclass(frozen=True)
class _InTurn:
    """Several sources: each adds what earlier ones do not know."""

    sources: Sequence[_Source]

    def extend(
        self, timings: Timings, problems: Sequence[Problem], found: Sequence[Region]
    ) -> Timings:
        for source in self.sources:
            timings = source.extend(timings, problems, found)
        return timings


def _trusted(published: Published, database: Database, machine: Machine) -> Published:
    """The package's choices without those that failed on this machine."""

    def failed(problem: Problem, config: KernelConfig) -> bool:
        return any(
            measured.config == config and measured.status is not Status.OK
            for measured in database.measurements(kernel_key(problem, machine))
        )

    return dataclasses.replace(published, refuted=failed)


def _first(
    subject: Subject, archs: Sequence[int], timings: Timings
) -> tuple[Plan, Sequence[Problem]]:
    """The plan that the first round begins with, and further problems of all rounds."""
    return subject.plan(archs, "all", timings), subject.segments(archs)


def _rounds(
    subject: Subject,
    archs: Sequence[int],
    fuse: str,
    timings: Timings,
    source: _Source,
    first: tuple[Plan, Sequence[Problem]],
) -> tuple[Plan, Timings]:
    chosen, others = first
    seen_problems: set[Problem] = set()
    seen_regions: set[str] = set()
    while True:
        problems = _problems(chosen, others)
        kept = (
            region
            for number in archs
            for region in regions(chosen.assignment, number, subject.ranges.opt)
        )
        found = [*chosen.lost, *kept] if fuse == "winning" else []
        if seen_problems.issuperset(problems) and seen_regions.issuperset(
            region.key for region in found
        ):
            return chosen, timings
        seen_problems.update(problems)
        seen_regions.update(region.key for region in found)
        timings = source.extend(timings, problems, found)
        chosen = subject.plan(archs, fuse, timings)


def _problems(chosen: Plan, others: Sequence[Problem]) -> list[Problem]:
    """The problems of all candidates, those of lost regions too, and `others`."""
    problems = [
        *chosen.workload,
        *(problem for region in chosen.lost for problem in region.problems),
    ]
    planned = set(problems)
    return [*problems, *(problem for problem in others if problem not in planned)]


# --- without measuring ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Memory:
    """The database's measurements of this machine; entries of a lock file take precedence."""

    subject: Subject
    database: Database
    machine: Machine

    def extend(
        self, timings: Timings, problems: Sequence[Problem], found: Sequence[Region]
    ) -> Timings:
        remembered = self._choices(problems)
        choices = {key: choice for key, choice in remembered.items() if key not in timings.choices}
        with_choices = dataclasses.replace(
            timings,
            choices={**timings.choices, **choices},
            failed=self._failed(problems),
            machine=self.machine,
        )
        here = [region for region in found if region.arch == self.machine.arch]
        bench = Bench(with_choices, self.database, self.machine, deadline=-math.inf, stream=None)
        known = compare(here, self.subject.original, self.subject.precision, bench)
        return dataclasses.replace(with_choices, comparisons={**known, **timings.comparisons})

    def settled(self, chosen: Plan, archs: Sequence[int], fuse: str, timings: Timings) -> Plan:
        """The plan that the database's times of the whole model lead to, as when they were
        measured."""
        if fuse == "all":
            return chosen
        bench = Bench(timings, self.database, self.machine, -math.inf, None, _say_nothing)
        return settle(self.subject, archs, fuse, timings, chosen, bench)[0]

    def _choices(self, problems: Sequence[Problem]) -> dict[tuple[Problem, int], Choice]:
        best = {
            problem: self.database.best(kernel_key(problem, self.machine))
            for problem in dict.fromkeys(problems)
        }
        return {
            (p, self.machine.arch): Choice(m.config, m.us, m.mad)
            for p, m in best.items()
            if m is not None and m.config is not None
        }

    def _failed(self, problems: Sequence[Problem]) -> frozenset[tuple[Problem, int]]:
        arch = get(self.machine.arch)
        return frozenset(
            (problem, arch.number)
            for problem in dict.fromkeys(problems)
            if nothing_runs(
                problem, arch, self.database.measurements(kernel_key(problem, self.machine))
            )
        )


@contextlib.contextmanager
def _memory(subject: Subject, archs: Sequence[int], locked: Timings) -> Iterator[_Memory | None]:
    """The database's timings; None without a GPU or a database, for another architecture, or if a
    lock decides alone."""
    local = gpu.local_arch()
    if (
        locked.frozen
        or local is None
        or by_name(local).number not in archs
        or not default_path().exists()
    ):
        yield None
        return
    try:
        with Profiler(by_name(local).number) as profiler:
            machine = profiler.machine
    except OnnxboltError as error:
        logger.info(
            "measurements of earlier runs are not used, since this machine cannot be"
            " identified: %s",
            error,
        )
        yield None
        return
    with Database() as database:
        yield _Memory(subject, database, machine)


# --- measuring ------------------------------------------------------------------------------------


def _tunable(archs: Sequence[int]) -> int:
    """The local GPU's architecture. Raises InputError if there is no GPU, or if its architecture is
    not planned for."""
    local = gpu.local_arch()
    if local is None:
        raise InputError(
            f"{option('tune', True)} needs an NVIDIA GPU of a supported architecture, and"
            " this machine has none: run it on a machine that has one, or use a lock file"
            f" made there ({option('lock')} and {option('frozen', True)})"
        )
    if by_name(local).number not in archs:
        raise InputError(
            f"{option('tune', True)} measures on the local GPU, but its architecture {local}"
            f" is not among those of {option('archs')}: add it"
        )
    return by_name(local).number


@contextlib.contextmanager
def _gpus(
    archs: Sequence[int], options: Options, messages: Messages
) -> Iterator[Callable[[], Sequence[Gpus]]]:
    """Starts the GPUs to measure on. The result waits for them: one entry for each architecture
    that there are any of. Both raise InputError if there are none."""
    uuids = () if options.scheduler else gpu.uuids()
    count = len(uuids) if options.gpus == "all" else int(options.gpus)
    if count > max(len(uuids), 1):
        raise InputError(f"{option('gpus', count)}: this machine has {len(uuids)} of them")
    if options.scheduler or count > 1:
        with cluster_gpus(uuids[:count], archs, options, messages) as started:
            yield started
    else:
        with Profiler(_tunable(archs)) as profiler:
            profiler.begin()
            yield lambda: [OneGpu(profiler, profiler.machine)]


class _Kernels:
    """Tunes kernels within the budget of `options`, which began at `start` (time.monotonic)."""

    def __init__(
        self,
        options: Options,
        database: Database,
        gpus: Sequence[Gpus],
        watch: Progress,
        start: float,
    ) -> None:
        self._options, self._database, self._gpus = options, database, gpus
        self._watch, self._start = watch, start
        self._deadline = start + (math.inf if options.budget is None else options.budget)
        self._problems: list[Problem] = []
        self.tuning = Tuning()

    def tune(self, timings: Timings, problems: Sequence[Problem], share: float) -> Timings:
        """Tune kernels for at most `share` of the time that is left, including the problems of
        earlier rounds: their known times cost nothing, and the report covers all."""
        known = set(self._problems)
        self._problems += [problem for problem in problems if problem not in known]
        tunings = []
        for i, gpus in enumerate(self._gpus):
            timings, tuning = self._tune_on(gpus, timings, share / (len(self._gpus) - i))
            tunings.append(tuning)
        self.tuning = together([("", tuning) for tuning in tunings]).after(self.tuning)
        return timings

    def _tune_on(self, gpus: Gpus, timings: Timings, share: float) -> tuple[Timings, Tuning]:
        machine, trials = gpus.machine, self._options.trials
        arch = get(machine.arch)
        tasks = tasks_of(self._problems, arch, trials)
        strategy = strategy_named(self._options.strategy)
        budget = 0.0 if self._interrupted else self._left() * share
        with self._watch as progress:
            found, tuning = tune(
                tasks,
                self._database,
                gpus,
                partial(_build, gpus.compile_each),
                machine,
                budget=budget,
                progress=progress,
                capacity=_QUEUED * len(os.sched_getaffinity(0)),
                scheduler=Guided(tasks, strategy, arch, trials) if strategy else None,
            )
        others = frozenset(each for each in timings.failed if each[1] != machine.arch)
        timings = dataclasses.replace(
            timings,
            choices={**timings.choices, **found.choices},
            failed=others | found.failed,
            machine=machine,
        )
        return timings, tuning

    def take_stock(self) -> None:
        """Note the time that was spent, and whether the budget is."""
        self._note(seconds=time.monotonic() - self._start)
        if self._left() <= 0 and self.tuning.ended_by == "done":
            self._note(ended_by="budget")
        if self._problems and self.tuning.ended_by == "budget" and not self.tuning.tasks:
            self._note(notes=tuple(dict.fromkeys((*self.tuning.notes, NOTHING_MEASURED))))

    @property
    def _interrupted(self) -> bool:
        return self.tuning.ended_by == "interrupt"

    def _note(self, **values: object) -> None:
        self.tuning = dataclasses.replace(self.tuning, **values)  # type: ignore[arg-type]

    def _left(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)


class _Measuring(_Kernels):
    """Tunes kernels and compares regions of one subject, within one budget for both."""

    def __init__(
        self,
        subject: Subject,
        options: Options,
        database: Database,
        gpus: Sequence[Gpus],
        messages: Messages,
        watch: Progress,
        start: float,
    ) -> None:
        super().__init__(options, database, gpus, watch, start)
        self._subject, self._messages = subject, messages
        self._last = self._deadline  # the end of the last turn
        # bodies of control flow are no whole models
        self.target = None if subject.places else options.target

    @property
    def machine(self) -> Machine:
        """That of the first GPU."""
        return self._gpus[0].machine

    def begin(self, seconds: float) -> None:
        """Begin a turn of so many seconds, which repeats nothing that earlier ones measured."""
        self._deadline = min(self._last, time.monotonic() + seconds)
        self._note(notes=(), whole=None)

    def at_end(self) -> bool:
        """True if no turn follows: the target is met, which is noted, or there is nothing more to
        try, or no time."""
        whole = self.tuning.whole
        stopped = self.tuning.ended_by == "budget" and time.monotonic() < self._last
        met = self.target is not None and whole is not None and whole.ours_us <= self.target * US
        if met and stopped:
            self._note(ended_by="target")
        return met or not stopped

    def extend(
        self, timings: Timings, problems: Sequence[Problem], found: Sequence[Region]
    ) -> Timings:
        timings = self.tune(timings, problems, _KERNELS_SHARE if found else 1.0)
        comparisons: dict[str, Comparison] = {}
        for gpus in self._gpus:
            here = [region for region in found if region.arch == gpus.machine.arch]
            comparisons |= self._compare(gpus, here, timings) if here else {}
        self.take_stock()
        return dataclasses.replace(timings, comparisons={**timings.comparisons, **comparisons})

    def settled(self, chosen: Plan, archs: Sequence[int], timings: Timings) -> Plan:
        """The plan without the regions that make the whole model slower."""
        gpus, options = self._gpus[0], self._options
        if options.fuse == "all" or not _compares(gpus):
            return chosen

        def checked(deadline: float) -> Plan:
            bench = self._bench(gpus, timings, deadline)
            plan, whole = settle(self._subject, archs, options.fuse, timings, chosen, bench)
            self._note(whole=whole)
            return plan

        found = self._or_remembered(lambda: checked(self._deadline), lambda: checked(-math.inf))
        self.take_stock()
        if found.candidates and self.tuning.whole is None:
            self._note(
                notes=(*self.tuning.notes, "the whole model was not compared with ONNX Runtime")
            )
        return found

    def _compare(
        self, gpus: Gpus, found: Sequence[Region], timings: Timings
    ) -> dict[str, Comparison]:
        """Compare regions; comparisons made before an interrupt count."""
        if not _compares(gpus):
            self._messages(
                "nothing is compared with ONNX Runtime, because this onnxruntime has no"
                " CUDA provider (install onnxruntime-gpu); predictions decide what is fused"
            )
            return {}

        def answers(budget: float) -> dict[str, Comparison]:
            bench = self._bench(gpus, timings, time.monotonic() + budget)
            return compare(found, self._subject.original, self._subject.precision, bench)

        return self._or_remembered(
            lambda: answers(self._left() * _REGIONS_SHARE), lambda: answers(-math.inf)
        )

    def _bench(self, gpus: Gpus, timings: Timings, deadline: float) -> Bench:
        racing = gpus.racing
        stream = Stream() if racing is None and deadline > -math.inf else None
        return Bench(
            timings, self._database, gpus.machine, deadline, stream, self._messages, racing
        )

    def _or_remembered(self, measure: Callable[[], T], recall: Callable[[], T]) -> T:
        """The result of `measure` or, after Ctrl-C or the loss of the device, of `recall`."""
        if not self._interrupted:
            try:
                return measure()
            except KeyboardInterrupt:
                self._note(ended_by="interrupt")
            except CudaError as error:
                self._note(
                    notes=(*self.tuning.notes, f"comparing with ONNX Runtime ended early: {error}")
                )
        return recall()


def _compares(gpus: Gpus) -> bool:
    """True if ONNX Runtime has a CUDA provider where these GPUs are."""
    racing = gpus.racing
    return CUDA in available_providers() if racing is None else racing.cudnn > 0


def _build(
    compiler: library.Compiler, instances: Sequence[Instance], stop: threading.Event
) -> Iterator[library.Result]:
    return library.build(instances, stop=stop, compiler=compiler)


def _say_nothing(message: str) -> None:
    pass
