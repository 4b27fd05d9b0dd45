"""Models that other tools have quantized: all products of codes are fused, or the report says why
not, with the codes of the original, in plain ONNX Runtime as well."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, helper

from onnxbolt import optimize
from onnxbolt.graph.importer import load_model
from tests.quantized import fusing
from tests.quantized.exports import store

pytestmark = pytest.mark.usefixtures("products")

_LARGEST = 27_000  # bytes of a file
NAMES = sorted(
    path.name.removesuffix(".onnx")
    for path in store.FOLDER.glob("*.onnx")
    if path != store.floats(path.name.partition(".")[0])
)
_PRODUCTS = ("Conv", "Gemm", "MatMul", "ConvInteger", "MatMulInteger", "QLinearConv", "QGemm")
_ZERO_POINTS = "its quantized weight has zero points, for which inputs have to be added up"
_AT_RUN_TIME = "its scales are computed at run time: quantize it statically"
REFUSED = {"olive.qoperator": _ZERO_POINTS, "ort.dynamic": _AT_RUN_TIME}
# scales of fp16: ONNX Runtime rounds values to fp16 where kernels have them in fp32
_HALF = 0.01


def _outputs(model: ModelProto, exact: bool) -> list[np.ndarray]:
    options = ort.SessionOptions()
    if exact:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (x,) = model.graph.input
    dtype = helper.tensor_dtype_to_np_dtype(x.type.tensor_type.elem_type)
    draws = np.random.default_rng(5).standard_normal(session.get_inputs()[0].shape)
    feeds = {x.name: (draws * 40 if dtype == np.int8 else draws).astype(dtype)}
    found: list[np.ndarray] = session.run(None, feeds)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_each(name: str, tmp_path: Path) -> None:
    path, out = store.FOLDER / f"{name}.onnx", tmp_path / "out.onnx"
    assert path.stat().st_size <= _LARGEST
    report = optimize(path, out, library=False, archs=("sm_90a",), fuse="all", precision="keep")
    assert report.passed
    model, fused = load_model(path), load_model(out)
    reason = REFUSED.get(name.partition(".")[2], "")
    reasons = {each.reason for each in report.refusals if each.op in _PRODUCTS}
    assert reasons == {reason} - {""}
    left = [op for op in fusing.types(fused) if op in _PRODUCTS]
    assert bool(left) == bool(reason)
    (expected,) = _outputs(model, exact=True)
    largest = np.abs(expected.astype(np.float64)).max()
    limit = _HALF if name.endswith("fp16") else 2.0**-21
    for exact in (True, False):
        (found,) = _outputs(fused, exact)
        error = np.abs(found.astype(np.float64) - expected).max()
        assert error <= (limit if exact else _HALF) * largest


def test_all_tools_are_there() -> None:
    tools = {name.split(".")[1] for name in NAMES}
    known = json.loads(store.VERSIONS.read_text())
    assert tools == set(known) - {"float"}
    assert {name.partition(".")[2] for name in NAMES if name.startswith("cnn")} == {
        name.partition(".")[2] for name in NAMES if name.startswith("mlp")
    }
