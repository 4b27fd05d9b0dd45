"""A search for precisions takes the fastest model within the limit, and its choices, times and
errors are in the lock file and the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from onnxbolt import optimize
from onnxbolt.cli import main
from onnxbolt.errors import AccuracyError, InputError
from onnxbolt.graph.importer import load_model
from onnxbolt.options import Options
from onnxbolt.quantize.data import Data
from onnxbolt.quantize.metric import loaded
from onnxbolt.quantize.scales import Scales
from onnxbolt.quantize.search import Times, searched
from onnxbolt.report import reading
from onnxbolt.verify.feeds import random_feeds
from tests.quantize.conftest import Write
from tests.quantized.subjects import SUBJECTS
from tests.support import Net

OPTIONS: dict[str, Any] = {"library": False, "archs": ("sm_90a",), "precision": "auto"}


def _timed(model: ModelProto, floats: str, measured: bool) -> Times:
    """A product of codes takes 1 us, one of floats 2."""
    nodes = model.graph.node
    values = {o for n in nodes if n.op_type == "DequantizeLinear" for o in n.output}
    products = [node for node in nodes if node.op_type in ("Conv", "MatMul")]
    rows = tuple((1.0 if n.input[0] in values else 2.0, (n.name,)) for n in products)
    return Times(sum(us for us, _ in rows), rows)


def _found(calibration: Write, limit: float, timed: Any = _timed, subject: str = "cnn") -> Scales:
    model = SUBJECTS[subject]()
    return searched(model, Data(calibration(model), model), "minmax", limit, timed).scales


def test_the_fastest_within_the_limit(calibration: Write) -> None:
    found = _found(calibration, 0.02)
    assert found.chosen is not None
    within = [point for point in found.points if point.error <= 0.02]
    assert found.chosen == min(within, key=lambda point: (point.us, point.error))
    assert {point.precision for point in found.points} == {"fp16", "int8", "fp8"}
    assert found.points == tuple(sorted(found.points, key=lambda p: (p.us, p.error)))
    # the choice is what the scales are
    taken = {each.node for each in found.decisions if each.precision == found.precision}
    assert len(taken) == found.chosen.products
    assert taken.isdisjoint(found.left)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_subjects(subject: str, calibration: Write) -> None:
    """The gate of `mobile` has codes that no product alone needs."""
    found = _found(calibration, 1.0, subject=subject)
    assert found.chosen is not None
    assert found.chosen.us == min(point.us for point in found.points)
    assert all(each.error > 0 for each in found.decisions)


def test_kernels_are_measured_for_whole_plans_alone(calibration: Write) -> None:
    asked = list[bool]()

    def timed(model: ModelProto, floats: str, measured: bool) -> Times:
        asked.append(measured)
        return _timed(model, floats, measured)

    _found(calibration, 0.02, timed)
    assert asked.count(True) == 3  # all in floats, in int8, in fp8
    assert asked.count(False) > 3


def test_products_of_large_error_stay_first(calibration: Write) -> None:
    """Times are equal: the order is that of errors."""
    found = _found(calibration, 1.0)
    errors = [each.error for each in found.decisions]
    assert errors == sorted(errors)


def test_nothing_is_quantized_that_gains_nothing(calibration: Write) -> None:
    def slow(model: ModelProto, floats: str, measured: bool) -> Times:
        found = _timed(model, floats, measured)
        rows = tuple((3.0 - us, names) for us, names in found.fused)
        return Times(sum(us for us, _ in rows), rows)

    found = _found(calibration, 1.0, slow)
    assert found.chosen is not None
    assert (found.chosen.precision, found.chosen.products) == ("fp16", 0)
    assert not found.scales


def test_floats_stay_wide_where_fp16_is_beyond_the_limit(calibration: Write) -> None:
    found = _found(calibration, 1e-6)
    assert found.floats == "keep"
    assert found.chosen is not None
    assert (found.chosen.precision, found.chosen.error) == ("keep", 0.0)


def test_optimize(calibration: Write, tmp_path: Path) -> None:
    model, lock, out = SUBJECTS["cnn"](), tmp_path / "lock", tmp_path / "o.onnx"
    options = {**OPTIONS, "lock": lock}
    data = calibration(model)
    report = optimize(model, out, calibration=data, max_error=0.05, **options)
    assert report.passed
    assert report.quantization is not None
    scales = report.quantization.scales
    assert scales.chosen is not None
    assert scales.chosen.products > 0
    first = out.read_bytes(), lock.read_bytes()
    again = optimize(model, out, frozen=True, **options)
    assert (out.read_bytes(), lock.read_bytes()) == first
    assert again.quantization is not None
    assert again.quantization.scales == scales
    values = json.loads(lock.read_text())
    assert len(values["front"]) == len(scales.points)
    assert {row["node"] for row in values["decisions"]} == {e.node for e in scales.decisions}
    text = report.text()
    assert "front of time against error, limit 5.00e-02" in text
    assert "chosen" in text
    for suffix in ("json", "html"):
        report.save(tmp_path / f"r.{suffix}")
    read = reading.read(tmp_path / "r.json")["quantization"]["scales"]
    assert read["chosen"] in read["points"]
    page = (tmp_path / "r.html").read_text()
    assert page.count("<circle") == len(scales.points)
    assert "Time against error" in page


def test_a_model_that_stays(calibration: Write, tmp_path: Path) -> None:
    model, lock, out = SUBJECTS["mlp"](), tmp_path / "lock", tmp_path / "o.onnx"
    options = {**OPTIONS, "lock": lock}
    optimize(model, out, calibration=calibration(model), max_error=0.0, **options)
    assert not (tmp_path / "o.qdq.onnx").exists()
    assert not any("Quantized" in node.op_type for node in load_model(out).graph.node)
    first = out.read_bytes()
    optimize(model, out, frozen=True, **options)
    assert out.read_bytes() == first


@pytest.mark.parametrize(
    ("part", "change", "fault"),
    [
        ("quantized", {"chosen": 99}, "chosen 99: an integer from 0 to"),
        ("front", {"us": -1}, "us -1: a finite number"),
        ("decisions", {"precision": "int4"}, "precision"),
    ],
)
def test_damaged_lock_files(
    part: str, change: dict[str, Any], fault: str, calibration: Write, tmp_path: Path
) -> None:
    model, lock = SUBJECTS["mlp"](), tmp_path / "lock"
    options = {**OPTIONS, "lock": lock}
    data = calibration(model)
    optimize(model, tmp_path / "o.onnx", calibration=data, max_error=0.1, **options)
    values = json.loads(lock.read_text())
    values[part][0].update(change)
    lock.write_text(json.dumps(values))
    with pytest.raises(InputError, match=fault):
        optimize(model, frozen=True, **options)


METRIC = """
import numpy as np

