"""Verification of models with tensors in fp8, which ONNX Runtime neither takes nor gives as
arrays."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from onnxbolt import optimize
from onnxbolt.verify import verify
from onnxbolt.verify.session import CPU, Runner
from tests.support import Net

TYPES: dict[int, Any] = {
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    TensorProto.FLOAT8E5M2: ml_dtypes.float8_e5m2,
}


def net(kind: int, given: bool = False) -> ModelProto:
    """Products around codes in fp8, which are a result, too; `given`: codes are an input."""
    made = Net({"x": (16, 64)}, opset=19, types={"x": kind} if given else {})
    zero = made.const(0, TYPES[kind])
    weight = made.const(made.rng.standard_normal((64, 64)) * 8, TYPES[kind])
    codes = "x"
    if not given:
        hidden = made.node("Relu", made.linear("x", 64, 64))
        codes = made.node("QuantizeLinear", hidden, made.const(0.5), zero)
    values = made.node("DequantizeLinear", codes, made.const(0.5), zero)
    factor = made.node("DequantizeLinear", weight, made.const(0.01))
    y = made.linear(made.node("Relu", made.node("MatMul", values, factor)), 64, 64)
    model = made.model(y) if given else made.model(y, codes)
    if not given:
        model.graph.output[1].CopyFrom(helper.make_tensor_value_info(codes, kind, (16, 64)))
    model.ir_version = 9
    return model


@pytest.mark.parametrize("precision", ["fp16", "keep"])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("kind", TYPES)
def test_optimized_models_are_verified(kind: int, given: bool, precision: str) -> None:
    choices: dict[str, Any] = {"precision": precision, "archs": ("sm_90a",), "fuse": "all"}
    report = optimize(net(kind, given), library=False, **choices)
    assert report.passed
    assert len(report.fused) >= 2 - given


@pytest.mark.parametrize("kind", TYPES)
def test_codes_come_in_their_type_and_are_taken_so(kind: int) -> None:
    model = net(kind, given=True)
    numbers = [0.5, -448.0, 2.0**-9, np.nan, *[np.inf] * (kind == TensorProto.FLOAT8E5M2)]
    codes = np.resize(np.array(numbers, np.float32), (16, 64)).astype(TYPES[kind])
    (first,) = [n for n in model.graph.node if list(n.input)[:1] == ["x"]]
    name = first.output[0]
    runner = Runner(model, CPU)
    for found in (
        runner.run({"x": codes}, ["x", name]),
        runner.part([first], {"x": codes}, ["x", name]),
    ):
        assert found["x"].dtype == codes.dtype
        assert found["x"].tobytes() == codes.tobytes()
        np.testing.assert_array_equal(found[name], codes.astype(np.float32) * 0.5)


@pytest.mark.parametrize("kind", TYPES)
def test_a_wrong_weight_in_fp8_is_found(kind: int) -> None:
    model, other = net(kind), onnx.ModelProto()
    other.CopyFrom(model)
    (weight,) = [t for t in other.graph.initializer if t.data_type == kind and len(t.dims) == 2]
    weight.raw_data = bytes([weight.raw_data[0] ^ 0x80]) * 64 + weight.raw_data[64:]
    assert verify(model, model).passed
    assert not verify(model, other).passed


def test_a_relu_in_front_of_fp8_stays() -> None:
    """ONNX Runtime drops it, as if 0 were the least code."""
    net = Net({"x": (4,)}, opset=19)
    zero = net.const(0, ml_dtypes.float8_e4m3fn)
    codes = net.node("QuantizeLinear", net.node("Relu", "x"), net.const(0.5), zero)
    model = net.model(net.node("DequantizeLinear", codes, net.const(0.5), zero))
    model.ir_version = 9
    x = np.array([-3, -1, 0, 2], np.float32)
    (found,) = Runner(model, CPU).run({"x": x}, []).values()
    np.testing.assert_array_equal(found, [0, 0, 0, 2])
