"""The scheduler: where time goes, when a task stops, and that the order of measurements does not
matter."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace
from typing import Any

import pytest

from onnxbolt.archs import get
from onnxbolt.families import named
from onnxbolt.measurements.keys import kernel_key
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.measurements.strategy import Ranked, Task
from onnxbolt.tune.scheduler import Calibration, Outlook, Scheduler, Trial
from onnxbolt.tune.tasks import tasks_of
from tests.tune.fakes import MACHINE, MODEL, conv, gemm, true_us

H200 = get(90)


def measurement(task: Task, trial: Trial, us: float | None) -> Measurement:
    key = kernel_key(task.problem, MACHINE)
    return (
        Measurement(key, trial.config, Status.OK, us, 0.1, 50)
        if us
        else Measurement(key, trial.config, Status.WRONG)
    )


def run(
    scheduler: Scheduler, spread: float, kernels: int = 4, rounds: int = 1000
) -> list[tuple[int, Measurement]]:
    """Measure until nothing is wanted any more."""
    done: list[tuple[int, Measurement]] = []
    for _ in range(rounds):
        trials = [trial for _, some in scheduler.next(kernels) for trial in some]
        if not trials:
            break
        for trial in trials:
            task = scheduler.tasks[trial.task]
            done.append(
                (trial.task, measurement(task, trial, true_us(task.problem, trial.config, spread)))
            )
            scheduler.record(*done[-1])
    return done


def test_expected_improvement_is_the_mean_over_the_distribution() -> None:
    outlook, rng = Outlook(10.0, 0.3), random.Random(0)
    samples = [10.0 * math.exp(rng.gauss(0, 0.3)) for _ in range(200_000)]
    expected = sum(max(0.0, 9.0 - max(y, 7.0)) for y in samples) / len(samples)
    assert outlook.improvement(9.0, 7.0) == pytest.approx(expected, rel=0.02)
    assert outlook.improvement(6.0, 7.0) == 0.0
    assert outlook.chance(10.0) == pytest.approx(0.5)


def test_calibration_learns_bias_and_spread() -> None:
    candidate = Ranked(tasks_of([gemm()], H200)[0].candidates[0].config, 10.0)
    family = candidate.config.family
    unknown = Calibration({}).outlook(0, candidate)
    assert unknown.us == 10.0
    slower = Calibration({(0, family): [0.5] * 20}).outlook(0, candidate)
    assert slower.us == pytest.approx(10 * math.exp(0.5), rel=0.05)
    assert slower.spread < 0.6 * unknown.spread
    other_task = Calibration({(0, family): [0.5] * 20}).outlook(1, candidate)
    assert other_task.us == pytest.approx(slower.us, rel=0.05)
    assert other_task.spread > slower.spread
    assert Calibration({(0, named("conv_2x")): [0.5] * 20}).outlook(0, candidate).us == 10.0


def test_every_task_starts_with_its_predicted_choice() -> None:
    tasks = tasks_of(MODEL, H200)
    first = [trial for _, some in Scheduler(tasks).next(len(tasks)) for trial in some]
    assert {Trial(i, task.candidates[0].config) for i, task in enumerate(tasks)} <= set(first)


def test_a_trial_is_handed_out_once() -> None:
    scheduler = Scheduler(tasks_of(MODEL, H200))
    trials = [trial for _ in range(60) for _, some in scheduler.next(8) for trial in some]
    assert len(set(trials)) == len(trials) == sum(len(task.candidates) for task in scheduler.tasks)


def test_time_goes_where_the_model_spends_its_own() -> None:
    # the same but for the kernels
    common, rare = (conv(chain=("Bias",)), conv(chain=("Bias", "Relu")))
    scheduler = Scheduler(tasks_of(20 * [common] + [rare], H200))
    assert scheduler.tasks[0].problem == common
    assert [{trial.task for _, some in scheduler.next(2) for trial in some} for _ in range(5)] == [
        {0, 1},
        {0},
        {0},
        {0},
        {0},
    ]


def test_good_predictions_stop_early() -> None:
    tasks = tasks_of([conv(size, c, c) for size in (14, 28, 56) for c in (64, 128, 256)], H200)
    assert len(run(Scheduler(tasks), 0.02)) < 0.7 * sum(len(task.candidates) for task in tasks)


@pytest.mark.parametrize("spread", [0.05, 0.2])
def test_early_stopping_misses_little(spread: float) -> None:
    tasks = tasks_of(MODEL, H200)
    scheduler = Scheduler(tasks)
    run(scheduler, spread)
    missed = []
    for number, task in enumerate(tasks):
        best = scheduler.best(number)
        assert best is not None
        missed.append(
            best.us / min(true_us(task.problem, c.config, spread) for c in task.candidates)
        )
    assert statistics.geometric_mean(missed) < 1.03
    assert max(missed) < 1.1


def test_families_are_tried_early_in_the_most_expensive_task_that_has_them() -> None:
    tasks = tasks_of(MODEL, H200)
    first = [trial for _, some in Scheduler(tasks).next(len(tasks) + 2) for trial in some]
    quick = {c.config.family for task in tasks for c in task.candidates} & {
        named("gemm_sm90"),
        named("conv_sm90"),
        named("halo_sm90"),
    }
    assert {trial.config.family for trial in first} >= quick


def test_the_order_of_measurements_does_not_matter() -> None:
    tasks = tasks_of(MODEL, H200)
    done = run(Scheduler(tasks), 0.2, rounds=5)
    answers = []
    for seed in (0, 1):
        scheduler = Scheduler(tasks)
        for number, row in random.Random(seed).sample(done, len(done)):
            scheduler.record(number, row)
        answers.append((scheduler.worthwhile(), scheduler.next(1000)))
    assert answers[0] == answers[1]


def test_what_the_database_has_is_not_wanted_again() -> None:
    tasks = tasks_of(MODEL, H200)
    done = run(Scheduler(tasks), 0.2)
    again = Scheduler(tasks)
    for number, row in done:
        again.record(number, row)
    assert again.next(1000) == []
    assert again.worthwhile() == [0] * len(tasks)


def test_what_one_task_promises_takes_no_look_at_others(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = tasks_of(MODEL, H200)
    scheduler = Scheduler(tasks)
    run(scheduler, 0.2, rounds=2)
    promised, seen, outlook = scheduler.worthwhile(), set(), Calibration.outlook

    def seeing(self: Calibration, task: int, candidate: Ranked) -> Outlook:
        seen.add(task)
        return outlook(self, task, candidate)

    monkeypatch.setattr(Calibration, "outlook", seeing)
    assert scheduler.promising(1) == promised[1]
    assert seen <= {1}
    assert scheduler.worthwhile() == promised


@pytest.mark.parametrize("us", [5.0, 6.1, 6.2, 10.0, math.inf])
def test_a_candidate_may_beat_what_it_has_a_chance_to_beat(us: float) -> None:
    outlook = Outlook(10.0, 0.3)
    assert outlook.may_beat(us) == (outlook.chance(us) >= 0.05)


def test_failures_are_never_chosen_and_the_next_candidate_takes_their_place() -> None:
    (task,) = tasks_of([conv()], H200)
    scheduler = Scheduler([task])
    ((_, (first,)),) = scheduler.next(1)
    scheduler.record(0, measurement(task, first, None))
    ((_, (second,)),) = scheduler.next(1)
    assert (first.config, second.config) == (task.candidates[0].config, task.candidates[1].config)
    assert scheduler.best(0) is None
    scheduler.record(0, measurement(task, second, 30.0))
    scheduler.record(0, measurement(task, first, 1.0))  # once failed is failed
    assert scheduler.best(0) == measurement(task, second, 30.0)


def test_other_launches_of_a_kernel_can_win_and_are_no_errors_of_the_prediction() -> None:
    (task,) = tasks_of([gemm(4096, 4096, 4096)], H200)
    plain, swept = Scheduler([task]), Scheduler([task])
    trial = Trial(0, task.candidates[0].config)
    for scheduler in (plain, swept):
        scheduler.record(0, measurement(task, trial, 200.0))
    another: dict[str, Any] = {"swizzle": 8}
    other = replace(trial.config, **another)
    swept.record(0, measurement(task, Trial(0, other), 199.9))
    assert swept.best(0) == measurement(task, Trial(0, other), 199.9)
    assert swept.worthwhile() == plain.worthwhile()
