"""Measures candidates on the GPUs of a cluster."""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnxbolt import checks
from onnxbolt.errors import InputError
from onnxbolt.families import KernelConfig
from onnxbolt.measurements.keys import kernel_key, plain
from onnxbolt.measurements.records import Machine, Measurement, Status
from onnxbolt.problems import UNBOUNDED, Problem
from onnxbolt.tune.cluster import tasks
from onnxbolt.tune.cluster.pool import Job, Messages, Pool, RefusedError, Worker
from onnxbolt.tune.library import profiler_library
from onnxbolt.tune.measuring import Candidates, Gpus, Measured
from onnxbolt.tune.profiler import machine_of
from onnxbolt.tune.rows import measurement_of
from onnxbolt.tune.soundness import check_measurement

# Seconds of a worker that does not hang: for operands and reference, and for each candidate with
# its other launches. The profiler's child has shorter limits of its own.
_PROBLEM, _CANDIDATE = 180.0, 120.0


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

    def __init__(self, pool: Pool, machine: Machine) -> None:
        self._pool, self._machine = pool, machine
        self._outbox: queue.SimpleQueue[tuple[Job, Any, float]] = queue.SimpleQueue()
        self._tasks: dict[Job, tuple[int, Candidates]] = {}
        self._best: dict[Problem, Measurement] = {}
        self._libraries: dict[tuple[Problem, KernelConfig], Path] = {}

    @property
    def machine(self) -> Machine:
        return self._machine

    @property
    def count(self) -> int:
        return self._pool.count(self._machine)

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
        for measurement in found:
            best = self._best.get(problem)
            if measurement.status is Status.OK and (best is None or measurement.us < best.us):
                self._best[problem] = measurement
        return found
