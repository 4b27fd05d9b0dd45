"""Products of codes as fused nodes: plain ONNX Runtime computes the same codes with their bodies as
it does with the original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxbolt import optimize
from onnxbolt.candidates import Refusal
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.ops import OPS, FusedOp
from onnxbolt.ops.quantized import pattern
from tests.quantized import fusing, kernels, stored
from tests.support import Net

# relative to the largest output: with scales of fp16 the original rounds values to fp16
_FP8_STEP = 0.08
DTYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
_PRODUCTS = {"Conv", "Gemm", "MatMul"}
pytestmark = pytest.mark.usefixtures("products")


def _outputs(model: onnx.ModelProto) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    rng, feeds = np.random.default_rng(5), {}
    for value in model.graph.input:
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        draws = rng.integers(0, 256, shape) if dtype == np.uint8 else rng.standard_normal(shape)
        feeds[value.name] = draws.astype(dtype)
    found: list[np.ndarray] = session.run(None, feeds)
    return found


@pytest.mark.parametrize("name", stored.names())
def test_stored_graphs(name: str, tmp_path: Path) -> None:
    """Bit for bit, but for the order in which means are summed in NHWC, and scales of fp16."""
    model = stored.graph(name)
    fused = fusing.fused(model, tmp_path)
    types = fusing.types(fused)
    if "u8u8" in name:  # weights with zero points
        assert not any(op.startswith("FusedQuantized") for op in types)
    else:
        assert not _PRODUCTS & set(types)
    (expected,), (found,) = _outputs(model), _outputs(fused)
    largest = np.abs(expected.astype(np.float64)).max()
    if "fp8" in name:
        assert np.abs(found.astype(np.float64) - expected).max() <= _FP8_STEP * largest
    elif name.startswith("cnn") and "ort" not in name:
        np.testing.assert_allclose(found, expected, rtol=0, atol=2.0**-21 * largest)
    else:
        assert found.tobytes() == expected.tobytes()


def test_values_are_fp16_and_codes_are_computed_in_fp32(tmp_path: Path) -> None:
    """With --precision fp16 the Cast behind a product of codes is its last step, and there is none
    between codes."""
    model = stored.graph("mobile.ort.qdq.u8s8.channel")
    with kernels.absent():  # the depthwise convolution reads and writes values
        fused = fusing.fused(model, tmp_path, "fp16")
    ours = [op for op in fusing.types(fused) if op.startswith("FusedQuantizedConv")]
    assert len(ours) == 4
    assert [op.count("Cast") for op in ours if "Quantize" in op.split("_", 1)[1]] == [0] * 3
    (cast,) = (op for op in ours if "CastF16" in op)
    assert cast.endswith("_CastF16_u8")
    (expected,), (found,) = _outputs(model), _outputs(fused)
    assert np.abs(found - expected).max() <= 0.02 * np.abs(expected).max()


# --- a residual block of codes --------------------------------------------------------------------


def _block(stride: int = 1, size: int = 9, zero: int = 113) -> onnx.ModelProto:
    """ResNet's block: two convolutions with padding, a residual with a pair, ReLU."""
    rng = np.random.default_rng(3)
    constants: dict[str, Any] = {"z": np.uint8(zero), "s": np.float32(0.03)}
    nodes, width = [], 16

    def node(op: str, inputs: str, output: str, **attributes: Any) -> None:
        nodes.append(helper.make_node(op, inputs.split(), [output], output, **attributes))

    def conv(x: str, name: str, filter: int, **attributes: Any) -> None:
        codes = rng.integers(-127, 128, (width, width, filter, filter)).astype(np.int8)
        constants[f"w{name}"] = codes
        constants[f"sw{name}"] = rng.uniform(0.0005, 0.002, width).astype(np.float32)
        constants[f"b{name}"] = rng.standard_normal(width).astype(np.float32)
        node("DequantizeLinear", f"{x} s z", f"x{name}")
        node("DequantizeLinear", f"w{name} sw{name}", f"v{name}", axis=0)
        node("Conv", f"x{name} v{name} b{name}", f"c{name}", **attributes)

    pads = {"pads": [1, 1, 1, 1]}
    conv("x", "1", 3, strides=[stride, stride], **pads)
    node("Relu", "c1", "r1")
    node("QuantizeLinear", "r1 s z", "q1")
    conv("q1", "2", 3, **pads)
    node("QuantizeLinear", "c2 s z", "q2")
    node("DequantizeLinear", "q2 s z", "d2")
    conv("x", "0", 1, strides=[stride, stride])
    node("QuantizeLinear", "c0 s z", "q0")
    node("DequantizeLinear", "q0 s z", "d0")
    node("Add", "d2 d0", "a")
    node("Relu", "a", "r")
    node("QuantizeLinear", "r s z", "y")
    shape = [2, width, size, size]
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, shape)],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("zero", [0, 113])
def test_a_residual_block(stride: int, zero: int, tmp_path: Path) -> None:
    """Three nodes with codes alone between them; one of two pairs in front of the sum rounds in
    registers, the other one is what the second node reads."""
    model = _block(stride, zero=zero)
    fused = fusing.fused(model, tmp_path)
    begins = "FusedQuantizedConv_offsets" if zero else "FusedQuantizedConv"
    ours = [op for op in fusing.types(fused) if op.startswith("FusedQuantized")]
    assert sorted(ours) == sorted(
        f"{begins}_Dequantize_Bias_{steps}_u8"
        for steps in (
            "Relu_QuantizeU8",
            "QuantizeU8",
            "RequantizeU8_AddCodesU8_Relu_QuantizeU8",
        )
    )
    assert not {"QuantizeLinear", "DequantizeLinear", "Conv"} & set(fusing.types(fused))
    (expected,), (found,) = _outputs(model), _outputs(fused)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", [name for name in stored.names() if "fp8" in name])
