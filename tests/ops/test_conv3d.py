"""Convolutions of volumes: which are fused, and that their function bodies answer alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxbolt.families import named
from onnxbolt.forms import CHANNELS_LAST
from onnxbolt.ops.base import Stored
from onnxbolt.problems import Conv3dProblem, ConvProblem
from tests.support import Net, assert_same, matched, ops

FAMILY = named("conv3d_sm90")
SIZES = (2, 16, 5, 6, 7)


def _conv(net: Net, x: str, c: int, k: int, filter_: tuple[int, ...], **attributes: Any) -> str:
    weight = net.normal(k, c // attributes.get("group", 1), *filter_, scale=0.1)
    return net.node("Conv", x, weight, net.normal(k), **attributes)


def _model(shape: tuple[int | str, ...], k: int, *filter_: int, **attributes: Any) -> Any:
    """A convolution with ReLU between two that read one pixel."""
    net, c = Net({"x": shape}), int(shape[1])
    first = net.node("Relu", _conv(net, "x", c, c, (1, 1, 1)))
    y = net.node("Relu", _conv(net, first, c, k, filter_, **attributes))
    return net.model(_conv(net, y, k, 8, (1, 1, 1)))


def _types(model: onnx.ModelProto) -> list[str]:
    return [op for op in ops(model) if op.startswith("FusedConv")]


IMAGES = [
    ((1, 3, 3), {"pads": [0, 1, 1, 0, 1, 1]}),
    ((1, 2, 3), {"strides": [1, 2, 1], "pads": [0, 1, 2, 0, 0, 1]}),
    ((3, 1, 1), {"pads": [1, 0, 0, 1, 0, 0], "strides": [2, 1, 1]}),
    ((1, 1, 1), {"group": 2}),
]


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize(("filter_", "attributes"), IMAGES)
def test_convolutions_of_images_are_fused_for_every_architecture(
    filter_: tuple[int, ...], attributes: dict[str, Any], arch: int
) -> None:
    optimized = assert_same(_model(SIZES, 16, *filter_, **attributes), arch=arch)
    assert _types(optimized) == [
        "FusedConv_Bias_Relu_f32_3d",
        "FusedConv_Bias_Relu_f32_3d",
        "FusedConv_Bias_f32_3d",
    ]


VOLUMES = [
    ((3, 3, 3), {"pads": [1] * 6}),
    ((3, 3, 3), {"pads": [1] * 6, "strides": [2] * 3}),
    ((1, 1, 1), {"strides": [2] * 3}),
    ((2, 3, 1), {"pads": [1, 0, 2, 0, 2, 1], "strides": [1, 2, 3], "dilations": [2, 1, 1]}),
    ((3, 3, 3), {"group": 2}),
    ((3, 3, 3), {"auto_pad": "SAME_UPPER"}),
]


@pytest.mark.parametrize(("filter_", "attributes"), VOLUMES)
def test_volumes(filter_: tuple[int, ...], attributes: dict[str, Any]) -> None:
    optimized = assert_same(_model(SIZES, 16, *filter_, **attributes), arch=90)
    assert _types(optimized)[1] == "FusedConv_Bias_Relu_f32_3d"
    assert ops(optimized).count("Transpose") == 0


def test_16_bits() -> None:
    model = _model(SIZES, 16, 3, 3, 3, pads=[1] * 6)
    assert len(_types(assert_same(model, 4e-2, "fp16", arch=90))) == 3


@pytest.mark.parametrize("opset", [13, 18, 22])
def test_padded_channels_scales_and_residuals(opset: int) -> None:
    net = Net({"x": (2, 5, 5, 6, 7), "z": (2, 16, 5, 6, 7)}, opset=opset)
    other = _conv(net, "z", 16, 16, (1, 1, 1))
    y = _conv(net, "x", 5, 16, (3, 3, 3), pads=[1] * 6)
    y = net.node("Mul", net.node("Sigmoid", y), net.normal(16, 1, 1, 1))
    y = net.node("Relu", net.node("Add", y, other))
    optimized = assert_same(net.model(_conv(net, y, 16, 5, (1, 1, 1))), arch=90)
    assert "FusedConv_Bias_Sigmoid_Scale_Add_Relu_f32_3d" in _types(optimized)


def test_channels_that_a_normalization_leaves_unpadded_are_padded() -> None:
    """Kernels of volumes read whole accesses, and normalizations write three channels."""
    net = Net({"x": (2, 3, 5, 6, 7)})
    y = net.node("InstanceNormalization", "x", net.normal(3), net.normal(3))
    optimized = assert_same(net.model(_conv(net, y, 3, 8, (3, 3, 3))), arch=90)
    assert ops(optimized) == [
        "NchwToNhwc_f32_3d",
        "GroupNorm_f32_3d",
        "Pad",
        "FusedConv_Bias_f32_3d",
        "NhwcToNchw_f32_3d",
    ]
    weights = [tensor for tensor in optimized.graph.initializer if len(tensor.dims) == 5]
    assert [list(tensor.dims) for tensor in weights] == [[8, 3, 3, 3, 4]]


def test_open_sizes() -> None:
    model = _model((2, 16, "d", "h", "w"), 16, 3, 3, 3, pads=[1] * 6)
    assert len(_types(assert_same(model, arch=90))) == 3


def test_slices_of_a_concat_and_of_a_split() -> None:
    """As U-Nets join what comes from below and from the side."""
    net = Net({"x": SIZES})
    both = net.node("Relu", _conv(net, "x", 16, 32, (3, 3, 3), pads=[1] * 6))
    halves = net.several("Split", both, outputs=2, axis=1)
    sides = [net.node("Relu", _conv(net, half, 16, 16, (1, 3, 3))) for half in halves]
    joined = net.node("Concat", *sides, axis=1)
    optimized = assert_same(net.model(_conv(net, joined, 32, 8, (1, 1, 1))), arch=90)
    found = _types(optimized)
    assert len(found) == 4
    assert sum("sliced" in op for op in found) == 2
    assert sum(op.endswith(("_part", "_into")) for op in found) == 2
    assert "Concat" not in ops(optimized)


def test_layouts_of_what_lies_between() -> None:
    """Pads, elementwise operators, reductions and shapes of volumes stay in NDHWC."""
    net = Net({"x": SIZES})
    y = _conv(net, "x", 16, 16, (3, 3, 3), pads=[1] * 6)
    y = net.node("Softsign", net.node("Mul", y, net.normal(16, 1, 1, 1)))
    y = net.node("Pad", y, net.const([0, 0, 1, 0, 2, 0, 0, 0, 1, 0], np.int64), mode="edge")
    mean = net.node("ReduceMax", y, axes=[2, 3, 4], keepdims=1)
    y = net.node("Sub", y, mean)
    y = net.node("Transpose", _conv(net, y, 16, 8, (1, 1, 1)), perm=[0, 2, 3, 4, 1])
    optimized = assert_same(net.model(y), arch=90)
    assert [op for op in ops(optimized) if "Nhwc" in op] == ["NchwToNhwc_f32_3d"]
    assert "Transpose" not in ops(optimized)


@pytest.mark.parametrize("groups", [16, 4])
def test_normalizations_and_what_follows_stay_in_ndhwc(groups: int) -> None:
    """nnU-Net's block, and with groups of channels that of others."""
    net = Net({"x": SIZES})
    y = "x"
    for _ in range(2):
        y = _conv(net, y, 16, 16, (3, 3, 3), pads=[1] * 6)
        if groups < 16:  # as TorchScript's exporter has them
            y = net.node("Reshape", y, net.const([0, groups, -1], np.int64))
        y = net.node("InstanceNormalization", y, net.normal(groups), net.normal(groups))
        if groups < 16:
            y = net.node("Reshape", y, net.const([0, *SIZES[1:]], np.int64))
        y = net.node("LeakyRelu", y, alpha=0.1)
    model = net.model(_conv(net, y, 16, 8, (1, 1, 1)))
    found = [op.rpartition("_")[0] for op in ops(assert_same(model, arch=90))]
    block = ["FusedConv_Bias_f32", "GroupNorm_LeakyRelu_f32_3d"]
    assert found == ["NchwToNhwc_f32", *block, *block, "FusedConv_Bias_f32", "NhwcToNchw_f32"]