def accuracy(outputs, arrays):
    (scores,) = outputs.values()
    return float((scores.argmax(-1) == arrays["labels"]).mean())
"""


def test_a_metric_on_labelled_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labels are what the model of floats answers, so that its score is 1."""
    monkeypatch.chdir(tmp_path)
    Path("metric_of_a_test.py").write_text(METRIC)
    model = SUBJECTS["cnn"]()
    onnx.save(model, "m.onnx")
    feeds = random_feeds(model)
    np.savez("d.npz", **feeds, labels=np.zeros(1, np.int64))  # type: ignore[arg-type]
    arguments = ["optimize", "m.onnx", "o.onnx", "--precision", "auto", "--calibration", "d.npz"]
    arguments += ["--arch", "sm_90a", "--no-library", "--max-error", "0.5"]
    assert main([*arguments, "--metric", "metric_of_a_test:accuracy"]) == 0
    assert "metric" in capsys.readouterr().out
    assert main(arguments) == 1  # labels are no inputs
    assert "holds labels, x; the model's inputs are x" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["no_such_module:f", "json:no_such", "json", "json:decoder"])
def test_metrics_that_are_none(name: str) -> None:
    with pytest.raises(InputError, match="metric="):
        loaded(name)


@pytest.mark.parametrize(
    ("choices", "fault"),
    [
        ({"calibration": "x"}, "precision='auto' needs max_error"),
        ({"precision": "int8", "calibration": "x", "metric": "a:b"}, "metric='a:b' decides"),
        ({"precision": "fp16", "metric": "a:b"}, "metric='a:b' needs precision int8, fp8 or auto"),
    ],
)
def test_options(choices: dict[str, Any], fault: str) -> None:
    with pytest.raises(InputError) as raised:
        Options(**{"precision": "auto", **choices})
    assert str(raised.value).startswith(fault)


@pytest.mark.parametrize("names", ["none", "those of tensors"])
def test_names_of_nodes(names: str, calibration: Write, tmp_path: Path) -> None:
    """Nodes need no names, and may be named like the tensors that they make."""
    net = Net({"x": (4, 16)}, seed=1)
    inner = net.node("MatMul", "x", net.normal(16, 16))  # is stored as codes
    model = net.model(net.node("MatMul", inner, net.normal(16, 16)))
    for node in model.graph.node:
        node.name = "" if names == "none" else node.output[0]
    report = optimize(
        model, tmp_path / "o.onnx", calibration=calibration(model), max_error=0.5, **OPTIONS
    )
    assert report.quantization is not None
    decisions = report.quantization.scales.decisions
    assert {each.node for each in decisions} == {inner, model.graph.output[0].name}
    assert all(each.us > 0 and each.floats_us > 0 and each.error > 0 for each in decisions)


def test_what_is_not_tried_is_told(calibration: Write, caplog: pytest.LogCaptureFixture) -> None:
    net = Net({"x": (2, 16, 8, 8)}, seed=1)
    model = net.model(net.conv("x", 16, 16, 3, group=16, pads=[1] * 4))
    found = searched(model, Data(calibration(model), model), "minmax", 0.5, _timed).scales
    assert {point.precision for point in found.points} == {"fp16", "int8"}
    assert "not tried: precision='fp8': the model has no product" in caplog.text


def test_a_lock_file_beyond_a_smaller_limit(calibration: Write, tmp_path: Path) -> None:
    model, out = SUBJECTS["cnn"](), tmp_path / "o.onnx"
    options = {**OPTIONS, "lock": tmp_path / "lock"}
    optimize(model, out, calibration=calibration(model), max_error=0.05, **options)
    assert optimize(model, out, frozen=True, max_error=0.05, **options).passed
    with pytest.raises(AccuracyError, match="more than max_error=1e-05"):
        optimize(model, out, frozen=True, max_error=1e-5, **options)
