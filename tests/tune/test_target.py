"""A target: tuning goes on in turns until the whole model is measured to be fast enough."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnxbolt import pipeline
from onnxbolt.errors import InputError
from onnxbolt.measurements.timings import NOTHING
from onnxbolt.options import Options, latency
from onnxbolt.tune import stage
from onnxbolt.tune.subject import Subject
from onnxbolt.tune.summary import WholeModel
from tests.tune.local_gpu import Gpu, net

TARGET = 20e-6


@pytest.fixture
def times(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Turns that are over as they begin, and the whole model's time at the end of each."""

    def these(*us: float) -> list[float]:
        left = list(us)

        def settle(*arguments: Any) -> Any:
            return arguments[4], WholeModel(left.pop(0), 1000.0)

        monkeypatch.setattr(stage, "_FIRST_TURN", 1e-9)
        monkeypatch.setattr(stage, "settle", settle)
        return left

    return these


def test_turns_end_when_the_whole_model_meets_the_target(
    gpu: Gpu, times: Callable[..., list[float]]
) -> None:
    left = times(90.0, 40.0, 20.0, 10.0)
    tuning = pipeline.tune(net(), target=TARGET, archs="sm_90a")
    assert tuning.ended_by == "target"
    assert tuning.whole == WholeModel(20.0, 1000.0)
    assert left == [10.0]
    assert gpu.measured == 0  # no turn had time for a kernel


def test_without_a_target_there_is_one_turn(gpu: Gpu, times: Callable[..., list[float]]) -> None:
    left = times(90.0, 40.0)
    assert pipeline.tune(net(), archs="sm_90a").ended_by == "done"
    assert left == [40.0]


def test_a_target_that_is_never_met_ends_when_nothing_is_left_to_try(
    gpu: Gpu,
) -> None:
    without = pipeline.tune(net(), archs="sm_90a")
    assert without.trials > 0
    met_never = pipeline.tune(net(), target=1e-9, archs="sm_90a")
    assert (met_never.ended_by, met_never.trials) == ("done", 0)  # all is remembered


def test_a_budget_ends_all_turns(gpu: Gpu, times: Callable[..., list[float]]) -> None:
    times(*[90.0] * 100)
    assert pipeline.tune(net(), target=TARGET, budget=1e-6, archs="sm_90a").ended_by == "budget"


def test_the_report_says_that_the_target_is_met(
    times: Callable[..., list[float]], tmp_path: Path
) -> None:
    times(10.0)
    report = pipeline.optimize(
        net(), tune=True, target=TARGET, archs="sm_90a", library=False, verify=False
    )
    assert "the target is met" in report.text()
    report.save(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["tuning"]["ended_by"] == "target"


def test_a_body_of_control_flow_is_tuned_to_the_end(
    gpu: Gpu, times: Callable[..., list[float]]
) -> None:
    """Its time is not the whole model's."""
    body = dataclasses.replace(Subject.of(net(), Options()), places=("then_branch of If if",))
    left = times(5.0, 5.0)
    options = Options(tune=True, target=TARGET, archs=("sm_90a",))
    _, tuning = stage.tuned(body, [90], options, NOTHING)
    assert (tuning.ended_by, left) == ("done", [5.0])  # one turn, without a limit
    assert gpu.measured > 0


@pytest.mark.parametrize(("text", "us"), [("0.7ms", 700.0), ("700us", 700.0), ("0.5 s", 5e5)])
def test_times_of_a_model(text: str, us: float) -> None:
    assert latency(text) == pytest.approx(us * 1e-6)


@pytest.mark.parametrize("text", ["0.7", "0ms", "-1ms", "1m", "ms", "1e3us"])
def test_texts_that_are_no_time_of_a_model(text: str) -> None:
    with pytest.raises(InputError, match=r"0\.7ms or 700us"):
        latency(text)
