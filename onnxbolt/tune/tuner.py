"""The tuning loop: finished kernels are measured while others are compiled, and every measurement
is remembered at once."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.errors import OnnxboltError
from onnxbolt.families import KernelConfig
from onnxbolt.measurements.keys import kernel_key
from onnxbolt.measurements.records import Machine, Measurement, Status
from onnxbolt.measurements.strategy import Task
from onnxbolt.measurements.timings import Choice, Timings
from onnxbolt.tune.compiling import Build, Compiling
from onnxbolt.tune.library import Uncompiled
from onnxbolt.tune.measuring import Gpus, Measured, OneGpu, Profiler
from onnxbolt.tune.progress import Progress, Silent, TaskLine, TotalLine
from onnxbolt.tune.scheduler import Scheduler, Trial
from onnxbolt.tune.summary import Best, Tuning, history, quality, tuned_task
from onnxbolt.tune.tasks import instance_of, nothing_runs

_PATIENCE = 1.0  # seconds to wait before the progress is shown again
_TURN = 0.1  # seconds to wait for GPUs before the compiler is asked for more
_LAST = 20.0  # seconds that measurements which have begun may take when the budget ends


class Records(Protocol):
    """Remembers measurements."""

    def add(self, *measurements: Measurement) -> None: ...

    def measurements(self, key: str) -> Sequence[Measurement]: ...


def tune(
    tasks: Sequence[Task],
    database: Records,
    profiler: Profiler | Gpus,
    build: Build,
    machine: Machine,
    *,
    budget: float = math.inf,
    progress: Progress | None = None,
    capacity: int = 64,
    clock: Callable[[], float] = time.monotonic,
    scheduler: Scheduler | None = None,
) -> tuple[Timings, Tuning]:
    """Measure candidates of `tasks` until none is expected to pay, `budget` seconds are over, or
    Ctrl-C is pressed; returns the best so far.

    At most `capacity` kernels are in the compiler's queue; a longer queue would choose kernels too
    early. `scheduler` decides what is measured; by default it is the tuner's own. Measurements that
    `database` has for `machine`, including failures, are not repeated, so that a run continues
    where the last one ended. Raises BuildError if compiling fails for a reason that no kernel is to
    blame for.
    """
    scheduler = scheduler or Scheduler(tasks)
    gpus = profiler if isinstance(profiler, Gpus) else OneGpu(profiler, machine, clock)
    run = _Run(scheduler, database, gpus, machine, progress or Silent(), capacity, clock)
    try:
        with Compiling(build) as compiling:
            ended_by = run.until(budget, compiling)
        run.end()
    except KeyboardInterrupt:
        gpus.cancel()
        ended_by = "interrupt"
    return run.timings(), run.summary(ended_by)


class _Run:
    """The state of one call of `tune`."""

    def __init__(
        self,
        scheduler: Scheduler,
        database: Records,
        gpus: Gpus,
        machine: Machine,
        progress: Progress,
        capacity: int,
        clock: Callable[[], float],
    ) -> None:
        tasks = scheduler.tasks
        self._tasks, self._database, self._gpus, self._machine, self._progress = (
            tasks,
            database,
            gpus,
            machine,
            progress,
        )
        self._capacity, self._clock, self._start = capacity, clock, clock()
        self._keys = [kernel_key(task.problem, machine) for task in tasks]
        self._scheduler = scheduler
        for number, key in enumerate(self._keys):
            for measurement in database.measurements(key):
                self._scheduler.record(number, measurement)
        self._libraries: dict[Instance, Path] = {}
        self._waiting: dict[Instance, list[Trial]] = {}
        self._given_up: dict[int, str] = {}  # tasks that cannot be measured, and why
        self._trials = 0
        self._spent = [0.0] * len(tasks)  # seconds of measuring each task
        self._bests: list[Best] = []
        for number in range(len(tasks)):
            self._note_best(number)

    def until(self, budget: float, compiling: Compiling) -> str:
        """Run, and return the reason for the end."""
        while self._seconds() < budget:
            self._submit(self._request(compiling))
            # kernels that are still being compiled may be unable to win by now
            waiting = bool(self._waiting) and any(
                map(self._scheduler.promising, range(len(self._tasks)))
            )
            if not self._gpus.busy and not waiting:
                return "done"
            patience = 0.0 if self._gpus.busy else min(_PATIENCE, budget - self._seconds())
            for result in compiling.done(patience):
                self._submit(self._take(*result))
            self._collect(budget, _TURN if waiting else _PATIENCE)
            self._show_total(budget)
        return "budget"

    def end(self) -> None:
        """Record what GPUs have begun, and forget the rest."""
        self._gpus.cancel()
        last = self._seconds() + _LAST
        while self._gpus.busy and self._seconds() < last:
            self._collect(last, _PATIENCE)

    def _request(self, compiling: Compiling) -> list[Trial]:
        """Submit the most valuable kernels to the compilers; returns the trials whose kernels are
        compiled already."""
        ready: list[Trial] = []
        new: list[Instance] = []
        known = self._libraries.keys() | self._waiting.keys()
        for instance, trials in self._scheduler.next(self._capacity - len(self._waiting), known):
            if instance in self._libraries:
                ready += trials
            elif instance in self._waiting:
                self._waiting[instance] += trials
            else:
                self._waiting[instance] = trials
                new.append(instance)
        if new:
            compiling.submit(new)
        return ready

    def _take(self, instance: Instance, built: Path | Uncompiled) -> list[Trial]:
        """The trials that waited for this kernel; a kernel that the compiler refused is recorded as
        failed."""
        trials = self._waiting.pop(instance, [])
        if isinstance(built, Path):
            self._libraries[instance] = built
            return trials
        for trial in trials:
            self._record(
                trial.task,
                [
                    Measurement(
                        self._keys[trial.task], trial.config, Status.UNCOMPILED, detail=built.detail
                    )
                ],
            )
        return []

    def _submit(self, trials: Iterable[Trial]) -> None:
        """Submit trials task by task, so that the candidates of a task run at the same clock."""
        by_task: dict[int, list[KernelConfig]] = defaultdict(list)
        for trial in trials:
            if trial.task not in self._given_up:  # given up since these kernels were submitted
                by_task[trial.task].append(trial.config)
        for number, configs in by_task.items():
            problem = self._tasks[number].problem
            self._gpus.submit(
                number, problem, [(c, self._libraries[instance_of(problem, c)]) for c in configs]
            )

    def _collect(self, budget: float, patience: float) -> None:
        """Record what was measured, after waiting for up to `patience` seconds."""
        while self._gpus.busy and self._seconds() < budget:
            found = self._gpus.done(patience)
            for measured in found:
                self._note(measured)
            if not found:
                return
            patience = 0.0

    def _note(self, measured: Measured) -> None:
        self._spent[measured.task] += measured.seconds
        if isinstance(measured.outcome, OnnxboltError):
            # no memory for so large a problem, for instance; the other tasks go on
            self._scheduler.give_up(measured.task)
            self._gpus.cancel(measured.task)
            self._given_up[measured.task] = str(measured.outcome)
        else:
            self._record(measured.task, measured.outcome)

    def _record(self, number: int, measured: Sequence[Measurement]) -> None:
        self._database.add(*measured)
        self._trials += len(measured)
        for measurement in measured:
            self._scheduler.record(number, measurement)
        self._note_best(number)
        self._show_task(number, measured)

    def _note_best(self, number: int) -> None:
        best = self._scheduler.best(number)
        if best is not None:
            self._bests.append(Best(self._seconds(), self._trials, number, best.us))

    def _show_task(self, number: int, measured: Sequence[Measurement]) -> None:
        task, best = self._tasks[number], self._scheduler.best(number)
        current = min((m.us for m in measured if m.status is Status.OK), default=math.inf)
        tried = len(self._scheduler.measured(number))
        self._progress.show(
            TaskLine(
                number + 1,
                len(self._tasks),
                task.name,
                _tflops(task, current),
                _tflops(task, best.us if best else math.inf),
                tried,
                tried + self._scheduler.promising(number),
                self._spent[number],
            )
        )

    def _show_total(self, budget: float) -> None:
        seconds, left = self._seconds(), sum(self._scheduler.worthwhile())
        forecast = left * seconds / self._trials if self._trials else math.inf
        forecast = min(forecast, budget - seconds)
        self._progress.show(
            TotalLine(
                self._trials,
                self._trials + left,
                seconds,
                max(forecast, 0.0) if forecast < math.inf else None,
            )
        )

    def _seconds(self) -> float:
        return self._clock() - self._start

    def timings(self) -> Timings:
        """The best configuration of each task."""
        found = [(task, self._scheduler.best(number)) for number, task in enumerate(self._tasks)]
        arch = self._machine.arch
        choices = {
            (task.problem, arch): Choice(best.config, best.us, best.mad)
            for task, best in found
            if best and best.config
        }
        failed = {
            (task.problem, arch)
            for number, task in enumerate(self._tasks)
            if nothing_runs(task.problem, get(arch), self._scheduler.measured(number).values())
        }
        return Timings(choices, failed=frozenset(failed), machine=self._machine)

    def summary(self, ended_by: str) -> Tuning:
        """The summary of this run for the report."""
        measured = [self._scheduler.measured(number) for number in range(len(self._tasks))]
        rows = tuple(
            row
            for task, results in zip(self._tasks, measured, strict=True)
            if (row := tuned_task(task, results))
        )
        return Tuning(
            rows,
            quality(self._tasks, measured),
            self._seconds(),
            self._trials,
            len(self._libraries),
            ended_by,
            notes=tuple(
                f"{self._tasks[number].name} was not measured: {why}"
                for number, why in self._given_up.items()
            ),
            history=history(self._bests, [task.occurrences for task in self._tasks]),
        )


def _tflops(task: Task, us: float) -> float:
    return task.problem.flops / us / 1e6
