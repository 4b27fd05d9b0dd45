"""Depthwise convolutions in channels last: what comes out is stored as what goes in, padding
included."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.layout.test_layout import attribute, layout_changes, weights
from tests.support import Net, assert_same, ops


def _between_convolutions(channels: int, r: int = 3, **attributes: Any) -> onnx.ModelProto:
    net = Net({"x": (2, 8, 11, 10)})
    y = net.node("Relu", net.conv("x", 8, channels))
    y = net.node("HardSwish", net.conv(y, channels, channels, r, group=channels, **attributes))
    return net.model(net.conv(y, channels, 8))


@pytest.mark.parametrize(
    "attributes",
    [
        {"pads": [1, 1, 1, 1]},
        {"pads": [1, 1, 1, 1], "strides": [2, 2]},
        {"pads": [0, 1, 2, 0], "strides": [2, 1]},
        {"pads": [2, 2, 2, 2], "dilations": [2, 2]},
        {},
    ],
)
def test_no_transpose_is_left_around_it(attributes: dict[str, Any]) -> None:
    optimized = assert_same(_between_convolutions(16, **attributes))
    assert layout_changes(optimized) == 2
    assert ops(optimized)[2] == "FusedConv_Bias_HardSwish_f32"
    assert weights(optimized)[1] == [16, 3, 3, 1]
    assert attribute(optimized.graph.node[2], "group") == 16


def test_padding_passes_through() -> None:
    optimized = assert_same(_between_convolutions(13, 5, pads=[2, 2, 2, 2]))
    assert weights(optimized) == [[16, 1, 1, 8], [16, 5, 5, 1], [8, 1, 1, 16]]
    node = optimized.graph.node[2]
    assert (attribute(node, "group"), attribute(node, "channel_map")) == (
        16,
        [*range(13), -1, -1, -1],
    )


def test_padding_at_the_entry_is_part_of_the_conversion() -> None:
    net = Net({"x": (1, 13, 9, 9)})
    optimized = assert_same(net.model(net.conv(net.conv("x", 13, 13, 3, group=13), 13, 8)))
    assert ops(optimized)[0] == "NchwToNhwc_f32_pad3"


def test_padding_that_something_would_have_to_take_away_is_not_made() -> None:
    net = Net({"x": (1, 8, 9, 9)})
    y = net.conv(net.conv("x", 8, 13), 13, 13, 3, group=13)
    optimized = assert_same(net.model(net.conv(y, 13, 8), net.node("Softmax", y, axis=1)))
    assert weights(optimized)[:2] == [[13, 1, 1, 8], [13, 3, 3, 1]]


def test_a_residual_of_the_same_form() -> None:
    net = Net({"x": (1, 8, 9, 9)})
    y = net.conv("x", 8, 12)
    y = net.node("Add", net.conv(y, 12, 12, 3, group=12, pads=[1, 1, 1, 1]), y)
    optimized = assert_same(net.model(net.conv(y, 12, 8)))
    assert "FusedConv_Bias_Add_f32" in ops(optimized)
    assert layout_changes(optimized) == 2


def test_one_dimension() -> None:
    net = Net({"x": (2, 8, 30)})
    y = net.node("Conv", "x", net.normal(8, 1, 3), net.normal(8), pads=[1, 1], group=8)
    optimized = assert_same(net.model(net.node("Conv", y, net.normal(16, 8, 1))))
    assert ops(optimized)[1:3] == ["FusedConv_Bias_f32_1d", "FusedConv_f32_1d"]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_other_types(precision: str) -> None:
    optimized = assert_same(
        _between_convolutions(13, pads=[1, 1, 1, 1]), limit=4e-2, precision=precision
    )
    assert sum(op.startswith("FusedConv") for op in ops(optimized)) == 3


def test_padded_channels_have_no_weight() -> None:
    optimized = assert_same(_between_convolutions(13))
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in optimized.graph.initializer}
    weight = stored[optimized.graph.node[2].input[1]]
    assert not np.any(weight[13:])
    assert np.all(np.any(weight[:13].reshape(13, -1), axis=1))