def test_bodies_of_fp8_are_right_in_plain_onnx_runtime(name: str, tmp_path: Path) -> None:
    """It drops a Relu right in front of codes in fp8, as it does in the original."""
    fused = fusing.fused(stored.graph(name), tmp_path)
    session = ort.InferenceSession(fused.SerializeToString(), providers=["CPUExecutionProvider"])
    (x,) = session.get_inputs()
    draws = np.random.default_rng(5).standard_normal(x.shape)
    (found,) = session.run(None, {x.name: draws.astype(np.float16)})
    (expected,) = _outputs(fused)
    largest = np.abs(expected.astype(np.float64)).max()
    assert np.abs(found.astype(np.float64) - expected).max() <= _FP8_STEP * largest


def test_codes_that_are_an_output_are_written(tmp_path: Path) -> None:
    """A pair whose codes the model returns is none within an epilogue."""
    model = _block()
    for name in ("q0", "q2"):
        value = helper.make_tensor_value_info(name, TensorProto.UINT8, (2, 16, 9, 9))
        model.graph.output.append(value)
    fused = fusing.fused(model, tmp_path)
    assert not [op for op in fusing.types(fused) if "Requantize" in op]
    for expected, found in zip(_outputs(model), _outputs(fused), strict=True):
        assert found.tobytes() == expected.tobytes()


def test_equal_layers_share_an_op_type(tmp_path: Path) -> None:
    """Scales and zero points are attributes, which bodies read."""
    model = stored.graph("mlp.ort.qdq.s8s8.tensor")
    fused = fusing.fused(model, tmp_path)
    ours = [count for op, count in fusing.types(fused).items() if op.startswith("FusedQuantized")]
    functions = [f.name for f in fused.functions if f.name.startswith("FusedQuantized")]
    assert len(functions) < sum(ours)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [1, 2, 3, 9, 10])
def test_offsets_are_what_the_zero_point_adds_to_each_pixel(stride: int, size: int) -> None:
    model = _block(stride, size)
    graph = import_model(model)
    infer(graph)
    (pattern_of,) = pattern.anchor_pattern(_conv_op(), "Conv")
    node = next(node for node in graph.nodes if node.name == "c1")
    pattern.own_pairs(graph, "Conv")
    found = pattern_of.match(node)
    assert isinstance(found, tuple)
    anchor = found[0]
    assert isinstance(anchor, pattern.QuantizedAnchor)
    weight = anchor.weight.values
    table = pattern.offsets(anchor, weight)
    firsts = pattern.classes(size, 3, stride, 1, (1, 1))
    outputs = (size - 1) // stride + 1
    of_output = [max(i for i, f in enumerate(firsts) if f <= p) for p in range(outputs)]
    inside = np.pad(np.ones((size, size), np.int64), 1)
    for p in range(outputs):
        for q in range(outputs):
            window = inside[p * stride : p * stride + 3, q * stride : q * stride + 3]
            row = of_output[p] * len(firsts) + of_output[q]
            expected = -113 * np.einsum("rs,kcrs->k", window, weight.astype(np.int64))
            np.testing.assert_array_equal(table[row], expected)


