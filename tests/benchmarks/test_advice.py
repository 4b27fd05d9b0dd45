"""The benchmark of advice, on the CPU: function bodies in place of kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import advice
from benchmarks.advice import AS_IS, main
from onnxbolt.advice import measuring


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_ROUNDS", 2)
    monkeypatch.setattr(measuring, "_RUNS", 2)
    monkeypatch.setattr(measuring, "_SEARCH_RUNS", 1)


def test_each_advice_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "_BATCH", 8)
    out = tmp_path / "results.json"
    assert main(["three_channel_stem", "--provider", "cpu", "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["name"], row["batch"], row["peer"]) == ("three_channel_stem, stem/x/8", 8, AS_IS)
    assert row["ratio"] == pytest.approx(row["peer_us"] / row["ours_us"], rel=1e-2)
    values = row["values"]
    assert values["predicted_ratio"] > 1.03
    assert values["off"] == pytest.approx(row["ours_us"] / values["planned_us"] - 1, rel=1e-3)
    assert values["planned_us"] == values["predicted_us"]  # nothing was tuned in between
    assert values["whole"] == {AS_IS: {}, "changed": {}}
    assert not values["needs_retraining"]


def test_a_model_that_nothing_helps_has_a_row_without_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(advice.FRIENDLY, "dlrm_mlp", 256)
    out = tmp_path / "results.json"
    assert main(["dlrm_mlp", "--provider", "cpu", "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["name"], row["ours_us"], row["values"]["advice"]) == ("dlrm_mlp", None, "")
    assert row["peer_us"] > 0


def test_unknown_models_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["resnet50"])
    assert "resnet50" in capsys.readouterr().err
