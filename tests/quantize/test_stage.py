"""`optimize` quantizes a model by calibration data, keeps its scales in the lock file, and needs no
data where the lock file has them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

from onnxbolt import extensions, optimize
from onnxbolt.cli import main
from onnxbolt.directory import jobs_in, optimize_all
from onnxbolt.errors import AccuracyError, FrozenError, InputError
from onnxbolt.graph.importer import load_model
from onnxbolt.options import METHODS, Options
from onnxbolt.report import reading
from onnxbolt.verify.feeds import random_feeds
from onnxbolt.verify.session import CPU, Runner
from tests.quantize.conftest import Write
from tests.quantized import kernels
from tests.quantized.subjects import SUBJECTS
from tests.support import Net

OPTIONS: dict[str, Any] = {"library": False, "archs": ("sm_90a",)}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    onnx.save(SUBJECTS["cnn"](), tmp_path / "cnn.onnx")
    return tmp_path / "cnn.onnx"


def _types(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("precision", ["int8", "fp8"])
@pytest.mark.parametrize("name", SUBJECTS)
def test_models(name: str, precision: str, calibration: Write, tmp_path: Path) -> None:
    model = SUBJECTS[name]()
    out = tmp_path / "out.onnx"
    report = optimize(model, out, precision=precision, calibration=calibration(model), **OPTIONS)
    assert report.passed
    assert report.quantization is not None
    (error,) = report.quantization.scales.errors.values()
    assert 0 < error < 0.06
    # the quantized model is an ordinary one, whose error is what the report says
    made, feeds = load_model(tmp_path / "out.qdq.onnx"), random_feeds(model, 0)
    before, after = (Runner(each, CPU).run(feeds, []) for each in (model, made))
    (was,), (found,) = before.values(), after.values()
    assert np.linalg.norm(found - was) < 2 * error * np.linalg.norm(was)
    assert any(node.startswith("FusedQuantized") for node in _types(load_model(out)))
    assert str(tmp_path / "out.qdq.onnx") in report.text()


def test_codes_from_end_to_end(calibration: Write, tmp_path: Path) -> None:
    """Between the conversion of the input and the mean over the image, tensors are codes."""
    model, out = SUBJECTS["mobile"](), tmp_path / "out.onnx"
    optimize(model, out, precision="int8", calibration=calibration(model), fuse="all", **OPTIONS)
    types = _types(load_model(out))
    assert "DequantizeLinear" not in types
    assert types.count("QuantizeLinear") == 1  # the input
    assert types.count("FusedQuantize_Scale_QuantizeI8_f32") == 1  # the mean
    assert "FusedQuantizedGate_DecodeI8_MulCodesI8_QuantizeI8_i8" in types
    assert "FusedQuantizedConv_Dequantize_Bias_AddCodesI8_CastF32_i8" in types


def test_equal_data_give_equal_bytes(saved: Path, calibration: Write, tmp_path: Path) -> None:
    data = calibration(SUBJECTS["cnn"]())
    found = list[dict[str, bytes]]()
    for run in ("first", "second"):
        folder = tmp_path / run
        folder.mkdir()
        lock = folder / "lock"
        optimize(saved, folder / "o.onnx", precision="int8", calibration=data, lock=lock, **OPTIONS)
        found.append(_files(folder))
    assert found[0] == found[1]
    assert set(found[0]) == {"o.onnx", "o.qdq.onnx", "lock"}


def test_a_lock_file_needs_no_data(saved: Path, calibration: Write, tmp_path: Path) -> None:
    data, lock = calibration(SUBJECTS["cnn"]()), tmp_path / "lock"
    out = tmp_path / "o.onnx"
    first = optimize(saved, out, precision="int8", calibration=data, lock=lock, **OPTIONS)
    before = _files(tmp_path)
    for frozen in (True, False):
        again = optimize(saved, out, precision="int8", lock=lock, frozen=frozen, **OPTIONS)
        assert _files(tmp_path) == before
        assert first.quantization is not None
        assert again.quantization == dataclasses.replace(first.quantization, from_lock=True)


def test_other_weights_are_refused(calibration: Write, tmp_path: Path) -> None:
    model, lock = SUBJECTS["mlp"](), tmp_path / "lock"
    data = calibration(model)
    options = {**OPTIONS, "precision": "int8", "lock": lock}
    optimize(model, tmp_path / "o.onnx", calibration=data, **options)
    model.graph.initializer[0].raw_data = bytes(len(model.graph.initializer[0].raw_data))
    with pytest.raises(FrozenError, match="has no scales of this model"):
        optimize(model, frozen=True, **options)
    with pytest.raises(InputError, match="has no scales of this model; give calibration"):
        optimize(model, **options)


def _change(lock: Path, part: str, change: Any) -> None:
    values = json.loads(lock.read_text())
    change(values[part])
    lock.write_text(json.dumps(values))


DAMAGES = {
    "scale 0 is no positive number": lambda rows: rows[0].update(scale=0),
    "scale 'x'": lambda rows: rows[0].update(scale="x"),
    "its scales are of another version of the model": lambda rows: rows.pop(),
}


@pytest.mark.parametrize("fault", DAMAGES)
def test_damaged_scales(fault: str, calibration: Write, tmp_path: Path) -> None:
    model, lock = SUBJECTS["mlp"](), tmp_path / "lock"
    options = {**OPTIONS, "precision": "int8", "lock": lock}
    optimize(model, tmp_path / "o.onnx", calibration=calibration(model), **options)
    _change(lock, "scales", DAMAGES[fault])
    with pytest.raises(InputError, match=fault):
        optimize(model, frozen=True, **options)


def test_channels_that_the_model_lacks(calibration: Write, tmp_path: Path) -> None:
    model, lock = SUBJECTS["mlp"](), tmp_path / "lock"
    options = {**OPTIONS, "precision": "int8", "lock": lock}
    report = optimize(model, tmp_path / "o.onnx", calibration=calibration(model), **options)
    assert report.quantization is not None
    assert report.quantization.scales.balanced

    def shorten(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if "balanced" in row:
                row["balanced"].pop()

    _change(lock, "scales", shorten)
    with pytest.raises(InputError, match="balances channels of tensor relu2"):
        optimize(model, frozen=True, **options)


def test_the_gate(saved: Path, calibration: Write, tmp_path: Path) -> None:
    data, out = calibration(SUBJECTS["cnn"]()), tmp_path / "o.onnx"
    options = {**OPTIONS, "precision": "int8", "calibration": data}
    with pytest.raises(AccuracyError, match=r"more than max_error=0\.001") as raised:
        optimize(saved, out, max_error=1e-3, **options)
    assert raised.value.exit_code == 3
    assert not out.exists()
    assert not out.with_suffix(".qdq.onnx").exists()
    assert optimize(saved, out, max_error=0.5, **options).passed


@pytest.mark.parametrize("method", METHODS)
def test_methods(method: str, calibration: Write) -> None:
    model = SUBJECTS["cnn"]()
    report = optimize(
        model,
        precision="int8",
        calibration=calibration(model),
        calibration_method=method,
        verify=False,
        **OPTIONS,
    )
    assert report.quantization is not None
    scales = report.quantization.scales
    assert scales.method == method
    assert max(scales.errors.values()) < 0.1


def test_largest_magnitudes(calibration: Write, tmp_path: Path) -> None:
    """An fp8 code reaches the largest magnitude, in scales of 11 bits; weights do for each
    channel."""
    model = SUBJECTS["mlp"]()
    data = calibration(model)
    out = tmp_path / "o.onnx"
    report = optimize(model, out, precision="fp8", calibration=data, verify=False, **OPTIONS)
    assert report.quantization is not None
    largest = max(np.abs(np.load(path)["x"]).max() for path in data.iterdir())
    scale = report.quantization.scales.scales["x"]
    assert largest / 448 <= scale <= largest / 448 * (1 + 2**-10)
    assert scale == float(np.float16(scale))
    stored = {t.name: t for t in load_model(tmp_path / "o.qdq.onnx").graph.initializer}
    codes = [numpy_helper.to_array(t) for name, t in stored.items() if name.endswith("_codes")]
    assert codes
    for weight in codes:
        assert weight.dtype == ml_dtypes.float8_e4m3fn
        assert (np.abs(weight.astype(np.float32)).max(axis=0) == 448).all()


def test_reports(saved: Path, calibration: Write, tmp_path: Path) -> None:
    data = calibration(SUBJECTS["cnn"]())
    report = optimize(saved, tmp_path / "o.onnx", precision="int8", calibration=data, **OPTIONS)
    for suffix in ("json", "md", "html"):
        report.save(tmp_path / f"r.{suffix}")
    values = reading.read(tmp_path / "r.json")
    assert values["quantization"]["scales"]["precision"] == "int8"
    assert values["quantization"]["model"] == str(tmp_path / "o.qdq.onnx")
    for text in (report.text(), (tmp_path / "r.md").read_text()):
        assert "quantized to int8: 5 tensors stored as codes; calibrated, minmax of 2" in text
        assert "left in floats: 2 products" in text
    assert "Error of int8" in (tmp_path / "r.html").read_text()


def test_the_command_line(
    saved: Path, calibration: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = calibration(SUBJECTS["cnn"]())
    out = tmp_path / "o.onnx"
    model = ["optimize", str(saved), str(out), "--precision", "int8"]
    alone = ["--arch", "sm_90a", "--no-library"]
    assert main([*model, "--calibration", str(data), *alone]) == 0
    assert "quantized to int8" in capsys.readouterr().out
    assert main([*model, "--calibration", str(data), "--max-error", "0", *alone]) == 3
    assert "--max-error 0" in capsys.readouterr().err
    assert main([*model, *alone]) == 1
    assert "--precision int8 needs --calibration" in capsys.readouterr().err
    assert main(["explain", str(saved), "--precision", "int8", "--lock", "x"]) == 1
    assert "give that file, with --precision fp16" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("choices", "fault"),
    [
        (
            {"precision": "fp16", "calibration": "x"},
            "calibration='x' needs precision int8, fp8",
        ),
        ({"precision": "keep", "max_error": 0.1}, "max_error=0.1 needs precision"),
        ({"precision": "int8"}, "precision='int8' needs calibration"),
        (
            {"precision": "int8", "calibration": "x", "lock": "y", "frozen": True},
            "frozen=True takes scales from the lock file",
        ),
        (
            {"precision": "fp8", "calibration": "x", "calibration_method": "entropy"},
            "calibration_method='entropy' is for int8",
        ),
        ({"precision": "int8", "calibration": "x", "max_error": -1.0}, "max_error=-1: give"),
    ],
)
def test_options(choices: dict[str, Any], fault: str) -> None:
    with pytest.raises(InputError) as raised:
        Options(**choices)
    assert str(raised.value).startswith(fault)


@pytest.mark.parametrize(("us", "slower"), [(0.1, False), (1e4, True)])
def test_slower_models_are_told(
    us: float,
    slower: bool,
    calibration: Write,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(kernels.Codes, "predicted_us", lambda *_: us)
    model = SUBJECTS["mlp"]()
    data = calibration(model)
    options = {**OPTIONS, "verify": False, "fuse": "all"}
    with kernels.absent():
        optimize(model, precision="int8", calibration=data, **options)
    told = "precision='auto' leaves in floats what gains nothing" in caplog.text
    assert told is slower


def test_quantized_models_are_refused(calibration: Write, tmp_path: Path) -> None:
    model, out = SUBJECTS["mlp"](), tmp_path / "o.onnx"
    data = calibration(model)
    options = {**OPTIONS, "precision": "int8", "calibration": data}
    optimize(model, out, **options)
    with pytest.raises(InputError, match="the model is quantized already"):
        optimize(tmp_path / "o.qdq.onnx", **options)


def test_architectures_without_kernels(calibration: Write) -> None:
    model = SUBJECTS["mlp"]()
    wanted = {**OPTIONS, "archs": ("sm_80", "sm_90a")}
    data = calibration(model)
    extensions.unregister(kernels.EXTENSION)
    try:
        with pytest.raises(InputError, match="not all of sm_80, sm_90a have kernels that multiply"):
            optimize(model, precision="int8", calibration=data, **wanted)
    finally:
        extensions.register(kernels.EXTENSION)


def test_models_without_products(calibration: Write) -> None:
    net = Net({"x": (2, 8)})
    model = net.model(net.node("MatMul", "x", net.const(np.ones((8, 8)))))
    with pytest.raises(InputError, match="no product that could be quantized: it has fewer than"):
        optimize(model, precision="int8", calibration=calibration(model), **OPTIONS)


def test_directories_have_lock_files(saved: Path, calibration: Write, tmp_path: Path) -> None:
    data = calibration(SUBJECTS["cnn"]())
    (tmp_path / "models").mkdir()
    saved.rename(tmp_path / "models" / "cnn.onnx")
    jobs = jobs_in(tmp_path / "models", tmp_path / "out")
    options = Options(precision="int8", calibration=data, **OPTIONS)
    with pytest.raises(InputError, match="belongs to one model"):
        optimize_all(jobs, options)


def test_weights_that_are_not_finite(calibration: Write) -> None:
    net = Net({"x": (4, 16)})
    weight = net.const(np.full((16, 16), np.inf))
    model = net.model(net.node("MatMul", "x", weight))
    fault = f"weight {weight} of matmul0 has values that are NaN or infinite"
    with pytest.raises(InputError, match=fault):
        optimize(model, precision="int8", calibration=calibration(model), **OPTIONS)


def test_fp8_of_a_model_of_ir_3(calibration: Write, tmp_path: Path) -> None:
    """It lists its initializers as inputs, as models of IR 3 do."""
    model, out = SUBJECTS["mlp"](), tmp_path / "o.onnx"
    data = calibration(model)
    model.ir_version = 3
    for tensor in model.graph.initializer:
        value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        model.graph.input.append(value)
    report = optimize(model, out, precision="fp8", calibration=data, **OPTIONS)
    assert report.passed
    assert [value.name for value in load_model(out).graph.input] == ["x"]
