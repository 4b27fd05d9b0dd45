"""The benchmark of plans, on the CPU: function bodies in place of kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import plans
from benchmarks.plans import CASES, DYNAMIC, GREEDY, MODELS, Case, main
from benchmarks.targets import Target
from benchmarks.whole_models import seeded_feeds
from onnxbolt.tune.sessions import Sample, Source
from tests.plan.test_planner import blocks

QUICK = ["--provider", "cpu", "--quick", "--out"]


def test_default_models_are_known_and_cases_have_rows_of_their_own() -> None:
    assert set(MODELS) <= set(CASES)
    rows = [(case.model, case.batch) for case in CASES.values()]
    assert len(set(rows)) == len(rows)


def test_both_plans_of_a_model_run_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is that of tests/plan/test_planner.py, which dynamic programming plans
    otherwise."""
    case = Case(Target("blocks", 1), lambda: blocks(1), lambda model: model, seeded_feeds)
    monkeypatch.setattr(plans, "CASES", {"blocks": case})
    monkeypatch.setattr(plans, "MODELS", ("blocks",))
    out = tmp_path / "results.json"
    assert main(["blocks", *QUICK, str(out)]) == 0
    document = json.loads(out.read_text())
    (row,) = document["rows"]
    assert document["planned"] == [["blocks", 1]]
    assert (row["name"], row["peer"]) == ("blocks", GREEDY)
    assert row["ratio"] == pytest.approx(row["peer_us"] / row["ours_us"], rel=1e-2)
    assert 0 < row["error"] < 1e-2
    values = row["values"]
    assert values["difference"] in ("faster", "slower", "within noise")
    assert values["planning"]["otherwise"] == 1
    assert values["planning"]["dynamic_us"] < 0.95 * values["planning"]["greedy_us"]
    assert set(values["nodes"]) == {DYNAMIC, GREEDY}


@pytest.mark.parametrize(
    ("ours", "greedy", "difference"),
    [
        ((10.0, 10.1, 9.9), (12.0, 12.1, 11.9), "faster"),
        ((12.0, 12.1, 11.9), (10.0, 10.1, 9.9), "slower"),
        ((10.0, 10.1, 9.9), (10.1, 10.0, 10.2), "within noise"),
    ],
)
def test_a_difference_is_certain_beyond_the_noise(
    ours: tuple[float, ...], greedy: tuple[float, ...], difference: str
) -> None:
    sources = {DYNAMIC: Source(DYNAMIC, b"one"), GREEDY: Source(GREEDY, b"other")}
    assert plans._difference(sources, Sample(ours), Sample(greedy)) == difference


def test_equal_models_have_the_same_plan_whatever_their_times() -> None:
    sources = {label: Source(label, b"one") for label in (DYNAMIC, GREEDY)}
    assert plans._difference(sources, Sample((1.0, 1.0)), Sample((9.0, 9.0))) == "same plan"


def test_an_unknown_model_is_one_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["vit"])
    assert "no model vit: choose from vit_base-32, " in capsys.readouterr().err
