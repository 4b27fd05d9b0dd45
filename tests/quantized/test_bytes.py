"""Nodes between products that move codes: poolings, resizing and conversions of layouts read and
write bytes in NHWC, where kernels for bytes have run on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto

from onnxbolt import families
from onnxbolt.dtypes import INTEGERS, DType
from onnxbolt.verify import verify
from onnxbolt.verify.session import CPU
from tests.quantized import fusing, kernels, stored
from tests.support import Net

pytestmark = pytest.mark.usefixtures("products")


def _net(dtype: DType, op: str, zero: int, **attributes: Any) -> ModelProto:
    """A convolution of codes on each side of a node that moves these."""
    net = Net({"x": (2, 16, 8, 8)}, opset=17)
    numbers = net.const(0.05), net.const(zero, dtype.numpy)

    def pair(x: str) -> str:
        return net.node("DequantizeLinear", net.node("QuantizeLinear", x, *numbers), *numbers)

    def conv(x: str) -> str:
        weight = net.const(net.rng.integers(-127, 128, (16, 16, 1, 1)), np.int8)
        return net.node("Conv", x, net.node("DequantizeLinear", weight, net.const(0.002)))

    codes = pair(conv(pair("x")))
    scales = [net.const([1, 1, 2, 2])] if op == "Resize" else []
    moved = net.node(op, codes, *([""] if scales else []), *scales, **attributes)
    return net.model(pair(conv(pair(moved))))


MOVES: list[tuple[str, dict[str, object]]] = [
    ("MaxPool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ("Resize", {"mode": "nearest", "nearest_mode": "floor"}),
]


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize(("op", "attributes"), MOVES, ids=[op for op, _ in MOVES])
def test_what_moves_codes_reads_bytes_in_nhwc(
    op: str, attributes: dict[str, object], dtype: DType, tmp_path: Path
) -> None:
    model = _net(dtype, op, 3, **attributes)
    fused = fusing.fused(model, tmp_path)
    result = verify(model, fused, providers=[CPU])
    types = fusing.types(fused)
    (moved,) = [name for name in types if name.startswith(f"{op}_nhwc")]
    assert f"_{dtype.value}" in moved
    assert types[f"NchwToNhwc_{dtype.value}"] == 1
    assert types["Transpose"] == types[op] == 0
    assert types["QuantizeLinear"] == types["DequantizeLinear"] == 1  # those of input and output
    assert result.passed, result.text()


@pytest.mark.parametrize(("op", "attributes"), MOVES, ids=[op for op, _ in MOVES])
def test_they_stay_until_kernels_have_run_on_a_gpu(
    op: str, attributes: dict[str, object], tmp_path: Path
) -> None:
    with kernels.unmoved():
        types = fusing.types(fusing.fused(_net(DType.U8, op, 3, **attributes), tmp_path))
    assert types[op] == 1
    assert not [name for name in types if name.startswith(("Nchw", "Nhwc")) and "u8" in name]


def test_means_and_interpolations_stay(tmp_path: Path) -> None:
    """They compute values; codes are no values."""
    fused = fusing.fused(_net(DType.U8, "Resize", 3, mode="linear"), tmp_path)
    assert not [
        name for name in fusing.types(fused) if name.startswith("Resize_nhwc") and "u8" in name
    ]


@pytest.mark.parametrize("name", [n for n in stored.names() if n.startswith("cnn")])
def test_stored_graphs_pass(name: str, tmp_path: Path) -> None:
    model = stored.graph(name)
    fused = fusing.fused(model, tmp_path)
    result = verify(model, fused, providers=[CPU])
    assert result.passed, result.text()
    if ".ort." in name and "u8u8" not in name:
        assert not {"MaxPool", "Transpose"} & fusing.types(fused).keys()
        assert any(op.startswith("MaxPool_nhwc") for op in fusing.types(fused))


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.value)
def test_codes_at_the_end_are_converted_before_their_values(
    dtype: DType, size: int, tmp_path: Path
) -> None:
    """Plain ONNX Runtime loads such models of opset 21, too."""
    net = Net({"x": (2, 16, size, size)}, opset=21)
    numbers = net.const(0.05), net.const(3, dtype.numpy)
    codes = net.const(net.rng.integers(-127, 128, (16, 16, 1, 1)), np.int8)
    x = net.node("DequantizeLinear", net.node("QuantizeLinear", "x", *numbers), *numbers)
    y = net.node("Conv", x, net.node("DequantizeLinear", codes, net.const(0.002)))
    last = net.node("DequantizeLinear", net.node("QuantizeLinear", y, *numbers), *numbers)
    model = net.model(last)
    fused = fusing.fused(model, tmp_path)
    types = fusing.types(fused)
    (values,) = [n for n in fused.graph.node if n.op_type == "DequantizeLinear"]
    assert values.output[0] == last
    assert types["NhwcToNchw_f32"] == 0
    assert types[f"NhwcToNchw_{dtype.value}"] == (size > 1)
    ort.InferenceSession(fused.SerializeToString(), providers=[CPU])
    result = verify(model, fused, providers=[CPU])
    assert result.passed, result.text()


def test_values_of_one_pixel_are_moved_as_codes(tmp_path: Path) -> None:
    """In front of a node that keeps the other layout."""
    net = Net({"x": (2, 16, 1, 1), "y": (2, 16, 1, 1), "z": (2, 16, 1, 1)}, opset=21)
    numbers = net.const(0.05), net.const(3, np.int8)
    codes = net.const(net.rng.integers(-127, 128, (16, 16, 1, 1)), np.int8)
    x = net.node("DequantizeLinear", net.node("QuantizeLinear", "x", *numbers), *numbers)
    y = net.node("Conv", x, net.node("DequantizeLinear", codes, net.const(0.002)))
    values = net.node("DequantizeLinear", net.node("QuantizeLinear", y, *numbers), *numbers)
    model = net.model(net.node("Max", values, "y", "z"))
    fused = fusing.fused(model, tmp_path)
    makers = {name: node for node in fused.graph.node for name in node.output}
    (back,) = [n for n in fused.graph.node if n.op_type == "DequantizeLinear"]
    assert makers[back.input[0]].op_type == "Reshape"
    ort.InferenceSession(fused.SerializeToString(), providers=[CPU])
    result = verify(model, fused, providers=[CPU])
    assert result.passed, result.text()


def test_a_wrong_pooling_of_codes_is_found(tmp_path: Path) -> None:
    model = stored.graph("cnn.ort.qdq.u8s8.channel")
    fused = fusing.fused(model, tmp_path)
    node = next(n for n in fused.graph.node if n.op_type.startswith("MaxPool_nhwc"))
    pads = next(a for a in node.attribute if a.name == "pads")
    pads.ints[:] = [0, 1, 2, 1]
    onnx.checker.check_model(fused)
    assert not verify(model, fused, providers=[CPU]).passed


def test_codes_are_moved_where_others_multiply_them() -> None:
    with kernels.unmoved():
        assert not families.takes_codes("max_pool", DType.U8)
    assert families.takes_codes("max_pool", DType.U8)
    assert not families.takes_codes("max_pool", DType.E4M3)
    assert not families.takes_codes("deformable_attention", DType.U8)


def test_rows_of_fp8_are_padded_as_numbers(tmp_path: Path) -> None:
    """ONNX Runtime has Cast alone for fp8, no Pad."""
    net, fp8 = Net({"x": (4, 10)}, opset=19), DType.E4M3.numpy
    zero = net.const(0, fp8)
    codes = net.node("QuantizeLinear", "x", net.const(0.01), zero)
    weight = net.const(net.rng.standard_normal((10, 32)) * 50, fp8)
    values = (net.node("DequantizeLinear", c, net.const(0.01), zero) for c in (codes, weight))
    model = net.model(net.node("MatMul", *values))
    fused = fusing.fused(model, tmp_path)
    types = fusing.types(fused)
    assert types["FusedQuantizedGemm_Dequantize_CastF32_e4m3"] == types["Pad"] == 1
    assert types["Cast"] == 2
    result = verify(model, fused, providers=[CPU])
    assert result.passed, result.text()
