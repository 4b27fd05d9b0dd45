"""The benchmark of advice, on the CPU: function bodies in place of kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import advice
from benchmarks.advice import AS_IS, main
from benchmarks.common import Row
from onnxbolt.advice import measuring
from onnxbolt.options import Options


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


def test_rows_are_written_before_the_next_model_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(name: str, *_: object) -> list[Row]:
        if name == "vit_b16":
            raise KeyboardInterrupt
        return [Row(name, 8, "fp16", None, AS_IS, 1.0)]

    monkeypatch.setattr(advice, "measured", cut_off)
    out = tmp_path / "results.json"
    with pytest.raises(KeyboardInterrupt):
        main(["heads_of_72", "opset_11_reshapes", "vit_b16", "--provider=cpu", f"--out={out}"])
    rows = json.loads(out.read_text())["rows"]
    assert [row["name"] for row in rows] == ["heads_of_72", "opset_11_reshapes"]


def test_nothing_is_verified_on_a_gpu_either(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Options] = []

    def explained(*arguments: object, **_: object) -> None:
        asked.append(next(each for each in arguments if isinstance(each, Options)))
        raise KeyboardInterrupt

    monkeypatch.setattr(advice, "explained", explained)
    monkeypatch.setattr(advice, "stream_for", lambda *_: object())
    with pytest.raises(KeyboardInterrupt):
        main(["dlrm_mlp"])
    assert [options.verify for options in asked] == [False]


def test_unknown_models_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["resnet50"])
    assert "resnet50" in capsys.readouterr().err
