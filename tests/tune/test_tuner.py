"""The tuning loop with a compiler and a GPU that take no time: what is measured, remembered, and
left when it ends early."""

from __future__ import annotations

import dataclasses
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.errors import BuildError, OnnxboltError
from onnxbolt.measurements.records import Status
from onnxbolt.measurements.strategy import Task
from onnxbolt.measurements.timings import Timings
from onnxbolt.problems import Problem
from onnxbolt.tune.compiling import Build
from onnxbolt.tune.database import Database
from onnxbolt.tune.library import Result
from onnxbolt.tune.measuring import Candidates, Gpus, Measured, OneGpu
from onnxbolt.tune.progress import Silent, TaskLine, TotalLine
from onnxbolt.tune.summary import Tuning, spearman
from onnxbolt.tune.tasks import instance_of, tasks_of
from onnxbolt.tune.tuner import tune
from tests.tune.fakes import MACHINE, MODEL, Builder, Clock, Profiler, Records, conv, gemm, true_us

TASKS = tasks_of(MODEL, get(90))


def tuned(
    records: Records | Database,
    profiler: Profiler,
    build: Build | None = None,
    tasks: list[Task] = TASKS,
    budget: float = math.inf,
) -> tuple[Timings, Tuning]:
    return tune(
        tasks, records, profiler, build or Builder(), MACHINE, budget=budget, clock=profiler.clock
    )


def test_the_best_measured_configuration_of_every_task_is_the_answer() -> None:
    records, profiler = Records(), Profiler(Clock())
    timings, tuning = tuned(records, profiler)
    assert (tuning.ended_by, tuning.trials) == ("done", len(records.rows))
    assert timings.machine == MACHINE
    best = sum(task.occurrences * timings.choices[task.problem, 90].us for task in TASKS)
    assert tuning.history[-1].us == pytest.approx(best)
    assert [m.us for m in tuning.history] == sorted((m.us for m in tuning.history), reverse=True)
    for task in TASKS:
        choice = timings.choices[task.problem, 90]
        assert choice.us == min(
            true_us(p, config) for p, config in profiler.measured if p == task.problem
        )
        assert choice.us <= 1.05 * min(true_us(task.problem, c.config) for c in task.candidates)
        assert choice.us <= true_us(task.problem, task.candidates[0].config)


def test_a_second_run_compiles_and_measures_nothing_and_answers_the_same() -> None:
    records = Records()
    first, _ = tuned(records, Profiler(Clock()))
    build, profiler, start = Builder(), Profiler(Clock()), time.monotonic()
    second, tuning = tuned(records, profiler, build)
    assert second == first
    assert (build.compiled, profiler.measured, tuning.trials) == ([], [], 0)
    assert time.monotonic() - start < 2


def test_nothing_is_measured_twice_and_kernels_are_compiled_once() -> None:
    build, profiler = Builder(), Profiler(Clock())
    tuned(Records(), profiler, build)
    assert len(set(profiler.measured)) == len(profiler.measured)
    assert len(set(build.compiled)) == len(build.compiled)


def test_the_budgets_end_keeps_the_best_so_far_and_the_next_run_goes_on() -> None:
    records, profiler = Records(), Profiler(Clock())
    timings, tuning = tuned(records, profiler, budget=2.0)
    assert tuning.ended_by == "budget"
    assert tuning.seconds < 12
    assert timings.choices
    measured = set(profiler.measured)
    rest = Profiler(Clock())
    whole, _ = tuned(records, rest)
    assert not measured & set(rest.measured)
    assert len(whole.choices) == len(TASKS)


class SlowGpus(Gpus):
    """GPUs that begin at once what is submitted, and take some seconds of the clock for it."""

    machine = MACHINE

    def __init__(self, clock: Clock) -> None:
        self.clock, self.begun = clock, list[tuple[float, Measured]]()

    def submit(self, task: int, problem: Problem, candidates: Candidates) -> None:
        found = Profiler(Clock()).measure(problem, candidates)
        self.begun.append((self.clock() + 5.0 + 2.0 * task, Measured(task, found, 5.0)))

    def done(self, timeout: float) -> list[Measured]:
        self.clock.now += timeout
        found = [measured for end, measured in self.begun if end <= self.clock()]
        self.begun = [each for each in self.begun if each[1] not in found]
        return found

    @property
    def busy(self) -> bool:
        return bool(self.begun)

    def cancel(self, task: int | None = None) -> None:
        pass


def test_measurements_that_have_begun_when_the_budget_ends_are_waited_for() -> None:
    records, gpus = Records(), SlowGpus(Clock())
    timings, tuning = tune(
        TASKS[:2], records, gpus, Builder(), MACHINE, budget=1.0, clock=gpus.clock
    )
    assert tuning.ended_by == "budget"
    assert not gpus.busy
    assert len(timings.choices) == 2


