"""Faults planted in function bodies and nodes: verification on the CPU finds each of them, by
segment, by node or both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import FunctionProto, ModelProto, NodeProto, helper, numpy_helper

from onnxbolt.graph.importer import load_model
from onnxbolt.pipeline import optimize
from onnxbolt.verify import verify
from onnxbolt.verify.elementwise import same_bits
from onnxbolt.verify.nodes import misstated
from onnxbolt.verify.session import CPU
from tests.support import Net

Plant = Callable[[ModelProto], None]


def subject() -> ModelProto:
    """Most forms that fused nodes have: chains of steps, a slice of a Concat, poolings, products
    of rows, a border, a depthwise one."""
    net = Net({"x": (1, 3, 128, 128)})
    a = net.node("HardSwish", net.conv("x", 3, 16, 3, pads=[1, 1, 1, 1]))
    left = net.node("Relu", net.conv(a, 16, 16, 1))
    right = net.node("Sigmoid", net.conv(a, 16, 24, 3, pads=[1, 1, 1, 1]))
    joined = net.conv(net.node("Concat", left, right, axis=1), 40, 16, 1)
    pooled = net.node(
        "MaxPool", net.node("Relu", net.node("Add", joined, a)), kernel_shape=[2, 2], strides=[2, 2]
    )
    deep = net.node("Relu", net.conv(pooled, 16, 16, 3, pads=[1, 0, 1, 0], group=16))
    rows = net.node("Flatten", net.node("GlobalAveragePool", deep))
    halves = net.node("Mul", rows, net.const(0.5))
    gelu = net.node("Mul", net.linear(halves, 16, 32), net.const(1.0))
    inner = net.node("Erf", net.node("Div", gelu, net.const(np.sqrt(2.0))))
    return net.model(
        net.linear(
            net.node(
                "Mul", net.node("Mul", gelu, net.node("Add", inner, net.const(1.0))), net.const(0.5)
            ),
            32,
            8,
        )
    )


@pytest.fixture(scope="module")
def source() -> ModelProto:
    return subject()


@pytest.fixture(scope="module", params=["fp16", "bf16", "keep"])
def optimized(
    request: pytest.FixtureRequest, source: ModelProto, tmp_path_factory: pytest.TempPathFactory
) -> ModelProto:
    path = tmp_path_factory.mktemp("faults") / "out.onnx"
    optimize(source, path, precision=request.param, fuse="all", library=False, verify=False)
    return load_model(path)


def function(model: ModelProto, *words: str) -> FunctionProto:
    return next(f for f in model.functions if all(word in f.name for word in words))


def body_node(f: FunctionProto, op: str) -> NodeProto:
    return next(node for node in f.node if node.op_type == op)


def attribute(node: NodeProto, name: str) -> onnx.AttributeProto:
    return next(a for a in node.attribute if a.name == name)


def caller(model: ModelProto, f: FunctionProto) -> NodeProto:
    return next(node for node in model.graph.node if node.op_type == f.name)


def step(model: ModelProto) -> None:
    body_node(function(model, "FusedConv", "Relu"), "Relu").op_type = "Abs"


def constant(model: ModelProto) -> None:
    node = body_node(function(model, "FusedConv", "HardSwish"), "HardSigmoid")
    attribute(node, "alpha").f = 0.2


def small_constant(model: ModelProto) -> None:
    """The 0.5 of GELU becomes 0.55."""
    f = function(model, "Gelu")
    node = next(
        node
        for node in reversed(f.node)
        if node.op_type == "Constant" and attribute(node, "value").t.data_type in (1, 10)
    )
    value = numpy_helper.to_array(attribute(node, "value").t)
    attribute(node, "value").t.CopyFrom(numpy_helper.from_array((value * 1.1).astype(value.dtype)))


def axis(model: ModelProto) -> None:
    """Height and width change places."""
    node = next(
        node
        for node in reversed(function(model, "MaxPool_nhwc").node)
        if node.op_type == "Transpose"
    )
    attribute(node, "perm").ints[:] = [0, 3, 2, 1]


def padding(model: ModelProto) -> None:
    node = next(
        n
        for n in model.graph.node
        if n.op_type.startswith("FusedConv") and list(attribute(n, "pads").ints) == [1, 0, 1, 0]
    )
    attribute(node, "pads").ints[:] = [0, 0, 2, 0]


def channels(model: ModelProto) -> None:
    """The last two output channels of a weight change places."""
    node = caller(model, function(model, "FusedConv", "HardSwish"))
    tensor = next(t for t in model.graph.initializer if t.name == node.input[1])
    values = numpy_helper.to_array(tensor).copy()
    values[[3, 4]] = values[[4, 3]]
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def multiplied(model: ModelProto, f: FunctionProto, mask: np.ndarray) -> None:
    """The result times a constant, before it is what the function returns."""
    last = next(node for node in f.node if node.output[0] == "y")
    last.output[0] = "right"
    kind = {"f16": np.float16, "bf16": None, "f32": np.float32}[
        next(word for word in f.name.split("_") if word in ("f16", "bf16", "f32"))
    ]
    if kind is None:  # multiplied in fp32
        f.node.append(helper.make_node("Cast", ["right"], ["wide"], to=1))
    value = numpy_helper.from_array(mask.astype(kind or np.float32))
    f.node.append(helper.make_node("Constant", [], ["mask"], value=value))
    f.node.append(
        helper.make_node("Mul", ["right" if kind else "wide", "mask"], ["y" if kind else "product"])
    )
    if kind is None:
        f.node.append(helper.make_node("Cast", ["product"], ["y"], to=16))


def pixel(model: ModelProto) -> None:
    """One of 16,384 is zero, in every channel."""
    mask = np.ones((1, 128, 128, 1))
    mask[0, 77, 3] = 0
    multiplied(model, function(model, "FusedConv", "HardSwish"), mask)


def element(model: ModelProto) -> None:
    """One of 262,144."""
    mask = np.ones((1, 128, 128, 16))
    mask[0, 5, 99, 7] = -2.7
    multiplied(model, function(model, "FusedConv", "HardSwish"), mask)


def in_a_part(model: ModelProto) -> None:
    """A node that writes channels of a Concat computes another function."""
    body_node(function(model, "FusedConv", "Sigmoid", "_into"), "Sigmoid").op_type = "Tanh"


def beside_a_part(model: ModelProto) -> None:
    """It changes a channel that is not its own."""
    f = function(model, "FusedConv", "Sigmoid", "_into")
    mask = np.ones(40)
    mask[2] = 1.5
    multiplied(model, f, mask)


def shifted_part(model: ModelProto) -> None:
    """It writes eight channels further to the left: over what is there, and leaves a gap."""
    around = attribute(caller(model, function(model, "_into")), "around").ints
    around[3], around[7] = around[3] - 8, around[7] + 8


FAULTS = [
    step,
    constant,
    small_constant,
    axis,
    padding,
    channels,
    pixel,
    element,
    in_a_part,
    beside_a_part,
    shifted_part,
]


def test_without_faults_it_passes(source: ModelProto, optimized: ModelProto) -> None:
    result = verify(source, optimized, providers=[CPU])
    assert result.passed, result.text()
    assert len(result.at("node")) == sum(
        node.domain == "com.onnxbolt" for node in optimized.graph.node
    )


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_fault_is_found(plant: Plant, source: ModelProto, optimized: ModelProto) -> None:
    broken = ModelProto()
    broken.CopyFrom(optimized)
    plant(broken)
    found = verify(source, broken, providers=[CPU]).failures
    assert {row.level for row in found} & {"segment", "node"}


@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
def test_faults_are_found_where_rounding_alone_decides_the_outputs(
    precision: str, tmp_path: Path
) -> None:
    """Sines of sines: any rounding changes every output, so that the whole model is not judged,
    except where not a bit differs, as in fp32."""
    net = Net({"x": (1, 8, 8, 8)})
    y = net.node("Relu", net.conv("x", 8, 16, 3, pads=[1, 1, 1, 1]))
    y = net.conv(net.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]), 16, 16)
    for _ in range(3):
        y = net.node("Sin", net.node("Mul", y, net.const(200.0)))
    source, out = net.model(y), tmp_path / "out.onnx"
    optimize(source, out, precision=precision, fuse="all", library=False, verify=False)
    right = load_model(out)
    result = verify(source, right, providers=[CPU])
    assert result.passed
    assert all(row.unjudged or not row.error for row in result.at("model"))
    for name in ("Relu", "MaxPool_nhwc"):
        broken = ModelProto()
        broken.CopyFrom(right)
        f = function(broken, name)
        last = next(node for node in f.node if "y" in node.output)
        last.output[0] = "right"
        order = numpy_helper.from_array(np.array([1, 0, *range(2, 16)]))
        f.node.append(helper.make_node("Constant", [], ["order"], value=order))
        f.node.append(helper.make_node("Gather", ["right", "order"], ["y"], axis=-1))
        found = verify(source, broken, providers=[CPU]).failures
        assert {row.level for row in found} & {"segment", "node"}, name


@pytest.mark.parametrize("kind", ["NchwToNhwc", "NhwcToNchw"])
def test_padding_that_is_not_the_tensor_s(kind: str, tmp_path: Path) -> None:
    """Kernels read it of the attribute, function bodies have it of their own."""
    net = Net({"x": (1, 3, 8, 8)})
    source = net.model(net.node("Relu", net.conv("x", 3, 13)))
    optimize(
        source, tmp_path / "out.onnx", precision="keep", fuse="all", library=False, verify=False
    )
    model = load_model(tmp_path / "out.onnx")
    node = next(node for node in model.graph.node if node.op_type.startswith(kind))
    right = attribute(node, "padding").i
    assert right > 0
    attribute(node, "padding").i = right + 4
    reasons = [row.reason for row in verify(source, model, providers=[CPU]).failures]
    channels, own = (4, 3) if kind == "NchwToNhwc" else (16, 13)
    assert reasons == [
        f"attribute padding is {right + 4}, but {channels} channels are stored for {own} real ones"
    ]


@pytest.mark.parametrize(
    ("op", "attributes", "shapes", "right"),
    [
        (
            "FusedConv_Bias_Store_CastF32_f16_pad3_to_nchw",
            {},
            {"y": (1, 13, 8, 8), "z": (1, 8, 8, 16)},
            3,
        ),
        (
            "FusedConv_Bias_Store_Gemm_Bias_f16_to_nchw",
            {},
            {"y": (1, 40, 8, 8), "z": (1, 8, 8, 16)},
            None,
        ),
        (
            "NchwToNhwc_f16_pad3_part",
            {"around": [0, 0, 0, 8, 0, 0, 0, 4]},
            {"x": (1, 13, 8, 8), "y": (1, 8, 8, 28)},
            3,
        ),
        (
            "NhwcToNchw_f16_sliced",
            {"channels": [8, 24]},
            {"x": (1, 8, 8, 32), "y": (1, 16, 8, 8)},
            0,
        ),
        ("FusedConv_Bias_f16", {}, {"x": (1, 8, 8, 32), "y": (1, 8, 8, 16)}, None),
    ],
)
def test_what_padding_has_to_be(
    op: str, attributes: dict[str, Any], shapes: dict[str, tuple[int, ...]], right: int | None
) -> None:
    outputs = ["y", "z"] if "z" in shapes else ["y"]
    refused = [
        told
        for told in range(8)
        if misstated(helper.make_node(op, ["x"], outputs, padding=told, **attributes), shapes)
    ]
    assert refused == [told for told in range(8) if right is not None and told != right]


@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
def test_a_zero_that_loses_its_sign_is_found(precision: str, tmp_path: Path) -> None:
    """HardSwish makes -0 of -4. The body of what writes beside it adds -0 to that; to add 0
    would be a fault."""
    net = Net({"x": (1, 8, 4, 4)})
    left, right = (net.node(op, net.conv("x", 8, 8)) for op in ("HardSwish", "Sigmoid"))
    source = net.model(net.conv(net.node("Concat", left, right, axis=1), 16, 8))
    np.savez(
        tmp_path / "x.npz",
        x=np.float32(-50) * np.random.default_rng(0).random((1, 8, 4, 4), np.float32),
    )
    optimize(
        source, tmp_path / "out.onnx", precision=precision, fuse="all", library=False, verify=False
    )
    model = load_model(tmp_path / "out.onnx")
    assert verify(source, model, inputs=tmp_path / "x.npz", providers=[CPU]).passed
    del body_node(function(model, "Sigmoid", "_into"), "Pad").input[2]
    reasons = [
        row.reason
        for row in verify(source, model, inputs=tmp_path / "x.npz", providers=[CPU]).failures
    ]
    assert reasons == ["it changed channels that other nodes write"]


def test_bits_of_kernels_are_equal_and_nan_of_bodies_is_any() -> None:
    quiet, other = (np.array([bits], np.uint16).view(np.float16) for bits in (0x7E00, 0xFE01))
    assert same_bits(quiet, other, any_nan=True)
    assert not same_bits(quiet, other, any_nan=False)
    for any_nan in (False, True):
        assert not same_bits(np.array([0.0], np.float16), np.array([-0.0], np.float16), any_nan)
        assert not same_bits(quiet, np.array([1], np.float16), any_nan)
        assert same_bits(quiet, quiet, any_nan)


def test_bits_of_bfloat16_are_those_of_its_float32() -> None:
    values = np.array([1.5, -0.0, np.inf, 2.0**-130], np.float32)
    assert same_bits(values, values.astype(ml_dtypes.bfloat16), any_nan=False)
    assert not same_bits(
        np.array([0.0], np.float32), np.array([-0.0], ml_dtypes.bfloat16), any_nan=False
    )
    assert not same_bits(
        np.array([1 + 2.0**-9], np.float32), np.array([1.0], ml_dtypes.bfloat16), any_nan=False
    )
