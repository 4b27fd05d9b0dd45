"""Channels moved to pixels, pixels moved to channels, and sampled images, in channels last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from onnxbolt.families import named
from onnxbolt.verify import verify
from onnxbolt.verify.session import CPU
from tests.layout.test_layout import layout_changes
from tests.support import Net, assert_same, feeds_of, fused, ops, planned, run


@pytest.fixture(autouse=True)
def _switched_on() -> Iterator[None]:
    with planned(named("pixel_shuffle")), planned(named("grid_sample")):
        yield


def _super_resolution(mode: str, channels: int, block: int = 2) -> onnx.ModelProto:
    """A convolution, its pixels, an activation, another convolution."""
    net = Net({"x": (2, 8, 6, 7)})
    y = net.conv("x", 8, channels * block**2, 3, pads=[1, 1, 1, 1])
    y = net.node("DepthToSpace", y, blocksize=block, mode=mode)
    y = net.node("LeakyRelu", y, alpha=0.2)
    return net.model(net.conv(y, channels, 8))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize(("channels", "block"), [(16, 2), (3, 2), (5, 3), (4, 4), (1, 2)])
def test_depth_to_space(mode: str, channels: int, block: int) -> None:
    optimized = assert_same(_super_resolution(mode, channels, block))
    (shuffle,) = (op for op in ops(optimized) if op.startswith("DepthToSpace"))
    assert shuffle.startswith(f"DepthToSpace_nhwc_{mode.lower()}_LeakyRelu_f32")
    assert layout_changes(optimized) == 2


@pytest.mark.parametrize("channels", [8, 3])
def test_space_to_depth(channels: int) -> None:
    net = Net({"x": (2, 8, 6, 8)})
    y = net.node("Relu", net.conv("x", 8, channels))
    y = net.node("SpaceToDepth", y, blocksize=2)
    pooled = net.node("MaxPool", y, kernel_shape=[1, 1])
    optimized = assert_same(net.model(net.conv(net.node("Add", y, pooled), 4 * channels, 8)))
    assert "SpaceToDepth_nhwc_f32" in {op.removesuffix("_sliced") for op in ops(optimized)}
    assert layout_changes(optimized) == 2


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_other_types(precision: str) -> None:
    assert_same(_super_resolution("CRD", 3), limit=4e-2, precision=precision)


def test_padding_of_channels_stays_unread() -> None:
    optimized = fused(_super_resolution("DCR", 3), "fp16")
    (node,) = (n for n in optimized.graph.node if n.op_type.startswith("DepthToSpace"))
    assert node.op_type.endswith("_sliced")
    channels = next(a for a in node.attribute if a.name == "channels")
    assert list(channels.ints) == [0, 12]


def _warped(mode: str = "bilinear", opset: int = 17, **attributes: Any) -> onnx.ModelProto:
    net = Net({"x": (2, 8, 6, 7), "grid": (2, 5, 4, 2)}, opset=opset)
    y = net.node("GridSample", net.conv("x", 8, 12), "grid", mode=mode, **attributes)
    return net.model(net.conv(y, 12, 8))


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("outside", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_grid_sample(mode: str, outside: str, align_corners: int) -> None:
    model = _warped(mode, padding_mode=outside, align_corners=align_corners)
    optimized = assert_same(model)
    word = "linear" if mode == "bilinear" else mode
    aligned = "_aligned" if align_corners else ""
    assert f"GridSample_nhwc_{word}_{outside}{aligned}_grid_f32_f32" in ops(optimized)
    assert layout_changes(optimized) == 2


def test_conversions_beside_it_belong_to_kernels() -> None:
    """ONNX Runtime's has float32 alone, which the convolution writes."""
    optimized = fused(_warped(), "fp16")
    assert "GridSample_nhwc_linear_zeros_grid_f32_CastF16_f32" in ops(optimized)
    assert "Cast" not in ops(optimized)
    feeds = feeds_of(_warped())
    for got, expected in zip(run(optimized, feeds), run(_warped(), feeds), strict=True):
        assert np.linalg.norm(got - expected) <= 4e-3 * np.linalg.norm(expected)


def test_modes_without_a_kernel_stay() -> None:
    assert "GridSample" in ops(assert_same(_warped("bicubic")))
    assert "GridSample_nhwc_linear_zeros_grid_f32_f32" in ops(assert_same(_warped("linear", 20)))


def test_verification_knows_that_16_bit_slopes_are_rounded() -> None:
    """The pixels in front of the activation are exact, so that no other error hides it."""
    model = _super_resolution("CRD", 16)
    assert verify(model, fused(model, "fp16"), providers=(CPU,)).passed
    wrong = fused(model, "fp16")
    (body,) = (f for f in wrong.functions if f.name.startswith("DepthToSpace"))
    (slope,) = (n for n in body.node if n.op_type == "LeakyRelu")
    slope.attribute[0].f *= 1.05
    assert not verify(model, wrong, providers=(CPU,)).passed
