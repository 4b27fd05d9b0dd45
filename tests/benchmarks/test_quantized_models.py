"""The benchmark of quantized models, on the CPU: function bodies in place of kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import all as every
from benchmarks import quantized_models
from benchmarks.quantized_models import CASES, Case, main


def test_a_model_is_quantized_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("dlrm_top", 32, "int8")
    monkeypatch.setattr(quantized_models, "CASES", {case.name: case})
    out = tmp_path / "results.json"
    assert main([case.name, "--provider", "cpu", "--quick", "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    (row,) = document["rows"]
    assert document["planned"] == [["dlrm_top", 32]]
    assert (row["name"], row["dtype"], row["peer"]) == ("dlrm_top", "int8", "our fp16 model")
    assert row["ratio"] == pytest.approx(row["peer_us"] / row["ours_us"], rel=1e-2)
    values = row["values"]
    assert row["error"] == values["errors"]["int8"]
    assert values["errors"]["fp16"] < values["errors"]["int8"] < 0.05
    assert {"onnxruntime_us", "onnxruntime_quantized_us"} <= values.keys()
    quantized = values["errors"][quantized_models.QDQ]
    assert quantized == pytest.approx(row["error"], rel=0.2)


def test_precisions_by_time_and_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("dlrm_top", 32, "auto", 0.5)
    monkeypatch.setattr(quantized_models, "CASES", {case.name: case})
    out = tmp_path / "results.json"
    assert main(["dlrm_top-32-auto", "--provider", "cpu", "--quick", "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["name"], row["dtype"]) == ("dlrm_top, auto", "auto")
    values = row["values"]
    assert values["chosen"] in values["front"]
    assert {point["precision"] for point in values["front"]} == {"fp16", "int8", "fp8"}


def test_each_model_is_a_task() -> None:
    tasks = [task for task in every.TASKS if task.benchmark == "quantized_models"]
    assert [task.arguments.split()[0] for task in tasks] == list(CASES)


def test_an_unknown_model_is_one_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["vit"])
    assert "no model vit: choose from resnet50-32, " in capsys.readouterr().err
