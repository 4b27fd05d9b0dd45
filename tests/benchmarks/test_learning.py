"""Courses of tuning with looked-up times; no figure here says anything of a GPU."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import collect, learning, predictions
from benchmarks.learning import CHANCE, Course, Pace
from benchmarks.predictions import FORMULA, LEARNED
from onnxbolt.archs import get
from onnxbolt.errors import InputError
from onnxbolt.measurements.keys import kernel_key
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.plan.cost import candidates
from onnxbolt.tune.database import Database
from onnxbolt.tune.tasks import tasks_of
from tests.tune import learning as made_up
from tests.tune.fakes import gemm

H200 = get(90)
PROBLEMS = made_up.problems(14)
MODEL = Counter({PROBLEMS[0]: 12, PROBLEMS[1]: 1, gemm(8, 8, 8): 2})  # the last was not measured
PACE = Pace(16, 0.05)


@pytest.fixture
def measurements(tmp_path: Path) -> Path:
    """All feasible kernels of PROBLEMS."""
    out = tmp_path / "measurements.jsonl.gz"
    with Database(tmp_path / "tuning.sqlite") as database:
        for problem in PROBLEMS:
            key = kernel_key(problem, made_up.machine())
            database.add(
                *(
                    Measurement(key, c, Status.OK, made_up.true_us(problem, c), 0.01, 6)
                    for c in candidates(problem, H200)
                )
            )
        database.export(out)
    return out


def test_a_row_has_all_three_courses(
    measurements: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightgbm", reason="the extra [learn] is not installed")
    monkeypatch.setattr(learning, "MODELS", (("bert_base", 32),))
    monkeypatch.setattr(collect, "of_model", lambda *_: MODEL)
    out = tmp_path / "out.json"
    assert learning.main([str(measurements), "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    values = row["values"]
    assert (values["problems"], values["of"]) == (2, 3)
    chance, formula, learned = (values[side] for side in (CHANCE, FORMULA, LEARNED))
    assert chance["trials"] == sum(len(candidates(p, H200)) for p in PROBLEMS[:2])
    assert chance["final"] == 1.0
    assert learned["trials"] <= formula["trials"] < chance["trials"]
    assert learned["final"] <= 1.02
    assert formula["formulas"][0] <= formula["trials"]
    for curve in values["curves"].values():
        trials, _, times = zip(*curve, strict=True)
        assert list(trials) == sorted(trials)
        assert min(times) >= 1.0


def test_the_same_file_gives_the_same_course(measurements: Path) -> None:
    problems = predictions.read(measurements)
    known = Counter({PROBLEMS[0]: 12, PROBLEMS[1]: 1})
    times = {m.problem: dict(zip(m.kernels, m.us, strict=True)) for m in problems}
    for course in (learning.by_scheduler, learning.by_chance):
        first, second = (course(known, times, PACE, H200).moments for _ in range(2))
        assert first == second
        assert len(first) > 1


def test_a_kernel_is_compiled_once_and_one_without_a_time_fails() -> None:
    (task,) = tasks_of(PROBLEMS[:1], H200, extra=lambda *_: ())
    config, other = (candidate.config for candidate in task.candidates[:2])
    course = Course([task], {task.problem: {config: 5.0}}, Pace(1, 0.0))
    assert course.measured(0, config).us == 5.0
    seconds = course.seconds
    assert seconds == config.family.compile_seconds
    course.measured(0, config)
    assert course.seconds == seconds
    assert course.measured(0, other).status is Status.UNCOMPILED
    assert (course.trials, course.moments[-1].us) == (3, 5.0)


def test_a_model_without_measured_problems_is_an_error(
    measurements: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "of_model", lambda *_: Counter({gemm(8, 8, 8): 1}))
    with pytest.raises(InputError, match="no problem of bert_base"):
        learning.row_of("bert_base", 32, predictions.read(measurements), PACE)
