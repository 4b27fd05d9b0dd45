"""The benchmark of fixed sizes, on the CPU: function bodies in place of kernels."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import end_to_end, fixed_sizes
from benchmarks.fixed_sizes import TARGETS, Target, main
from benchmarks.varying import SUBJECTS
from onnxbolt.tune import sessions
from onnxbolt.verify.feeds import graph_inputs
from tests.benchmarks.test_varying import SMALL
from tests.zoo import stored

QUICK = ["--provider", "cpu", "--quick", "--fuse", "all", "--out"]


def small(**changes: Any) -> Target:
    subject = dataclasses.replace(SMALL, **changes)
    return Target(subject, subject.at({"h": 64, "w": 96}))


def test_every_varying_model_without_a_row_elsewhere_has_a_target() -> None:
    assert SUBJECTS.keys() - TARGETS.keys() == {"bert_base", "resnet50"}


def test_every_form_has_the_size_in_place_of_symbols() -> None:
    target = TARGETS["unet"]
    forms, missing = target.forms()
    assert list(forms) == ["TorchScript", "dynamo, opset 18"]
    assert not missing
    for model in forms.values():
        (image,) = graph_inputs(model)
        sizes = [dim.dim_value for dim in image.type.tensor_type.shape.dim]
        assert sizes == [1, 3, 512, 512]


def test_a_quick_run_on_the_cpu_writes_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixed_sizes, "TARGETS", {"small": small()})
    out = tmp_path / "results.json"
    assert main(["small", *QUICK, str(out)]) == 0
    document = json.loads(out.read_text())
    (row,) = document["rows"]
    (shape,) = SMALL.drawn(1, quick=True)[0]
    assert row["name"] == f"small, {'x'.join(map(str, shape))}"
    assert document["planned"] == [["small, 1x3x64x96", 1]]
    assert row["ratio"] == pytest.approx(row["peer_us"] / row["ours_us"], rel=1e-2)
    assert 0 < row["error"] < 1e-2
    assert set(row["values"]["forms"]) == {"TorchScript, fp16", "TorchScript, fp32"}
    assert row["values"]["missing"] == {
        "dynamo, opset 18": "small.dynamo18.dynamic is not in exports/"
    }


def test_answers_of_a_model_that_selects_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixed_sizes, "TARGETS", {"boxes": small(name="boxes", selects=True)})
    graphs, captures = list[object](), list[object]()

    def searched(*arguments: Any) -> sessions.Found:
        graphs.append(arguments[-1])
        return sessions.search(*arguments)

    def in_turns(*arguments: Any) -> Any:
        captures.append(arguments[-1])
        return end_to_end.in_turns(*arguments)

    monkeypatch.setattr(fixed_sizes, "search", searched)
    monkeypatch.setattr(fixed_sizes, "in_turns", in_turns)
    out = tmp_path / "results.json"
    assert main(["boxes", *QUICK, str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["error"] is None
    assert row["ratio"] > 0
    assert graphs == [(False,), (False,)]
    assert captures == [False]


def test_a_form_that_cannot_be_converted_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(model: object, precision: str) -> object:
        if precision == "fp16":
            raise ValueError("no such type")
        return model

    monkeypatch.setattr(fixed_sizes, "rounded_original", rounded)
    missing: dict[str, str] = {}
    (source,) = fixed_sizes._peers({"TorchScript": SMALL.graph()}, missing)
    assert source.label == "TorchScript, fp32"
    assert missing == {"TorchScript, fp16": "ValueError: no such type"}


def test_an_unknown_model_is_one_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bert_base"])
    assert "no model bert_base: choose from db_text_detector, " in capsys.readouterr().err


def test_stored_exports_are_those_that_are_raced() -> None:
    names = set(stored.names())
    assert {f"{name}.ts17.dynamic" for name in TARGETS} <= names
