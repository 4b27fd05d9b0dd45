"""Measures candidates on the GPUs of a cluster."""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnxbolt import checks
from onnxbolt.errors import InputError, OnnxboltError
from onnxbolt.families import KernelConfig
from onnxbolt.measurements.keys import kernel_key, plain
from onnxbolt.measurements.records import Machine, Measurement, Status
from onnxbolt.problems import UNBOUNDED, Problem
from onnxbolt.tune.cluster import tasks
from onnxbolt.tune.cluster.compilers import Compilers
from onnxbolt.tune.cluster.pool import Job, Messages, Pool, RefusedError, Worker
from onnxbolt.tune.library import Compiler, profiler_library
from onnxbolt.tune.measuring import Candidates, Gpus, Measured
from onnxbolt.tune.profiler import machine_of
from onnxbolt.tune.racing import Lap, Race, RaceError, Racing
from onnxbolt.tune.rows import measurement_of
from onnxbolt.tune.sessions import Sample
from onnxbolt.tune.soundness import check_measurement

# Seconds of a worker that does not hang: for operands and reference, and for each candidate with
# its other launches. The profiler's child has shorter limits of its own.
_PROBLEM, _CANDIDATE = 180.0, 120.0
# seconds of a race that does not hang: it tries some settings of some models
_RACE = 600.0
_MOST_BYTES = 2**30  # bytes of all models of a race


def admit(pool: Pool, worker: Worker, facts: dict[str, Any]) -> None:
    """Complete a worker that has a GPU with its machine. Raises RefusedError."""
    if facts["arch"] is None:
        raise RefusedError("it finds no GPU of a supported architecture")
    arch = checks.integer("arch", facts["arch"], 0, 1000)
    worker.profiler = pool.send(worker, profiler_library(arch))
    device = pool.ask(worker, tasks.identify, _PROBLEM, arch=arch, profiler=worker.profiler)
    checks.text("name", device["name"])
    checks.integer("power_limit", device["power_limit"], 0, UNBOUNDED)
    worker.machine = machine_of(arch, device)
    worker.cudnn = checks.integer("cuDNN", facts["cuDNN"], 0, UNBOUNDED)
    workers = [each for each in pool.admitted(worker.machine) if each.stand_in is None]
    if others := {each.cudnn for each in workers} - {worker.cudnn}:
        raise RefusedError(f"its cuDNN is {worker.cudnn}, and that of the others {others.pop()}")


def machines_of(
    workers: Sequence[Worker], archs: Sequence[int], messages: Messages
) -> list[Machine]:
    """The most frequent machine of each planned architecture. Raises InputError if there is
    none."""
    counted = Counter(worker.machine for worker in workers if worker.machine is not None)
    chosen: dict[int, Machine] = {}
    for machine in sorted(counted, key=lambda m: (-counted[m], m.gpu, m.power_limit)):
        if machine.arch in archs and chosen.setdefault(machine.arch, machine) is machine:
            continue
        messages(f"{counted[machine]} x {machine.gpu} ({machine.power_limit} W) is not used")
    if not chosen:
        raise InputError(
            "the cluster has no GPU of an architecture that is planned for: "
            + ", ".join(sorted({machine.gpu for machine in counted}))
        )
    return [chosen[arch] for arch in archs if arch in chosen]