@pytest.mark.parametrize(
    ("filter_", "k", "groups", "reason"),
    [
        ((1, 1, 1, 1), 8, 1, "a 4-D convolution stays"),
        ((3, 3, 3), 6, 1, "a convolution of volumes whose pixels are no multiples of 16 bytes"),
        ((3, 3, 3), 8, 8, "a depthwise convolution of volumes stays"),
    ],
)
def test_refusals(filter_: tuple[int, ...], k: int, groups: int, reason: str) -> None:
    net = Net({"x": (1, 8, *[4] * len(filter_))})
    candidates, refusals = matched(net.model(_conv(net, "x", 8, k, filter_, group=groups)))
    assert not candidates
    assert refusals[0].reason.startswith(reason)


def test_problems() -> None:
    """As they are stored: channels padded to whole accesses, slices as images."""
    stored = Stored(CHANNELS_LAST, CHANNELS_LAST)

    def problem(*filter_: int, **attributes: Any) -> Any:
        net = Net({"x": SIZES})
        (candidate,) = matched(net.model(_conv(net, "x", 16, 24, filter_, **attributes)))[0]
        return candidate.anchor.op.problem(candidate, lambda t: list(t.shape), stored)

    slices = problem(1, 3, 3, strides=[1, 2, 2])
    assert isinstance(slices, ConvProblem)
    assert (slices.n, slices.h, slices.w, slices.p, slices.q) == (10, 6, 7, 2, 3)
    columns = problem(3, 1, 1, dilations=[2, 1, 1])
    assert isinstance(columns, ConvProblem)
    assert (columns.n, columns.h, columns.w, columns.p, columns.q) == (2, 5, 42, 1, 42)
    assert (columns.r, columns.s, columns.dilations) == (3, 1, (2, 1))
    volumes = problem(3, 3, 3, pads=[1, 2, 3, 0, 1, 2])
    assert isinstance(volumes, Conv3dProblem)
    assert (volumes.x, volumes.y) == ((5, 6, 7), (4, 7, 10))
    assert volumes.pads == (1, 2, 3, 0, 1, 2)
