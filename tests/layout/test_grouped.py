"""Grouped convolutions in channels last: neighbouring groups merged, channels where they are."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

from tests.layout.test_layout import attribute, layout_changes, weights
from tests.support import Net, assert_same, matched, ops


def _between_convolutions(c: int, k: int, groups: int, **attributes: Any) -> onnx.ModelProto:
    net = Net({"x": (2, 8, 11, 10)})
    y = net.node("Relu", net.conv("x", 8, c))
    y = net.node("Relu", net.conv(y, c, k, 3, group=groups, **attributes))
    return net.model(net.conv(y, k, 8))


@pytest.mark.parametrize(
    ("c", "k", "groups", "stored"),
    [
        (128, 128, 32, 2),
        (216, 216, 9, 9),
        (48, 96, 6, 2),
        (48, 24, 2, 1),
        (112, 112, 1, 1),
        (888, 888, 37, 37),
    ],
)
@pytest.mark.parametrize(
    "attributes", [{"pads": [1, 1, 1, 1]}, {"pads": [0, 1, 2, 0], "strides": [2, 1]}]
)
def test_groups_are_merged(
    c: int, k: int, groups: int, stored: int, attributes: dict[str, Any]
) -> None:
    optimized = assert_same(_between_convolutions(c, k, groups, **attributes))
    assert layout_changes(optimized) == 2
    assert ops(optimized)[2] == "FusedConv_Bias_Relu_f32"
    assert weights(optimized)[1] == [k, 3, 3, c // stored]
    assert attribute(optimized.graph.node[2], "group") == stored


def test_padded_channels_before_it_are_taken_away() -> None:
    net = Net({"x": (1, 12, 9, 9)})
    first = net.node("Relu", net.conv("x", 12, 12))
    joined = net.node("Concat", first, net.node("Relu", net.conv(first, 12, 12)), axis=1)
    assert_same(
        net.model(net.conv(net.conv(joined, 24, 32, 3, group=2), 32, 8)),
        precision="fp16",
        limit=4e-2,
    )


def test_a_residual_and_one_dimension() -> None:
    net = Net({"x": (2, 8, 30)})
    y = net.node("Conv", "x", net.normal(96, 8, 1), net.normal(96))
    y = net.node(
        "Add", net.node("Conv", y, net.normal(96, 24, 4), net.normal(96), pads=[2, 1], group=4), y
    )
    optimized = assert_same(net.model(net.node("Conv", y, net.normal(16, 96, 1))))
    assert "FusedConv_Bias_Add_f32_1d" in ops(optimized)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_other_types(precision: str) -> None:
    optimized = assert_same(
        _between_convolutions(128, 128, 32, pads=[1, 1, 1, 1]), limit=4e-2, precision=precision
    )
    assert sum(op.startswith("FusedConv") for op in ops(optimized)) == 3


def test_one_weight_of_two_convolutions_with_other_groups() -> None:
    net = Net({"x": (1, 128, 5, 5), "z": (1, 64, 5, 5)})
    weight = net.normal(128, 4, 1, 1)
    net_outputs = [net.node("Conv", "x", weight, group=32), net.node("Conv", "z", weight, group=16)]
    assert_same(net.model(*net_outputs))


def test_channels_that_are_no_whole_accesses_stay() -> None:
    net = Net({"x": (1, 37 * 3, 6, 6)})
    candidates, refusals = matched(net.model(net.conv("x", 37 * 3, 37 * 3, 3, group=37)))
    assert not candidates
    assert "multiples of 4" in refusals[0].remedy
