"""Predictions are judged on problems that nothing was learned from."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import collect, predictions
from benchmarks.documents import is_sealed
from benchmarks.predictions import FORMULA, LEARNED
from benchmarks.quantized import coded
from onnxbolt.dtypes import DType
from onnxbolt.problems import Problem
from onnxbolt.tune.database import Database
from onnxbolt.tune.training import Measured
from tests.tune import learning
from tests.tune.fakes import conv

PROBLEMS = learning.problems(40)
HELD = [("bert_base", 32, "fp16"), ("bert_base", 32, "fp8")]
MODEL = Counter({PROBLEMS[0]: 3, PROBLEMS[1]: 1})


@pytest.fixture
def measurements(tmp_path: Path) -> Path:
    out = tmp_path / "measurements.jsonl.gz"
    with Database(tmp_path / "tuning.sqlite") as database:
        database.add(*learning.measurements(PROBLEMS))
        database.export(out)
    return out


def problems_of(found: list[Measured]) -> set[Problem]:
    return {measured.problem for measured in found}


def test_whole_models_and_a_fifth_of_the_others_are_held_out(measurements: Path) -> None:
    found = predictions.read(measurements)
    held, rest = predictions.divided(found, set(MODEL))
    (alike,) = set(PROBLEMS) - problems_of(held) - problems_of(rest)  # a held layer's
    assert dataclasses.replace(alike, m=1) in {
        dataclasses.replace(p, m=1) for p in problems_of(held)
    }
    assert not problems_of(held) & problems_of(rest)
    assert set(MODEL) <= problems_of(held)
    assert len(held) == 2 + round(0.2 * 38)
    assert predictions.divided(found[::-1], set(MODEL))[1] == rest[::-1]


def test_nothing_is_learned_from_a_held_layer_at_another_batch(measurements: Path) -> None:
    """Fields other than the batch make another layer."""
    measured = predictions.read(measurements)
    alike = [
        dataclasses.replace(measured[0], id=field, problem=changed(measured[0].problem, field))
        for field in ("m", "n", "k")
    ]
    problems = [*measured, *alike]
    held, rest = predictions.divided(problems, {measured[0].problem})
    assert measured[0] in held
    assert alike[0] not in rest
    assert {each.id for each in alike[1:]} <= {each.id for each in (*held, *rest)}
    assert predictions.unlike(problems, [measured[0].problem]) == [*measured[1:], *alike[1:]]
    convolution = conv(64, 32, 56)
    image = dataclasses.replace(measured[0], problem=convolution)
    assert not predictions.unlike([image], [dataclasses.replace(convolution, n=1)])
    assert predictions.unlike([image], [dataclasses.replace(convolution, c=8)])
    codes = coded(convolution, DType.I8)
    image = dataclasses.replace(measured[0], problem=codes)
    assert not predictions.unlike([image], [dataclasses.replace(codes, n=1)])


def test_quantized_models_are_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[object, ...]]()

    def problems(*arguments: object) -> Counter[Problem]:
        asked.append(arguments)
        return MODEL

    for name in ("of_model", "of_quantized"):
        monkeypatch.setattr(collect, name, problems)
    precisions = Counter(precision for _, _, precision in predictions.of_held_models())
    assert precisions == {"fp16": 3, "int8": 1, "fp8": 1}
    assert asked[-2:] == [("resnet50", "int8", 32), ("bert_base", "fp8", 32)]


def changed(problem: Problem, field: str) -> Problem:
    return dataclasses.replace(problem, **{field: 8 + getattr(problem, field)})


def test_the_file_has_both_sides_of_kinds_and_models(
    measurements: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightgbm", reason="the extra [learn] is not installed")
    monkeypatch.setattr(predictions, "of_held_models", lambda: dict.fromkeys(HELD, MODEL))
    out, model = tmp_path / "out.json", tmp_path / "model.json"
    arguments = [str(measurements), "--out", str(out), "--model", str(model)]
    assert predictions.main(arguments) == 0
    document = json.loads(out.read_text())
    assert is_sealed(document)
    assert document["gpu"] == "Fake"  # that of the measurements
    kind, bert, codes = document["rows"]
    assert (kind["name"], kind["values"]["problems"]) == ("gemm", 10)
    assert kind["values"]["regret"][LEARNED] < 1.02 < kind["values"]["regret"][FORMULA]
    assert kind["values"]["rank"][LEARNED] > 0.9 > kind["values"]["rank"][FORMULA]
    assert kind["values"]["kernels"] < kind["values"]["feasible"]
    assert (bert["name"], bert["batch"], bert["values"]["of"]) == ("bert_base", 32, 2)
    assert (codes["name"], codes["dtype"]) == ("bert_base fp8", "fp8")
    assert 1.0 <= bert["values"]["together"][LEARNED] <= bert["values"]["together"][FORMULA]
    assert json.loads(model.read_text())["families"]


def test_times_of_several_gpus_are_refused(
    measurements: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lightgbm", reason="the extra [learn] is not installed")
    with Database(tmp_path / "tuning.sqlite") as database:
        rows = learning.measurements(PROBLEMS[:1])
        database.add(*(dataclasses.replace(row, key=other(row.key)) for row in rows))
        database.export(measurements)
    assert predictions.main([str(measurements), "--out", str(tmp_path / "out.json")]) == 1
    assert "2 kinds of GPU" in capsys.readouterr().err


def other(key: str) -> str:
    return key.replace('"Fake"', '"Other"')
