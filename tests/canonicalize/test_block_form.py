"""Blocks of pixels that become channels, folded into the convolution behind them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from tests.support import Net, assert_same, prepare

SAME = [1, 1, 1, 1]
END = 2**63 - 1


def _slices(net: Net, x: str, first: tuple[int, int], block: int, apart: bool = True) -> str:
    """Every pixel at the same place of a block."""

    def cut(x: str, axes: Sequence[int]) -> str:
        starts = [first[axis - 2] for axis in axes]
        given = (starts, [END] * len(axes), axes, [block] * len(axes))
        return net.node("Slice", x, *(net.const(values, np.int64) for values in given))

    return cut(cut(x, [2]), [3]) if apart else cut(x, [2, 3])


def _focus(net: Net, order: Sequence[tuple[int, int]], block: int = 2, apart: bool = True) -> str:
    return net.node("Concat", *(_slices(net, "x", at, block, apart) for at in order), axis=1)


def _unshuffle(net: Net, block: int = 2) -> str:
    apart = net.const([2, 3, 8 // block, block, 12 // block, block], np.int64)
    turned = net.node("Transpose", net.node("Reshape", "x", apart), perm=[0, 1, 3, 5, 2, 4])
    return net.node(
        "Reshape", turned, net.const([2, 3 * block**2, 8 // block, 12 // block], np.int64)
    )


def _net(*shape: Any) -> Net:
    return Net({"x": shape or (2, 3, 8, 12)})


def _model(net: Net, y: str, r: int = 3, block: int = 2, **attributes: Any) -> onnx.ModelProto:
    return net.model(net.conv(y, 3 * block**2, 8, r, **attributes))


def _operators(model: onnx.ModelProto) -> list[str]:
    return [node.op for node in prepare(model).nodes]


def _is_folded(model: onnx.ModelProto, *kernel: int) -> None:
    assert_same(model)
    (conv,) = prepare(model).nodes
    assert conv.op == "Conv"
    assert conv.attrs["kernel_shape"] == [*kernel]


@pytest.mark.parametrize(
    "order", [[(0, 0), (1, 0), (0, 1), (1, 1)], [(0, 0), (0, 1), (1, 0), (1, 1)]]
)
@pytest.mark.parametrize("apart", [True, False])
def test_focus(order: Sequence[tuple[int, int]], apart: bool) -> None:
    net = _net()
    _is_folded(_model(net, _focus(net, order, apart=apart), pads=SAME), 6, 6)


@pytest.mark.parametrize("block", [2, 4])
@pytest.mark.parametrize(
    ("r", "attributes"),
    [(3, {"pads": SAME}), (1, {}), (3, {"strides": [2, 1], "pads": [0, 2, 1, 0]})],
)
def test_space_to_depth_and_pixel_unshuffle(block: int, r: int, attributes: dict[str, Any]) -> None:
    if r == 3 and block == 4 and attributes["pads"] != SAME:
        attributes = {"pads": SAME, "strides": [2, 1]}
    net = _net()
    y = net.node("SpaceToDepth", "x", blocksize=block)
    _is_folded(_model(net, y, r, block, **attributes), block * r, block * r)
    net = _net()
    _is_folded(_model(net, _unshuffle(net, block), r, block, **attributes), block * r, block * r)


def test_sizes_may_be_symbolic() -> None:
    net = _net("N", 3, "H", "W")
    order = [(0, 0), (1, 0), (0, 1), (1, 1)]
    model = _model(net, _focus(net, order), pads=SAME)
    assert _operators(model) == ["Conv"]
    net = _net("N", 3, "H", "W")
    model = _model(net, net.node("SpaceToDepth", "x", blocksize=2))
    assert _operators(model) == ["Conv"]


def test_some_pixels_of_a_block_are_enough() -> None:
    net = _net()
    y = net.node("Concat", *(_slices(net, "x", at, 2) for at in ((0, 0), (1, 1))), axis=1)
    _is_folded(net.model(net.conv(y, 6, 8, 3)), 6, 6)


@pytest.mark.parametrize("order", [[(0, 0), (0, 0)], [(0, 0), (0, 1)], [(1, 1), (1, 1)]])
@pytest.mark.parametrize("sizes", [(7, 12), (8, 12), ("H", 12)])
def test_pixels_of_cut_blocks_and_repeated_ones_stay(
    order: Sequence[tuple[int, int]], sizes: Sequence[int | str]
) -> None:
    """Slices make 4 rows of 7, a convolution with a stride of 2 makes 3."""
    net = _net(2, 3, *sizes)
    y = net.node("Concat", *(_slices(net, "x", at, 2) for at in order), axis=1)
    model = net.model(net.conv(y, 6, 8))
    if "H" not in sizes:
        assert_same(model)
    folded = len({*order}) == 2 and sizes == (8, 12)
    assert ("Concat" in _operators(model)) is not folded


@pytest.mark.parametrize(
    ("shape", "divided", "result", "folded"),
    [
        ((2, 3, 8, 12), (2, 4, 6), (2, 4, 6), True),
        ((2, 3, 4, 16), (2, 4, 4), (2, 4, 4), False),  # 4 x 16 pixels become 8 x 8
        ((2, 3, 8, 8), (4, 2, 4), (4, 2, 4), False),  # images are cut in two
        ((2, 3, 8, 12), (2, 4, 6), (2, 6, 4), False),
        (("N", 3, 8, 12), (0, 4, 6), (0, 4, 6), True),
        (("N", 3, "H", 12), (0, -1, 6), (0, -1, 6), True),
        (("N", 3, "H", 12), (-1, 4, 6), (-1, 4, 6), False),  # as many images as H allows
        (("N", 3, "H", 12), (0, -1, 6), (-1, 4, 6), False),
    ],
)
def test_unshuffles_keep_height_and_width(
    shape: Sequence[Any], divided: Sequence[int], result: Sequence[int], folded: bool
) -> None:
    net, (n, h, w) = _net(*shape), divided
    apart = net.node("Reshape", "x", net.const([n, 3, h, 2, w, 2], np.int64))
    turned = net.node("Transpose", apart, perm=[0, 1, 3, 5, 2, 4])
    y = net.node("Reshape", turned, net.const([result[0], 12, *result[1:]], np.int64))
    model = _model(net, y, 1)
    if shape[0] != "N":
        assert_same(model)
    assert (_operators(model) == ["Conv"]) is folded


def test_other_slices_stay() -> None:
    for order, block, conv in (
        (((0, 0), (1, 0), (0, 1), (1, 1)), 2, {"dilations": [2, 2], "pads": [2] * 4}),
        (((0, 0), (1, 0), (0, 1), (1, 1)), 2, {"group": 4}),
    ):
        net = _net()
        model = _model(net, _focus(net, order, block), **conv)
        assert_same(model)
        assert "Concat" in _operators(model)
    net = _net()  # a strip of the image
    bounds = ([0], [6], [2], [2])
    y = net.node("Slice", "x", *(net.const(values, np.int64) for values in bounds))
    y = net.node("Concat", *itertools.repeat(y, 4), axis=1)
    assert_same(model := net.model(net.conv(y, 12, 8)))
    assert "Slice" in _operators(model)


def test_blocks_that_others_read_stay() -> None:
    net = _net()
    y = net.node("SpaceToDepth", "x", blocksize=2)
    assert_same(model := net.model(net.conv(y, 12, 8), y))
    assert "SpaceToDepth" in _operators(model)
