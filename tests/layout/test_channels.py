"""Softmax and choices over channels that lie last."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.layout.test_layout import attribute, layout_changes
from tests.support import Net, assert_same, fused, ops, run


def _scores(net: Net, channels: int = 16) -> str:
    """Scores of classes, resized as segmentation networks end."""
    y = net.conv("x", 8, channels, 3, pads=[1, 1, 1, 1])
    return net.node("Resize", y, "", net.const([1, 1, 2, 2]), mode="linear")


def _chosen(op: str, keepdims: int, channels: int = 16) -> onnx.ModelProto:
    net = Net({"x": ("N", 8, "H", "W")})
    return net.model(net.node(op, _scores(net, channels), axis=1, keepdims=keepdims))


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_the_largest_of_channels_needs_no_change_of_layout(op: str, keepdims: int) -> None:
    model = _chosen(op, keepdims)
    optimized = fused(model)
    assert layout_changes(optimized) == 1  # that of the image
    (node,) = (n for n in optimized.graph.node if n.op_type == op)
    assert attribute(node, "axis") == 3
    assert ops(optimized)[-2:] == (
        ["Squeeze", "Unsqueeze"] if keepdims else [ops(optimized)[-2], op]
    )
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 8, 5, 7)).astype(np.float32)}
    (expected,), (got,) = run(model, feeds), run(optimized, feeds)
    assert got.shape == expected.shape
    assert np.mean(got == expected) > 0.99  # sums in another order decide ties


def test_padding_of_channels_is_not_chosen() -> None:
    """Zeros would be larger than all scores below zero."""
    net = Net({"x": (2, 8, 5, 6)})
    y = net.node("Neg", net.node("Abs", _scores(net, 19)))
    model = net.model(net.node("ArgMax", y, axis=1, keepdims=0))
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 8, 5, 6)).astype(np.float32)}
    (expected,), (got,) = run(model, feeds), run(fused(model, "fp16"), feeds)
    assert got.max() < 19
    assert np.mean(got == expected) > 0.97  # rounding decides between neighbours


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [1, -3])
def test_softmax_between_convolutions(op: str, axis: int) -> None:
    net = Net({"x": (2, 8, 5, 6)})
    y = net.node(op, net.conv("x", 8, 16), axis=axis)
    optimized = assert_same(net.model(net.conv(y, 16, 8)))
    assert layout_changes(optimized) == 2
    (node,) = (n for n in optimized.graph.node if n.op_type == op)
    assert attribute(node, "axis") == 3


def test_softmax_along_another_axis_stays() -> None:
    net = Net({"x": (2, 8, 5, 6)})
    y = net.node("Softmax", net.conv("x", 8, 16), axis=3)
    optimized = assert_same(net.model(net.conv(y, 16, 8)))
    assert layout_changes(optimized) == 4


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_at_the_end_is_in_front_of_the_change_of_layout(op: str) -> None:
    net = Net({"x": ("N", 8, "H", "W")})
    optimized = assert_same(net.model(net.node(op, _scores(net), axis=1)))
    assert ops(optimized)[-2:] == [op, "NhwcToNchw_f32"]
    (node,) = (n for n in optimized.graph.node if n.op_type == op)
    assert attribute(node, "axis") == 3