def test_an_interrupt_keeps_the_best_so_far() -> None:
    records = Records()
    timings, tuning = tuned(records, Profiler(Clock(), interrupt_after=20))
    assert tuning.ended_by == "interrupt"
    assert len(records.rows) >= 20
    assert timings.choices


def test_a_kill_leaves_what_was_measured() -> None:
    """Each measurement is in the database before the next one begins, however the process ends."""
    records = Records()

    class Killed(BaseException):
        pass

    class Watched(Profiler):
        def measure(self, *arguments):  # type: ignore[no-untyped-def]
            assert len(records.rows) == len(self.measured)
            if len(self.measured) > 30:
                raise Killed
            return super().measure(*arguments)

    with pytest.raises(Killed):
        tuned(records, Watched(Clock()))
    assert len(records.rows) > 30


def test_kill_9_leaves_a_usable_database_and_the_next_run_goes_on(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from onnxbolt.tune.database import Database
from tests.tune.test_tuner import *

class Killing(Profiler):
    def measure(self, *arguments):
        if len(self.measured) > 30:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().measure(*arguments)

tuned(Database(Path(sys.argv[1])), Killing(Clock()))
"""
    path = tmp_path / "tuning.sqlite"
    done = subprocess.run(
        [sys.executable, "-c", script, path], check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == -signal.SIGKILL
    with Database(path) as database:
        left = len(database)
        assert left > 30
        rest = Profiler(Clock())
        timings, _ = tuned(database, rest)
        assert len(database) == left + len(rest.measured)
    assert timings == tuned(Records(), Profiler(Clock()))[0]


def test_what_fails_is_remembered_and_never_chosen() -> None:
    task = TASKS[0]
    broken = {candidate.config for candidate in task.candidates[:3]}
    refused = task.candidates[3].config.instance()
    records, profiler = Records(), Profiler(Clock(), broken=broken)
    timings, tuning = tuned(records, profiler, Builder(lambda instance: instance.config == refused))
    statuses = {row.status for row in records.rows}
    assert {Status.OK, Status.CRASHED, Status.UNCOMPILED} == statuses
    assert not {choice.config for choice in timings.choices.values()} & broken
    assert tuning.tasks[0].failed >= 3
    again = Profiler(Clock())
    tuned(records, again)
    assert again.measured == []


def test_a_problem_that_cannot_be_measured_costs_itself_alone() -> None:
    """No memory for its operands, say: it is tried once, and the report says why."""
    huge = TASKS[0].problem

    class Small(Profiler):
        asked = 0

        def measure(self, problem, candidates):  # type: ignore[no-untyped-def]
            if problem != huge:
                return super().measure(problem, candidates)
            self.asked += 1
            raise OnnxboltError("out of memory")

    profiler = Small(Clock())
    timings, tuning = tuned(Records(), profiler)
    assert profiler.asked == 1
    assert {problem for problem, _ in timings.choices} == {task.problem for task in TASKS[1:]}
    assert tuning.notes == (f"{TASKS[0].name} was not measured: out of memory",)
    assert tuning.ended_by == "done"


def test_where_nothing_runs_there_is_no_choice() -> None:
    timings, tuning = tuned(Records(), Profiler(Clock()), Builder(lambda _: True))
    assert timings.choices == {}
    assert (tuning.tasks, tuning.quality, tuning.ended_by) == ((), (), "done")


def test_an_error_of_the_compiler_itself_is_raised() -> None:
    def build(instances: Sequence[Instance], stop: threading.Event) -> Iterator[Result]:
        raise BuildError("no space left")
        yield

    with pytest.raises(BuildError, match="no space"):
        tuned(Records(), Profiler(Clock()), build)


def test_measuring_overlaps_with_compiling_and_the_budgets_end_stops_compilers() -> None:
    profiler = Profiler(Clock())
    seen: list[bool] = []

    def build(instances: Sequence[Instance], stop: threading.Event) -> Iterator[Result]:
        yield from Builder()(instances[:1], stop)
        # the compiler is at work, and the GPU measures meanwhile
        while not profiler.measured and not stop.is_set():
            time.sleep(0.01)
        seen.append(stop.is_set())
        seen.append(stop.wait(10))

    timings, tuning = tune(TASKS, Records(), profiler, build, MACHINE, budget=0.5)
    assert seen == [False, True]
    assert tuning.ended_by == "budget"
    assert timings.choices
    assert tuning.seconds < 5


def test_kernels_that_can_no_longer_win_are_abandoned() -> None:
    tasks, records = tasks_of([gemm()], get(90)), Records()
    late: list[Instance] = []
    best, *_, slowest = tasks[0].candidates  # as predicted, and predictions turn out to be right
    assert slowest.us > 1.3 * best.us

    def build(instances: Sequence[Instance], stop: threading.Event) -> Iterator[Result]:
        late.extend(i for i in instances if i == instance_of(gemm(), slowest.config))
        yield from Builder()([i for i in instances if i not in late], stop)
        stop.wait(10)  # that one takes for ever

    start = time.monotonic()
    timings, tuning = tune(tasks, records, Profiler(Clock(), spread=0.0), build, MACHINE)
    assert late
    assert tuning.ended_by == "done"
    assert time.monotonic() - start < 5
    again, nothing = tuned(records, Profiler(Clock()), tasks=tasks)
    assert (again, nothing.trials) == (timings, 0)


def test_progress_tells_of_every_measurement_and_of_the_whole() -> None:
    class Seen(Silent):
        lines: list[TaskLine | TotalLine] = []  # noqa: RUF012

        def show(self, line: TaskLine | TotalLine) -> None:
            self.lines.append(line)

    profiler = Profiler(Clock())
    tune(
        TASKS,
        Records(),
        profiler,
        Builder(),
        MACHINE,
        budget=100.0,
        progress=Seen(),
        clock=profiler.clock,
    )
    tasks = [line for line in Seen.lines if isinstance(line, TaskLine)]
    totals = [line for line in Seen.lines if isinstance(line, TotalLine)]
    assert {line.number for line in tasks} == set(range(1, len(TASKS) + 1))
    assert all(
        line.current_tflops <= line.best_tflops and line.tried <= line.planned for line in tasks
    )
    last = totals[-1]
    assert last.tried == last.planned == len(profiler.measured)
    assert all(line.seconds_left is not None and line.seconds_left <= 100 for line in totals)


def test_the_report_says_how_good_the_prediction_was() -> None:
    _, perfect = tuned(Records(), Profiler(Clock(), spread=0.0))
    assert [q.kind for q in perfect.quality] == ["conv", "gemm"]
    assert all(q.regret == pytest.approx(1.0) for q in perfect.quality)
    _, rough = tuned(Records(), Profiler(Clock(), spread=0.3))
    for q in rough.quality:
        regrets = [task.regret for task in rough.tasks if task.kind == q.kind]
        assert q.regret == pytest.approx(math.prod(regrets) ** (1 / len(regrets)))
        assert q.regret > 1.0
        assert q.rank_correlation is not None
        assert 0 < q.rank_correlation < 1
    assert sum(q.tasks for q in rough.quality) == len(rough.tasks) == len(TASKS)
    row = rough.tasks[0]
    assert row.best_us <= row.first_us
    assert row.best_tflops == pytest.approx(TASKS[0].problem.flops / row.best_us / 1e6)
    dataclasses.asdict(rough)


def test_spearman() -> None:
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert spearman([1, 2, 3], [30, 20, 10]) == pytest.approx(-1)
    assert spearman([1, 2, 3, 4], [1, 1, 2, 2]) == pytest.approx(0.8944, abs=1e-4)
    assert spearman([1, 1, 1], [1, 2, 3]) is None


def test_other_problems_and_machines_do_not_matter() -> None:
    records = Records()
    tuned(records, Profiler(Clock()), tasks=tasks_of([gemm(64, 64, 64)], get(90)))
    other = dataclasses.replace(MACHINE, gpu="Other")
    profiler = Profiler(Clock())
    tune(tasks_of([conv(14)], get(90)), records, profiler, Builder(), other, clock=profiler.clock)
    assert profiler.measured


def test_candidates_of_a_waiting_task_race_together() -> None:
    profiler, (first, second) = Profiler(Clock()), TASKS[:2]
    gpu = OneGpu(profiler, MACHINE, profiler.clock)
    one, other, *_ = (candidate.config for candidate in first.candidates)
    alone = second.candidates[0].config
    library = Path("library.so")
    gpu.submit(0, first.problem, [(one, library)])
    gpu.submit(1, second.problem, [(alone, library)])
    gpu.submit(0, first.problem, [(other, library)])
    raced = list[tuple[int, list[object]]]()
    while gpu.busy:
        for measured in gpu.done(0.0):
            assert not isinstance(measured.outcome, OnnxboltError)
            raced.append((measured.task, [row.config for row in measured.outcome]))
    assert raced == [(0, [one, other]), (1, [alone])]
    gpu.submit(0, first.problem, [(one, library)])
    gpu.cancel(1)
    assert gpu.busy
    gpu.cancel(0)
    assert not gpu.busy