@pytest.mark.parametrize(
    ("code", "zero", "terms"), [("uint8", 0, 65_793), ("int8", 0, 131_071), ("int8", -100, 73_908)]
)
def test_sums_that_int32_does_not_hold_are_refused(code: str, zero: int, terms: int) -> None:
    """The last length that is taken, and the first that is not."""
    for depth in (terms, terms + 1):
        net = Net({"x": (1, depth)}, types={"x": DTYPES[code]})
        numbers = [net.const(0.1), net.const(zero, code)]
        weight = net.const(np.ones((depth, 16)), np.int8)
        values = net.node("DequantizeLinear", weight, net.const(0.1))
        graph = import_model(
            net.model(net.node("MatMul", net.node("DequantizeLinear", "x", *numbers), values))
        )
        infer(graph)
        (found,) = pattern.anchor_pattern(OPS["quantized_gemm"], "MatMul")
        node = next(node for node in graph.nodes if node.op == "MatMul")
        match = found.match(node)
        if depth == terms:
            assert isinstance(match, tuple)
        else:
            assert isinstance(match, Refusal)
            assert f"{terms:,} of them" in match.reason


def _conv_op() -> FusedOp:
    return OPS["quantized_conv"]


@pytest.mark.parametrize("precision", ["keep", "fp16"])
def test_the_reason_is_that_of_codes_whatever_the_precision(precision: str) -> None:
    """Products that stay are computed in 16 bits, between Casts."""
    model = stored.graph("mlp.ort.qdq.u8u8.tensor")
    report = optimize(
        model, library=False, verify=False, archs=("sm_90a",), fuse="all", precision=precision
    )
    reasons = {each.reason for each in report.refusals if each.op in _PRODUCTS}
    assert reasons == {"its quantized weight has zero points, for which inputs have to be added up"}


def test_values_of_codes_that_a_model_converts_are_refused() -> None:
    net = Net({"x": (4, 16)}, types={"x": TensorProto.INT8})
    values = net.node("DequantizeLinear", "x", net.const(0.1))
    weight = net.node("DequantizeLinear", net.const(np.ones((16, 16)), np.int8), net.const(0.1))
    halves = (net.node("Cast", each, to=TensorProto.FLOAT16) for each in (values, weight))
    model = net.model(net.node("MatMul", *halves))
    report = optimize(model, library=False, archs=("sm_90a",), fuse="all", precision="keep")
    (reason,) = (each.reason for each in report.refusals if each.op == "MatMul")
    assert reason == "values of its codes are converted to another type"


@pytest.mark.parametrize("scale", [0.0, -0.03, 1e-40, np.nan])
@pytest.mark.parametrize("place", ["x", "y", "pair"])
def test_scales_without_a_reciprocal_are_refused(place: str, scale: float, tmp_path: Path) -> None:
    """Kernels multiply by it, and the library takes no node whose x has another scale."""
    scales = dict.fromkeys(("x", "y", "pair"), 0.03) | {place: scale}
    net = Net({"x": (4, 16)}, types={"x": TensorProto.INT8})
    zero = net.const(0, np.int8)
    values = net.node("DequantizeLinear", "x", net.const(scales["x"]), zero)
    codes = net.const(net.rng.integers(-127, 128, (16, 16)), np.int8)
    y = net.node("MatMul", values, net.node("DequantizeLinear", codes, net.const(0.002)))
    numbers = net.const(scales["pair"]), zero
    y = net.node("DequantizeLinear", net.node("QuantizeLinear", y, *numbers), *numbers)
    y = net.node("QuantizeLinear", net.node("Relu", y), net.const(scales["y"]), zero)
    model, out = net.model(y), tmp_path / "out.onnx"
    report = optimize(
        model, out, library=False, verify=False, archs=("sm_90a",), fuse="all", precision="keep"
    )
    reasons = [each.reason for each in report.refusals]
    assert any("its scale is not positive" in reason for reason in reasons), reasons
    (expected,), (found,) = _outputs(model), _outputs(onnx.load(out))
    np.testing.assert_array_equal(found, expected)
