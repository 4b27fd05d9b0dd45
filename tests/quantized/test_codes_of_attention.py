"""Attention ends with the codes of its result, where kernels do so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto

from onnxbolt.archs import get
from onnxbolt.dtypes import CODES, DType
from onnxbolt.epilogues import QUANTIZE
from onnxbolt.families import named
from onnxbolt.problems import AttentionProblem, QuantizeProblem
from onnxbolt.verify import verify
from onnxbolt.verify.session import CPU
from tests.quantized import fusing, kernels
from tests.support import Net, planned

pytestmark = pytest.mark.usefixtures("products")
I8, U8, E4M3 = np.int8, np.uint8, ml_dtypes.float8_e4m3fn


def _model(code: Any = I8, zero: int = 0, size: int = 32, later: bool = False) -> ModelProto:
    """Attention of two heads, and a linear layer of its codes; `later`: another node reads what is
    in front of the codes, too."""
    width = 2 * size
    net = Net(dict.fromkeys("qkv", (2, 20, width)), opset=19, seed=3)
    heads, joined = net.const([0, 0, 2, size], "int64"), net.const([0, 0, width], "int64")
    q, k, v = (
        net.node("Transpose", net.node("Reshape", name, heads), perm=perm)
        for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]))
    )
    scores = net.node("Mul", net.node("MatMul", q, k), net.const(size**-0.5))
    y = net.node("MatMul", net.node("Softmax", scores, axis=-1), v)
    y = net.node("Reshape", net.node("Transpose", y, perm=[0, 2, 1, 3]), joined)
    numbers = net.const(0.0131), net.const(zero, code)
    x = net.node("DequantizeLinear", net.node("QuantizeLinear", y, *numbers), *numbers)
    codes = net.rng.normal(0, 40, (width, 32)).astype(np.int8)
    weight = net.const(
        codes.astype(np.float32) if code is E4M3 else codes, E4M3 if code is E4M3 else I8
    )
    z = net.node("MatMul", x, net.node("DequantizeLinear", weight, net.const(0.0021)))
    z = net.node("Tanh", z)
    return net.model(*([z, net.node("Sin", y)] if later else [z]))


def _fused(model: ModelProto, folder: Path, precision: str = "fp16") -> list[str]:
    """The types of nodes in front of the product, of a model whose verification passed."""
    fused = fusing.fused(model, folder, precision)
    result = verify(model, fused, providers=[CPU])
    assert result.passed, result.text()
    found = [node.op_type for node in fused.graph.node]
    assert "QuantizeLinear" not in found
    begin = ("FusedAttention", "FusedQuantize_")
    return [name for name in found if name.startswith(begin)]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("code", "zero"), [(I8, 0), (U8, 120), (E4M3, 0)], ids=["i8", "u8", "e4m3"]
)
def test_one_node_makes_codes(code: Any, zero: int, precision: str, tmp_path: Path) -> None:
    """In front of it are Casts of the inputs, behind it is the product."""
    dtype = DType.of_codes(np.dtype(code))
    assert dtype is not None
    found = _fused(_model(code, zero), tmp_path, precision)
    assert found == [f"FusedAttention_Quantize{dtype.name}_{precision.replace('p', '')}"]


@pytest.mark.parametrize(
    ("changes", "precision"),
    [({}, "keep"), ({"size": 24}, "fp16"), ({"later": True}, "fp16")],
    ids=["fp32", "heads of 24", "others read values"],
)
def test_two_nodes_make_codes(changes: dict[str, Any], precision: str, tmp_path: Path) -> None:
    """No kernel makes the codes of such heads, or values are needed as well."""
    first, second = _fused(_model(**changes), tmp_path, precision)
    assert first.startswith("FusedAttention_")
    assert "Quantize" not in first
    assert second.startswith("FusedQuantize_QuantizeI8_f")


def test_an_output_is_written_as_values(tmp_path: Path) -> None:
    model = _model()
    (name,) = (n.input[0] for n in model.graph.node if n.op_type == "QuantizeLinear")
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, [2, 20, 64]))
    assert len(_fused(model, tmp_path)) == 2


def test_kernels_that_have_not_run_are_not_chosen(tmp_path: Path) -> None:
    with kernels.unmoved(), planned(named("elementwise"), measured=False):
        fused = fusing.fused(_model(), tmp_path, "fp16")
    types = fusing.types(fused)
    assert types["QuantizeLinear"] == 1
    assert not any(name.startswith("FusedAttention_Quantize") for name in types)


@pytest.mark.parametrize("code", [I8, E4M3], ids=["i8", "e4m3"])
def test_a_wrong_scale_is_found(code: Any, tmp_path: Path) -> None:
    model = _model(code)
    fused = fusing.fused(model, tmp_path, "fp16")
    (node,) = (n for n in fused.graph.node if n.op_type.startswith("FusedAttention"))
    (numbers,) = (a for a in node.attribute if a.name == "epilogue_params")
    numbers.floats[0] *= 1.1
    result = verify(model, fused, providers=[CPU])
    assert not result.passed
    assert any(row.failed for row in result.rows if row.level == "segment")


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.value)
def test_onnx_runtime_makes_codes_in_kernels_of_their_own(code: DType) -> None:
    values = AttentionProblem(32, 12, 12, 197, 197, 64, 64, DType.F16, DType.F16)
    codes = AttentionProblem(32, 12, 12, 197, 197, 64, 64, DType.F16, code, chain=(QUANTIZE[code],))
    alone = QuantizeProblem(32 * 197, 768, DType.F16, code, (QUANTIZE[code],))
    arch = get(90)
    assert codes.onnxruntime_us(arch) == pytest.approx(
        values.onnxruntime_us(arch) + alone.onnxruntime_us(arch)
    )
    assert values.reference is not None
    assert codes.reference is None
