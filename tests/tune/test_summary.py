"""The best so far over time."""

from __future__ import annotations

from onnxbolt.tune.summary import Best, Moment, Tuning, history


def test_a_problem_counts_with_its_first_time_until_it_is_measured() -> None:
    bests = [Best(1.0, 1, 0, 10.0), Best(2.0, 3, 1, 4.0), Best(3.0, 5, 0, 8.0)]
    assert history(bests, [2, 5]) == (Moment(1.0, 1, 40.0), Moment(3.0, 5, 36.0))


def test_nothing_measured_has_no_history() -> None:
    assert history([], [1, 2]) == ()


def test_the_rounds_of_a_run_follow_one_another() -> None:
    first = Tuning(history=(Moment(1.0, 1, 40.0), Moment(3.0, 5, 36.0)))
    second = Tuning(history=(Moment(0.0, 0, 50.0), Moment(2.0, 4, 45.0)))
    assert second.after(first).history == (
        Moment(1.0, 1, 40.0),
        Moment(3.0, 5, 36.0),
        Moment(3.0, 5, 50.0),
        Moment(5.0, 9, 45.0),
    )
    assert first.after(Tuning()).history == first.history
