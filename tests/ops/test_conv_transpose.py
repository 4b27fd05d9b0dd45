"""Transposed convolutions: which are fused, and that their function bodies answer alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxbolt.forms import CHANNELS_LAST
from onnxbolt.ops.base import Stored
from onnxbolt.ops.conv_transpose.geometry import Axis
from onnxbolt.problems import ConvProblem, ConvTranspose3dProblem, ConvTransposeProblem
from tests.support import Net, assert_same, matched, ops
from tests.volumes import unet


def _node(net: Net, x: str, c: int, k: int, kernel: tuple[int, ...], **attributes: Any) -> str:
    groups = attributes.get("group", 1)
    weight = net.normal(c, k // groups, *kernel, scale=(c * np.prod(kernel)) ** -0.5)
    return net.node("ConvTranspose", x, weight, net.normal(k), **attributes)


def _between(
    shape: tuple[int | str, ...], k: int, kernel: tuple[int, ...], **attributes: Any
) -> onnx.ModelProto:
    """A transposed convolution with ReLU between two convolutions of one pixel."""
    net, rank = Net({"x": shape}), len(kernel)
    c = int(shape[1])
    first = net.node("Relu", net.node("Conv", "x", net.normal(c, c, *[1] * rank, scale=c**-0.5)))
    y = net.node("Relu", _node(net, first, c, k, kernel, **attributes))
    return net.model(net.node("Conv", y, net.normal(8, k, *[1] * rank, scale=k**-0.5)))


def _types(model: onnx.ModelProto) -> list[str]:
    return [op for op in ops(model) if op.startswith("FusedConvTranspose")]


LINES = [
    ((16,), {"strides": [8], "pads": [4, 4]}),
    ((4,), {"strides": [2], "pads": [1, 1]}),
    ((8,), {"strides": [8]}),
    ((3,), {"strides": [2], "pads": [1, 1], "output_padding": [1]}),
    ((11,), {"strides": [5], "pads": [3, 3]}),
    ((5,), {"strides": [4], "pads": [2, 1], "dilations": [2], "output_padding": [2]}),
    ((7,), {"strides": [3], "auto_pad": "SAME_LOWER"}),
]


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize(("kernel", "attributes"), LINES)
def test_lines_are_kernels_of_convolutions(
    kernel: tuple[int, ...], attributes: dict[str, Any], arch: int
) -> None:
    optimized = assert_same(_between((2, 16, 13), 24, kernel, **attributes), arch=arch)
    assert _types(optimized) == ["FusedConvTranspose_Bias_Relu_f32_1d"]


def test_lines_in_16_bits() -> None:
    model = _between((2, 16, 13), 24, (16,), strides=[8], pads=[4, 4])
    assert len(_types(assert_same(model, 4e-2, "fp16"))) == 1


def test_widths_of_images_are_kernels_of_convolutions() -> None:
    model = _between((2, 16, 5, 7), 24, (3, 4), strides=[1, 2], pads=[1, 1, 0, 1])
    optimized = assert_same(model)
    assert _types(optimized) == ["FusedConvTranspose_Bias_Relu_f32"]


def test_a_residual_of_a_line() -> None:
    net = Net({"x": (2, 16, 13), "z": (2, 16, 52)})
    other = net.node("Conv", "z", net.normal(24, 16, 1))
    y = net.node("Add", _node(net, "x", 16, 24, (8,), strides=[4], pads=[2, 2]), other)
    optimized = assert_same(net.model(net.node("Conv", y, net.normal(8, 24, 1))))
    assert _types(optimized) == ["FusedConvTranspose_Bias_Add_f32_1d"]


def test_a_line_is_not_written_into_a_concat() -> None:
    """Its pixels have no gaps between them."""
    net = Net({"x": (2, 16, 13), "z": (2, 16, 26)})
    other = net.node("Relu", net.node("Conv", "z", net.normal(8, 16, 1)))
    y = net.node("Relu", _node(net, "x", 16, 8, (2,), strides=[2]))
    joined = net.node("Concat", y, other, axis=1)
    optimized = assert_same(net.model(net.node("Conv", joined, net.normal(8, 16, 1))))
    assert _types(optimized) == ["FusedConvTranspose_Bias_Relu_f32_1d"]


IMAGES = [
    ((2, 2), {"strides": [2, 2]}),
    ((4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    ((5, 2), {"strides": [3, 2], "pads": [2, 0, 1, 1], "output_padding": [2, 1]}),
    ((2, 3), {"strides": [3, 2], "dilations": [2, 3], "pads": [1, 2, 0, 3]}),
    ((4, 4), {"strides": [2, 2], "group": 2, "pads": [1, 1, 1, 1]}),
    ((4, 4), {"strides": [2, 2], "group": 16, "pads": [1, 1, 1, 1]}),
    ((2, 2), {"strides": [2, 2], "output_shape": [9, 14]}),
]


@pytest.mark.parametrize(("kernel", "attributes"), IMAGES)
def test_images(kernel: tuple[int, ...], attributes: dict[str, Any]) -> None:
    model = _between((2, 16, 5, 7), 16, kernel, **attributes)
    optimized = assert_same(model, arch=90)
    assert _types(optimized) == ["FusedConvTranspose_Bias_Relu_f32"]


def test_bf16_does_not_depend_on_onnxruntime_s_kernels() -> None:
    """ONNX Runtime has no ConvTranspose in bf16, and ONNX defines none before opset 22."""
    model = _between((2, 16, 5, 7), 16, (2, 2), strides=[2, 2])
    optimized = assert_same(model, 4e-2, "bf16", arch=90)
    assert _types(optimized) == ["FusedConvTranspose_Bias_Relu_bf16"]


# slices that make slices of y of their own, with pixels as those of images
VOLUMES = [
    ((2, 2, 2), {"strides": [2, 2, 2]}),
    ((2, 4, 3), {"strides": [2, 2, 2], "pads": [0, 1, 1, 0, 1, 1]}),
    ((3, 1, 2), {"strides": [3, 1, 2]}),
    ((1, 2, 2), {"strides": [2, 2, 2], "output_padding": [1, 0, 0]}),
    ((2, 2, 2), {"strides": [2, 2, 2], "group": 2}),
    ((2, 2, 2), {"strides": [2, 2, 2], "output_shape": [6, 10, 14]}),
    ((2, 1, 1), {"strides": [2, 1, 1]}),
]
SIZES = (2, 16, 3, 5, 7)


@pytest.mark.parametrize(("kernel", "attributes"), VOLUMES)
def test_volumes(kernel: tuple[int, ...], attributes: dict[str, Any]) -> None:
    optimized = assert_same(_between(SIZES, 16, kernel, **attributes), arch=90)
    assert _types(optimized) == ["FusedConvTranspose_Bias_Relu_f32_3d"]
    assert "Transpose" not in ops(optimized)


def test_volumes_in_16_bits_with_padded_channels_and_a_residual() -> None:
    net = Net({"x": (2, 5, 3, 5, 7), "z": (2, 16, 6, 10, 14)})
    other = net.node("Conv", "z", net.normal(16, 16, 1, 1, 1, scale=0.2))
    y = net.node("Add", _node(net, "x", 5, 16, (2, 2, 2), strides=[2] * 3), other)
    model = net.model(net.node("Conv", y, net.normal(8, 16, 1, 1, 1, scale=0.2)))
    optimized = assert_same(model, 4e-2, "fp16", arch=90)
    assert _types(optimized) == ["FusedConvTranspose_Bias_Add_f16_3d"]


def test_a_unet_of_volumes_is_fused_throughout() -> None:
    """Down by MaxPool and by strides, up by transposed convolutions, joined by Concat."""
    optimized = assert_same(unet(), arch=90)
    ordinary = [op for op in ops(optimized) if not op.startswith(("Fused", "GroupNorm"))]
    pooling = "MaxPool_nhwc_f32_3d_sliced"  # its input lies in the Concat's result
    assert ordinary == ["NchwToNhwc_f32_3d", pooling, "NhwcToNchw_f32_3d"]
    assert len(_types(optimized)) == 2


@pytest.mark.parametrize(("kernel", "strides"), [((1, 2, 2), [1, 2, 2]), ((1, 1, 2), [1, 1, 2])])
def test_slices_that_make_one_slice_are_images(kernel: tuple[int, ...], strides: list[int]) -> None:
    optimized = assert_same(_between(SIZES, 16, kernel, strides=strides), arch=90)
    assert _types(optimized) == ["FusedConvTranspose_Bias_Relu_f32_3d"]


def test_the_problem_of_volumes() -> None:
    """Slices are images, of which each makes `slices` of y."""
    net = Net({"x": SIZES})
    model = net.model(_node(net, "x", 16, 24, (2, 2, 2), strides=[2, 2, 2]))
    (candidate,) = matched(model)[0]
    sizes = lambda tensor: list(tensor.shape)  # noqa: E731
    stored = Stored(CHANNELS_LAST, CHANNELS_LAST)
    problem = candidate.anchor.op.problem(candidate, sizes, stored)
    assert isinstance(problem, ConvTranspose3dProblem)
    assert (problem.n, problem.h, problem.w, problem.slices) == (6, 5, 7, 2)
    assert (problem.p, problem.q, problem.rows, problem.columns) == (10, 14, 210, 8 * 24)


def test_lines_with_cut_phases() -> None:
    model = _between((2, 16, 13), 24, (4,), strides=[3])
    assert _types(assert_same(model, arch=90)) == ["FusedConvTranspose_Bias_Relu_f32_1d"]


@pytest.mark.parametrize("opset", [13, 18, 22])
def test_padded_inputs_scales_and_residuals(opset: int) -> None:
    net = Net({"x": (2, 5, 6, 7), "z": (2, 16, 12, 14)}, opset=opset)
    other = net.node("Conv", "z", net.normal(16, 16, 1, 1))
    y = _node(net, "x", 5, 16, (2, 2), strides=[2, 2])
    y = net.node("Mul", net.node("Sigmoid", y), net.normal(16, 1, 1))
    y = net.node("Add", y, other)
    optimized = assert_same(net.model(net.node("Conv", y, net.normal(8, 16, 1, 1))), arch=90)
    assert _types(optimized) == ["FusedConvTranspose_Bias_Sigmoid_Scale_Add_f32"]


@pytest.mark.parametrize("pools", [False, True])
def test_channels_that_a_normalization_leaves_unpadded_are_padded(pools: bool) -> None:
    """Kernels read whole accesses, and normalizations and poolings write three channels."""
    net = Net({"x": (2, 3, 8, 8)})
    y = net.node("InstanceNormalization", "x", net.normal(3), net.normal(3))
    y = net.node("AveragePool", y, kernel_shape=[2, 2]) if pools else y
    model = net.model(_node(net, y, 3, 8, (2, 2), strides=[2, 2]))
    optimized = assert_same(model, arch=90)
    assert _types(optimized) == ["FusedConvTranspose_Bias_f32"]
    assert ops(optimized).count("Pad") == 1


def test_slices_of_a_concat() -> None:
    """As U-Nets join what comes from below and from the side."""
    net = Net({"x": (2, 16, 6, 7), "z": (2, 16, 12, 14)})
    side = net.node("Relu", net.node("Conv", "z", net.normal(16, 16, 1, 1)))
    up = net.node("Relu", _node(net, "x", 16, 16, (2, 2), strides=[2, 2]))
    joined = net.node("Concat", up, side, axis=1)
    optimized = assert_same(net.model(net.node("Conv", joined, net.normal(8, 32, 1, 1))), arch=90)
    (found,) = _types(optimized)
    assert found.endswith(("_part", "_into"))


def test_16_bits() -> None:
    model = _between((2, 16, 5, 7), 24, (4, 4), strides=[2, 2], pads=[1, 1, 1, 1])
    assert len(_types(assert_same(model, 4e-2, "fp16", arch=90))) == 1


@pytest.mark.parametrize(
    ("shape", "kernel", "strides"), [((2, 16, 5, 7), (2, 2), [2, 2]), ((2, 16, 13), (4,), [3])]
)
def test_images_and_cut_lines_are_stored_pixel_by_pixel(
    shape: tuple[int, ...], kernel: tuple[int, ...], strides: list[int]
) -> None:
    net = Net({"x": shape})
    candidates, refusals = matched(net.model(_node(net, "x", 16, 16, kernel, strides=strides)))
    assert not refusals
    problem = candidates[0].anchor.op.problem(candidates[0], lambda t: list(t.shape), None)
    assert isinstance(problem, ConvTransposeProblem)


@pytest.mark.parametrize(
    ("shape", "kernel", "k", "attributes", "reason"),
    [
        ((1, 8, 4, 4, 4, 4), (2, 2, 2, 2), 8, {}, "a 4-D transposed convolution"),
        ((1, 8, 4, 4, 4), (3, 2, 2), 8, {}, "slices of a transposed convolution of volumes"),
        ((1, 8, 4, 4, 4), (2, 2, 2), 8, {"pads": [1, 0, 0, 1, 0, 0]}, "slices of a transposed"),
        ((1, 8, 6, 6), (3, 3), 6, {"pads": [1, 1, 1, 1]}, "pixels of less than 16 bytes"),
        ((1, 6, 6, 6), (2, 2), 8, {"group": 2}, "grouped transposed convolutions"),
        ((1, 8, 6, 6), (2, 2), 8, {"pads": [2, 0, 0, 0]}, "pads that are wider"),
        ((1, 8, "h", 6), (4, 4), 8, {"output_shape": [11, 12]}, "pads that follow from"),
    ],
)
def test_refusals(
    shape: tuple[int | str, ...],
    kernel: tuple[int, ...],
    k: int,
    attributes: dict[str, Any],
    reason: str,
) -> None:
    net = Net({"x": shape})
    attributes = {"strides": [2] * len(kernel), **attributes}
    candidates, refusals = matched(
        net.model(_node(net, "x", int(shape[1]), k, kernel, **attributes))
    )
    assert not candidates
    assert refusals[0].reason.startswith(reason)


def test_the_convolution_of_a_line_has_the_phases_as_channels() -> None:
    net = Net({"x": (2, 16, 100)})
    model = net.model(_node(net, "x", 16, 24, (16,), strides=[8], pads=[4, 4]))
    (candidate,) = matched(model)[0]
    op, sizes = candidate.anchor.op, lambda tensor: list(tensor.shape)
    stored = op.problem(candidate, sizes, Stored(CHANNELS_LAST, CHANNELS_LAST))
    alone = op.problem(candidate, sizes, None)
    assert isinstance(stored, ConvProblem)
    assert isinstance(alone, ConvProblem)
    assert (stored.k, stored.s, stored.q) == (8 * 24, 3, 100)
    assert alone.s == 2  # as many products as cuDNN makes


def test_axes() -> None:
    axis = Axis(stride=8, dilation=1, size=16, pads=(4, 4), padding=0)
    assert (axis.taps, axis.cut, axis.whole) == (2, 4, False)
    assert axis.output(100) == 800
    assert axis.convolution_pads(100) == (1, 1)
