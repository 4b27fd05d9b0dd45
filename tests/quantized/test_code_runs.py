"""Elementwise nodes between codes, in NHWC, are one kernel that reads bytes and writes bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

from onnxbolt import optimize
from onnxbolt.dtypes import INTEGERS, DType
from onnxbolt.verify import verify
from onnxbolt.verify.session import CPU
from tests.quantized import fusing, kernels, stored
from tests.support import Net

# a value to a scale and a zero point, Q and DQ of them
Pair = Callable[[str, float, int], str]


pytestmark = pytest.mark.usefixtures("products")


def _net(dtype: DType, between: Callable[[Net, str, Pair], str]) -> ModelProto:
    """A convolution of codes on each side of `between`, which gets their values."""
    net = Net({"x": (2, 16, 8, 8)}, opset=17, seed=7)

    def pair(x: str, scale: float, zero: int) -> str:
        numbers = net.const(scale), net.const(zero, dtype.numpy)
        return net.node("DequantizeLinear", net.node("QuantizeLinear", x, *numbers), *numbers)

    def conv(x: str) -> str:
        weight = net.const(net.rng.integers(-127, 128, (16, 16, 1, 1)), np.int8)
        return net.node("Conv", x, net.node("DequantizeLinear", weight, net.const(0.00213)))

    values = pair(conv(pair("x", 0.0231, 3)), 0.0417, 5)
    return net.model(pair(conv(pair(between(net, values, pair), 0.0311, 7)), 0.0293, 1))


def _hard_swish(net: Net, x: str, pair: Pair) -> str:
    """As onnxruntime.quantization writes it: codes of the gate, too."""
    return net.node("Mul", x, pair(net.node("HardSigmoid", x, alpha=1 / 6), 0.00392, 0))


def _sum(net: Net, x: str, pair: Pair) -> str:
    return net.node("Relu", net.node("Add", pair(net.node("Sigmoid", x), 0.0039, 0), x))


def _between_others(net: Net, x: str, pair: Pair) -> str:
    """Abs is no step: the run begins behind the first one, and ends in front of the second."""
    return net.node("Abs", pair(net.node("Tanh", pair(net.node("Abs", x), 0.05, 0)), 0.008, 2))


CHAINS: dict[Callable[[Net, str, Pair], str], list[str]] = {
    _hard_swish: ["HardSigmoid_RequantizeT_MulCodesT"],
    _sum: ["Sigmoid_RequantizeT_AddCodesT_Relu"],
    _between_others: ["Tanh"],
}


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("between", CHAINS, ids=lambda between: between.__name__)
def test_a_run_of_codes_is_one_node(
    between: Callable[[Net, str, Pair], str], dtype: DType, tmp_path: Path
) -> None:
    model = _net(dtype, between)
    fused = fusing.fused(model, tmp_path)
    result = verify(model, fused, providers=[CPU])
    name = dtype.name
    expected = [
        f"FusedQuantizedElementwise_Decode{name}_{steps.replace('T_', name + '_')}"
        for steps in CHAINS[between]
    ]
    ours = [op for op in fusing.types(fused) if op.startswith("FusedQuantizedElementwise")]
    assert len(ours) == len(expected)
    for op, begin in zip(sorted(ours), expected, strict=True):
        assert op.startswith(begin.rstrip("T"))
        assert f"_Quantize{name}_{dtype.value}" in op
    assert result.passed, result.text()


def test_runs_stay_until_kernels_have_run_on_a_gpu(tmp_path: Path) -> None:
    with kernels.unmoved():
        types = fusing.types(fusing.fused(_net(DType.U8, _hard_swish), tmp_path))
    assert types["HardSigmoid"] == types["Mul"] == 1
    assert not [op for op in types if op.startswith("FusedQuantizedElementwise")]


def test_values_that_others_read_are_written(tmp_path: Path) -> None:
    """A run ends in front of codes that are an output of the model."""
    model = _net(DType.U8, _hard_swish)
    gate = next(node for node in model.graph.node if node.op_type == "HardSigmoid")
    codes = next(node for node in model.graph.node if gate.output[0] in node.input)
    model.graph.output.append(
        helper.make_tensor_value_info(codes.output[0], onnx.TensorProto.UINT8, (2, 16, 8, 8))
    )
    fused = fusing.fused(model, tmp_path)
    result = verify(model, fused, providers=[CPU])
    ours = [op for op in fusing.types(fused) if op.startswith("FusedQuantizedElementwise")]
    assert not [op for op in ours if "Requantize" in op]
    assert result.passed, result.text()


@pytest.mark.parametrize("place", range(4))
def test_a_wrong_number_of_a_step_is_found(place: int, tmp_path: Path) -> None:
    model = _net(DType.U8, _hard_swish)
    fused = fusing.fused(model, tmp_path)
    node = next(n for n in fused.graph.node if n.op_type.startswith("FusedQuantizedElementwise"))
    params = next(a for a in node.attribute if a.name == "epilogue_params")
    params.floats[[0, 1, 6, 9][place]] += [0.001, 1, 0.001, 1][place]
    assert not verify(model, fused, providers=[CPU]).passed


def _gated(net: Net, x: str, pair: Pair) -> str:
    """Squeeze-and-excitation without its convolutions: a gate for each channel."""
    mean = pair(net.node("GlobalAveragePool", x), 0.0173, 11)
    return net.node("Mul", x, pair(net.node("HardSigmoid", mean), 0.00392, 2))


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.value)
def test_means_and_gates_of_codes(dtype: DType, tmp_path: Path) -> None:
    """The mean reads bytes, and the codes of its value are made of it; the gate broadcasts."""
    model = _net(dtype, _gated)
    fused = fusing.fused(model, tmp_path)
    result = verify(model, fused, providers=[CPU])
    types, name = fusing.types(fused), dtype.name
    assert types[f"GlobalAveragePool_nhwc_CastF32_{dtype.value}"] == 1
    gate = f"FusedQuantizedGate_Decode{name}_MulCodes{name}_Quantize{name}_{dtype.value}"
    assert types[gate] == 1
    assert types["Sub"] == 1  # (mean - zero point) * scale
    assert types[f"FusedQuantize_Scale_Quantize{name}_f32"] == 1
    assert "Mul" not in types
    assert result.passed, result.text()
    node = next(node for node in fused.graph.node if node.op_type == gate)
    params = next(a for a in node.attribute if a.name == "epilogue_params")
    params.floats[2] *= 1.02
    assert not verify(model, fused, providers=[CPU]).passed


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.value)
def test_a_classifier_reads_codes_of_a_mean_of_codes(dtype: DType, tmp_path: Path) -> None:
    """Between its kernels nothing but a Reshape is left."""
    net = Net({"x": (2, 16, 8, 8)}, opset=17, seed=9)
    scale = net.const(0.0231), net.const(0, dtype.numpy)

    def pair(x: str) -> str:
        return net.node("DequantizeLinear", net.node("QuantizeLinear", x, *scale), *scale)

    weight = net.const(net.rng.integers(-127, 128, (32, 16, 1, 1)), np.int8)
    image = net.node("Conv", pair("x"), net.node("DequantizeLinear", weight, net.const(0.00213)))
    mean = net.node("GlobalAveragePool", pair(net.node("Relu", image)))
    rows = net.const(net.rng.integers(-127, 128, (32, 16)), np.int8)
    model = net.model(
        net.node(
            "MatMul",
            pair(net.node("Flatten", mean)),
            net.node("DequantizeLinear", rows, net.const(0.0031)),
        )
    )
    fused = fusing.fused(model, tmp_path)
    result = verify(model, fused, providers=[CPU])
    assert result.passed, result.text()
    types = fusing.types(fused)
    assert types[f"GlobalAveragePool_nhwc_CastF32_{dtype.value}"] == 1
    assert types[f"FusedQuantize_Scale_Quantize{dtype.name}_f32"] == 1
    assert not {"Mul", "Flatten", "DequantizeLinear"} & types.keys()


@pytest.mark.parametrize("name", [name for name in stored.names() if name.startswith("mobile")])
def test_depthwise_convolutions_of_codes(name: str, tmp_path: Path) -> None:
    """No Conv stays where kernels have run."""
    model = stored.graph(name)
    fused = fusing.fused(model, tmp_path)
    result = verify(model, fused, providers=[CPU])
    assert result.passed, result.text()
    if "u8u8" in name:  # weights with zero points
        return
    assert not {"Conv", "HardSwish"} & fusing.types(fused).keys()
    assert len([op for op in fusing.types(fused) if op.startswith("NchwToNhwc")]) <= 2
    (deep,) = [
        node
        for node in fused.graph.node
        if any(attribute.name == "group" and attribute.i == 16 for attribute in node.attribute)
    ]
    assert deep.op_type.startswith("FusedQuantizedConv")


@pytest.mark.parametrize(
    ("archs", "fuses"), [(("sm_80",), False), (("sm_80", "sm_90a"), False), (("sm_90a",), True)]
)
def test_a_run_of_fp8_needs_instructions_for_it(
    archs: tuple[str, ...], fuses: bool, tmp_path: Path
) -> None:
    net = Net({"x": (2, 16, 8, 8)}, opset=19, seed=7)

    def pair(x: str, scale: float) -> str:
        numbers = net.const(scale), net.const(0, DType.E4M3.numpy)
        return net.node("DequantizeLinear", net.node("QuantizeLinear", x, *numbers), *numbers)

    values = pair(net.conv("x", 16, 16, 3, pads=[1, 1, 1, 1]), 0.05)
    gate = pair(net.node("HardSigmoid", values, alpha=1 / 6), 0.01)
    model = net.model(net.conv(pair(net.node("Mul", values, gate), 0.03), 16, 16))
    out = tmp_path / "out.onnx"
    optimize(model, out, library=False, verify=False, archs=archs, fuse="all", precision="keep")
    ours = [n for n in onnx.load(out).graph.node if n.op_type.startswith("FusedQuantizedElement")]
    assert bool(ours) == fuses
