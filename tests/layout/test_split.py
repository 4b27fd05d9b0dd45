"""Split and Slice: what reads channels where they lie, what is copied, and what stays as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.layout.test_layout import attribute, layout_changes
from tests.support import Net, assert_same, ops

SAME: dict[str, Any] = {"pads": [1, 1, 1, 1]}


def channels(model: onnx.ModelProto) -> list[object]:
    """The channels that each node reads, for nodes that read a part of a tensor."""
    return [found for node in model.graph.node if (found := attribute(node, "channels"))]


def split(net: Net, x: str, *widths: int, axis: int = 1) -> list[str]:
    return net.several("Split", x, net.const(widths, np.int64), outputs=len(widths), axis=axis)


def test_convolutions_read_their_channels() -> None:
    net = Net({"x": ("N", 8, 9, 9)})
    a, b = split(net, net.conv("x", 8, 24), 8, 16)
    optimized = assert_same(net.model(net.conv(a, 8, 8, 3), net.conv(b, 16, 8)))
    assert [
        op for op in ops(optimized) if not op.startswith(("FusedConv", "NchwToNhwc", "NhwcToNchw"))
    ] == []
    assert channels(optimized) == [[0, 8], [8, 24]]


@pytest.mark.parametrize("residual", [False, True])
def test_a_cross_stage_block_copies_nothing_but_its_residual(residual: bool) -> None:
    net = Net({"x": (2, 8, 9, 9)})
    first = net.node("Relu", net.conv("x", 8, 32))
    a, b = split(net, first, 16, 16)
    c = net.node("Relu", net.conv(b, 16, 16, 3, **SAME))
    c = net.node("Add", b, c) if residual else c
    optimized = assert_same(net.model(net.conv(net.node("Concat", a, b, c, axis=1), 48, 8)))
    assert layout_changes(optimized) == 2
    assert "Concat" not in ops(optimized)
    assert "Split" not in ops(optimized)
    assert sum(op.startswith("FusedElementwise") for op in ops(optimized)) == residual


def test_a_split_of_a_split() -> None:
    net = Net({"x": (1, 8, 5, 5)})
    a, b = split(net, net.conv("x", 8, 32), 8, 24)
    c, d = split(net, b, 8, 16)
    optimized = assert_same(net.model(net.conv(a, 8, 8), net.conv(c, 8, 8), net.conv(d, 16, 8)))
    assert channels(optimized) == [[0, 8], [8, 16], [16, 32]]


def test_a_gate_of_half_the_channels() -> None:
    net = Net({"x": (2, 8, 20)})
    whole = net.node("Relu", net.node("Conv", "x", net.normal(16, 8, 3)))  # else it is divided
    a, b = split(net, whole, 8, 8)
    optimized = assert_same(
        net.model(net.node("Conv", net.node("Mul", a, net.node("Sigmoid", b)), net.normal(8, 8, 1)))
    )
    assert layout_changes(optimized) == 2
    assert channels(optimized) == [[0, 8], [8, 16]]


@pytest.mark.parametrize(
    ("start", "end", "step", "found"),
    [
        (8, 16, 1, [[8, 16]]),
        (-16, -8, 1, [[8, 16]]),
        (0, 2**62, 1, []),
        (-99, 8, 1, [[0, 8]]),
        (0, 16, 2, []),
        (6, 14, 1, []),
        (-1, -9, -1, []),
    ],
)
def test_slices_of_channels(start: int, end: int, step: int, found: list[list[int]]) -> None:
    net = Net({"x": (2, 8, 5, 5)})
    y = net.node(
        "Slice",
        net.conv("x", 8, 24),
        *(net.const([value], np.int64) for value in (start, end, 1, step)),
    )
    width = len(range(24)[slice(start, end, step)])
    assert channels(assert_same(net.model(net.conv(y, width, 8)))) == found


@pytest.mark.parametrize("indices", [np.int64, np.int32])
def test_slices_of_height_and_width_follow(indices: type[np.integer]) -> None:
    net, most = Net({"x": (2, 8, 8, 9)}), np.iinfo(indices).max
    y = net.node(
        "Slice",
        net.conv("x", 8, 6),
        *(net.const(values, indices) for values in ([0, -8], [most, -1], [2, -1], [2, 1])),
    )
    a, b = split(net, y, 3, 1, axis=2)
    optimized = assert_same(net.model(net.conv(a, 6, 8), net.conv(b, 6, 8)))
    assert layout_changes(optimized) == 3
    assert "Slice" in ops(optimized)
    assert "Split" in ops(optimized)


def test_narrow_parts_and_those_that_no_convolution_reads_stay() -> None:
    net = Net({"x": (1, 8, 5, 5)})
    a, b = split(net, net.conv("x", 8, 16), 6, 10)
    c, d = split(net, net.conv("x", 8, 16), 8, 8)
    optimized = assert_same(
        net.model(
            net.conv(a, 6, 8), net.conv(b, 10, 8), net.node("Softmax", c), net.node("Softmax", d)
        )
    )
    assert ops(optimized).count("Split") == 2


def test_parts_that_are_outputs_are_copied() -> None:
    net = Net({"x": (1, 8, 5, 5)})
    a, b = split(net, net.conv("x", 8, 16), 8, 8)
    optimized = assert_same(net.model(a, net.conv(b, 8, 8)))
    assert channels(optimized) == [[0, 8], [8, 16]]


@pytest.mark.parametrize("opset", [9, 11])
def test_parts_of_old_models_are_read_where_they_lie(opset: int) -> None:
    """Bodies that read slices need Constant's value_ints, of opset 12, to which import lifts
    them."""
    net = Net({"x": (1, 8, 5, 5)}, opset=opset)
    a, b = net.several("Split", net.conv("x", 8, 16), outputs=2, axis=1)
    optimized = assert_same(net.model(net.conv(a, 8, 8), net.conv(b, 8, 8)))
    assert "Split" not in ops(optimized)
