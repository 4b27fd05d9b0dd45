from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper, numpy_helper

import onnxbolt
from onnxbolt.verify.session import CPU, Runner
from tests.support import Net

_TYPES = [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.int8]


@pytest.mark.parametrize("dtype", _TYPES)
def test_large_weights_may_have_types_that_numpy_lacks(dtype: Any) -> None:
    net = Net({"x": (2, 64)}, opset=21)
    codes = np.arange(64 * 64).reshape(64, 64) % 5
    net.initializers.append(numpy_helper.from_array(codes.astype(dtype), "codes"))
    weight = net.node("DequantizeLinear", "codes", net.const(0.5))
    y = net.node("MatMul", "x", weight)
    typed = helper.make_tensor_value_info(y, 1, (2, 64))
    model = net.model(y)
    model.ir_version = 10
    model.graph.output[0].CopyFrom(typed)
    x = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    got = Runner(model, CPU).run({"x": x}, [y])[y]
    expected = x @ (codes * np.float32(0.5))
    # session.disable_quant_qdq: else ONNX Runtime rounds x to 8 bits in front of integers, by 0.009
    assert np.linalg.norm(got - expected) <= 1e-6 * np.linalg.norm(expected)
    assert onnxbolt.optimize(model, precision="keep", library=False).passed
