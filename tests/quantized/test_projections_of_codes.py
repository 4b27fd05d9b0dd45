"""Projections of one input of codes become one product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, helper

from onnxbolt.dtypes import DType
from onnxbolt.plan.cost import predict
from onnxbolt.problems import QuantizedGemmProblem
from onnxbolt.verify import verify
from onnxbolt.verify.session import CPU
from tests.quantized import fusing
from tests.support import Net

I8, U8, E4M3 = np.int8, np.uint8, ml_dtypes.float8_e4m3fn
B, S, H, D = 2, 9, 2, 16
WIDTH = H * D


def _attention(
    code: Any = I8,
    zero: int = 0,
    bias: bool = True,
    half: bool = False,
    scales: tuple[float, float, float] = (0.031,) * 3,
) -> ModelProto:
    """Attention whose queries, keys and values are products of the codes of x, which have these
    scales. `half`: the model has fp16, as ModelOpt writes it."""
    kind = np.float16 if half else np.float32
    net = Net({"x": (B, S, WIDTH)}, opset=19, seed=7)
    x = net.node("Cast", "x", to=helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
    codes = net.node("QuantizeLinear", x, net.const(scales[0], kind), net.const(zero, code))

    def projected(scale: float) -> str:
        numbers = net.const(scale, kind), net.const(zero, code)
        values = net.rng.normal(0, 40, (WIDTH, WIDTH)).astype(np.int8)
        weight = net.const(
            values.astype(np.float32) if code is E4M3 else values, E4M3 if code is E4M3 else I8
        )
        each = net.const(net.rng.uniform(0.001, 0.003, WIDTH), kind)
        w = net.node("DequantizeLinear", weight, each, axis=1)
        y = net.node("MatMul", net.node("DequantizeLinear", codes, *numbers), w)
        return net.node("Add", y, net.const(net.rng.normal(0, 1, WIDTH), kind)) if bias else y

    heads = net.const([0, 0, H, -1], "int64")
    q, k, v = (
        net.node("Transpose", net.node("Reshape", projected(scale), heads), perm=perm)
        for scale, perm in (
            (scales[0], [0, 2, 1, 3]),
            (scales[1], [0, 2, 3, 1]),
            (scales[2], [0, 2, 1, 3]),
        )
    )
    scores = net.node("Mul", net.node("MatMul", q, k), net.const(D**-0.5, kind))
    y = net.node("MatMul", net.node("Softmax", scores, axis=-1), v)
    joined = net.const([0, 0, WIDTH], "int64")
    y = net.node("Reshape", net.node("Transpose", y, perm=[0, 2, 1, 3]), joined)
    return net.model(net.node("Tanh", net.node("Cast", y, to=1)))


def _products(model: ModelProto, folder: Path, precision: str) -> tuple[list[str], list[str]]:
    """The types of the products and of attention, of a model whose verification passed."""
    fused = fusing.fused(model, folder, precision)
    result = verify(model, fused, providers=[CPU])
    assert result.passed, result.text()
    names = [node.op_type for node in fused.graph.node]
    assert "Split" not in names
    return tuple(  # type: ignore[return-value]
        [name for name in names if name.startswith(begin)]
        for begin in ("FusedQuantizedGemm", "FusedAttention")
    )


@pytest.mark.parametrize("precision", ["keep", "fp16", "bf16"])
@pytest.mark.parametrize(
    ("code", "zero"), [(I8, 0), (U8, 120), (E4M3, 0)], ids=["i8", "u8", "e4m3"]
)
def test_three_projections_of_one_input_become_one(
    code: Any, zero: int, precision: str, tmp_path: Path
) -> None:
    """The weights' scales lie side by side, as the weights do."""
    products, (attention,) = _products(_attention(code, zero), tmp_path, precision)
    assert len(products) == 1
    assert "qkv_packed" in attention


def test_models_of_16_bits(tmp_path: Path) -> None:
    products, _ = _products(_attention(half=True), tmp_path, "keep")
    assert products == ["FusedQuantizedGemm_Dequantize_Bias_CastF16_i8"]


def test_projections_without_biases(tmp_path: Path) -> None:
    products, _ = _products(_attention(bias=False), tmp_path, "fp16")
    assert products == ["FusedQuantizedGemm_Dequantize_CastF16_i8"]


def test_values_of_another_scale_stay_apart(tmp_path: Path) -> None:
    """Another DequantizeLinear makes other values of the same codes."""
    products, (attention,) = _products(_attention(scales=(0.031, 0.031, 0.05)), tmp_path, "fp16")
    assert len(products) == 2
    assert "qk_packed" in attention


def test_a_merged_product_is_never_predicted_to_be_slower() -> None:
    def us(m: int, n: int, k: int, dtype: DType) -> float:
        chain = ("Dequantize", "Bias")
        return predict(QuantizedGemmProblem(m, n, k, dtype, DType.F16, chain, False), 90)[1]

    for dtype in (DType.I8, DType.E4M3):
        for k in (256, 768, 1024):
            for parts in ((k, k, k), (k, k), (k, k // 4, k // 4)):
                for m in (16, 197, 1280, 6304, 16384):
                    apart = sum(us(m, n, k, dtype) for n in parts)
                    assert us(m, sum(parts), k, dtype) <= apart, (dtype, m, parts, k)