class ClusterGpus(Gpus):
    """The GPUs of one machine's kind in a pool."""

    def __init__(self, pool: Pool, machine: Machine, compilers: Compilers) -> None:
        self._pool, self._machine, self._compilers = pool, machine, compilers
        self._outbox: queue.SimpleQueue[tuple[Job, Any, float]] = queue.SimpleQueue()
        self._tasks: dict[Job, tuple[int, Candidates]] = {}
        self._best: dict[Problem, Measurement] = {}
        self._libraries: dict[tuple[Problem, KernelConfig], Path] = {}

    @property
    def machine(self) -> Machine:
        return self._machine

    @property
    def racing(self) -> ClusterRacing:
        return ClusterRacing(self._pool, self._machine)

    @property
    def compile_each(self) -> Compiler:
        return self._compilers.compile_each

    def submit(self, task: int, problem: Problem, candidates: Candidates) -> None:
        """Candidates of a task that has not begun yet race together with the earlier ones."""
        since = time.monotonic()
        for waiting in self._forget(task):
            earlier = self._tasks.pop(waiting)[1]
            candidates, since = [*earlier, *candidates], min(since, waiting.since)
        for config, library in candidates:
            self._libraries[problem, config.instance()] = library

        def measure(worker: Worker, moved: bool) -> list[Measurement]:
            racing = list(candidates)
            incumbent = self._best.get(problem)
            if moved and incumbent is not None and incumbent.config is not None:
                library = self._libraries[problem, incumbent.config.instance()]
                racing.append((incumbent.config, library))
            return self._measure(worker, problem, racing)

        job = Job(problem, self._machine, measure, self._outbox, since=since)
        self._tasks[job] = task, candidates
        self._pool.submit(job)

    def done(self, timeout: float) -> list[Measured]:
        found: list[Measured] = []
        try:
            item = self._outbox.get(timeout=max(timeout, 0.0))
            while True:
                job, outcome, seconds = item
                if job in self._tasks:
                    found.append(Measured(self._tasks.pop(job)[0], outcome, seconds))
                item = self._outbox.get_nowait()
        except queue.Empty:
            if not found:
                self._pool.check()
            return found

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def cancel(self, task: int | None = None) -> None:
        for job in self._forget(task):
            del self._tasks[job]

    def _forget(self, task: int | None) -> list[Job]:
        """The jobs of a task, or of all, that will not begin any more."""
        return self._pool.cancel({job for job, of in self._tasks.items() if task in (None, of[0])})

    def _measure(self, worker: Worker, problem: Problem, racing: Candidates) -> list[Measurement]:
        """Measurements on the worker's GPU, of which the best is kept."""
        found = (
            worker.stand_in.measure(problem, racing)
            if worker.stand_in is not None
            else self._asked(worker, problem, racing)
        )
        for measurement in found:
            best = self._best.get(problem)
            if measurement.status is Status.OK and (best is None or measurement.us < best.us):
                self._best[problem] = measurement
        return found

    def _asked(self, worker: Worker, problem: Problem, racing: Candidates) -> list[Measurement]:
        """Checked measurements. Raises ValueError for those that the worker cannot have made."""
        reply = self._pool.ask(
            worker,
            tasks.measure,
            _PROBLEM + _CANDIDATE * len(racing),
            arch=self._machine.arch,
            profiler=worker.profiler,
            machine=plain(self._machine),
            kind=type(problem).__name__,
            problem=plain(problem),
            candidates=[
                [config.row(), self._pool.send(worker, library)] for config, library in racing
            ],
        )
        found = [measurement_of(tuple(row)) for row in reply["measurements"]]
        key = kernel_key(problem, self._machine)
        for measurement in found:
            check_measurement(measurement)
            if measurement.key != key:
                raise ValueError("a measurement of another problem")
        asked = [config for config, _ in racing]
        if [measurement.config for measurement in found[: len(asked)]] != asked:
            raise ValueError("measurements of other candidates")
        return found


class ClusterRacing(Racing):
    """Races on the GPUs of one machine's kind in a pool, all models of a race on one GPU."""

    def __init__(self, pool: Pool, machine: Machine) -> None:
        self._pool, self._machine = pool, machine
        self._outbox: queue.SimpleQueue[tuple[Job, Any, float]] = queue.SimpleQueue()
        self._numbers: dict[Job, int] = {}

    @property
    def cudnn(self) -> int:
        workers = self._pool.admitted(self._machine)
        if any(each.stand_in for each in workers):
            return super().cudnn  # theirs, too, when they have joined
        return max((each.cudnn for each in workers), default=0)

    @property
    def slots(self) -> int:
        return len(self._pool.admitted(self._machine)) + 1  # the next one is prepared meanwhile

    def submit(self, number: int, race: Race) -> None:
        def run(worker: Worker, moved: bool) -> list[Lap | None] | RaceError:
            return self._run(worker, race)

        job = Job(("race", number), self._machine, run, self._outbox, away=True)
        self._numbers[job] = number
        self._pool.submit(job)

    def done(self) -> tuple[int, list[Lap | None] | RaceError]:
        while True:
            try:
                job, outcome, _ = self._outbox.get(timeout=1.0)
            except queue.Empty:
                self._pool.check()
                continue
            if isinstance(outcome, OnnxboltError):
                outcome = RaceError(str(outcome))
            return self._numbers.pop(job), outcome

    def _run(self, worker: Worker, race: Race) -> list[Lap | None] | RaceError:
        """Checked laps. Raises ValueError for those that the worker cannot have made."""
        if sum(map(len, race.models)) > _MOST_BYTES:
            return RaceError("its models are too large to be sent to a worker")
        reply = self._pool.ask(
            worker,
            tasks.race,
            _RACE,
            *race.models,
            library=race.library and self._pool.send(worker, race.library),
            left=max(min(race.deadline - time.monotonic(), _RACE / 2), -1.0),
        )
        if "no race" in reply:
            return RaceError(checks.text("no race", reply["no race"]))
        laps = [lap and _lap(*lap) for lap in reply["laps"]]
        if len(laps) != len(race.models) or None in laps[:2]:
            raise ValueError("laps of other models")
        return laps


def _lap(setting: object, times: Sequence[object]) -> Lap:
    sample = Sample(tuple(checks.number("us", time) for time in times))
    if not sample.times or not sample.median > 0:
        raise ValueError("a measured time of 0")
    return Lap(checks.text("setting", setting), sample)
