"""Images that become sequences of tokens and the reverse, and shuffles of channel groups,
without a change of layout."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import Net, assert_same, ops

MOVES = ("Transpose", "NchwToNhwc", "NhwcToNchw")


def moves(net: Net, *outputs: str, precision: str = "fp16") -> list[str]:
    """The nodes that move data in the optimized model, whose outputs are checked."""
    optimized = assert_same(net.model(*outputs), limit=3e-3, precision=precision, arch=90)
    return [op for op in ops(optimized) if op.startswith(MOVES)]


def shape(net: Net, *sizes: int) -> str:
    return net.const(sizes, np.int64)


def layer_norm(net: Net, x: str, c: int) -> str:
    return net.node("LayerNormalization", x, net.normal(c), net.normal(c), axis=-1)


def image_of(net: Net, tokens: str, c: int, h: int, w: int) -> str:
    return net.node(
        "Reshape", net.node("Transpose", tokens, perm=[0, 2, 1]), shape(net, 0, c, h, w)
    )


def tokens_of(net: Net, image: str, c: int) -> str:
    return net.node("Transpose", net.node("Reshape", image, shape(net, 0, c, -1)), perm=[0, 2, 1])


@pytest.mark.parametrize("batch", [2, "N"])
def test_a_convolution_among_tokens_moves_nothing(batch: int | str) -> None:
    """SegFormer's Mix-FFN: a depthwise convolution between two linear layers."""
    net = Net({"x": (batch, 56, 64)})
    y = net.conv(
        image_of(net, net.linear("x", 64, 64), 64, 7, 8), 64, 64, r=3, pads=[1, 1, 1, 1], group=64
    )
    assert moves(net, net.linear(tokens_of(net, y, 64), 64, 32)) == []


@pytest.mark.parametrize("size", [4, 8])
def test_patches_become_tokens_where_they_lie(size: int) -> None:
    """The image alone moves: patches with 8 pixels in a row become rows of a product."""
    net = Net({"x": (2, 3, 32, 48)})
    patches = net.conv("x", 3, 64, r=size, strides=[size, size])
    moved = moves(net, layer_norm(net, tokens_of(net, patches, 64), 64))
    assert [op.partition("_")[0] for op in moved] in ([], ["NchwToNhwc"], ["Transpose"])
    assert ("Transpose" in moved) == (size == 8)


@pytest.mark.parametrize("c", [20, 64])
def test_channels_that_kernels_want_padded_come_back_without_padding(c: int) -> None:
    net = Net({"x": (2, 35, c)})
    y = net.conv(image_of(net, "x", c, 5, 7), c, c, r=3, pads=[1, 1, 1, 1])
    moves(net, layer_norm(net, tokens_of(net, y, c), c))


def test_others_read_sequences_with_their_channels_first() -> None:
    """Attention over channels (XCiT) reads [N, C, L] as ONNX has it."""
    net = Net({"x": (2, 64, 5, 7)})
    y = net.node("Reshape", net.conv("x", 64, 64, r=3, pads=[1, 1, 1, 1]), shape(net, 0, 64, -1))
    turned = net.node("Transpose", y, perm=[0, 2, 1])
    moves(net, net.node("MatMul", net.node("Softmax", y, axis=-1), turned), turned)


def test_a_sequence_that_is_an_output_is_as_the_source_has_it() -> None:
    net = Net({"x": (2, 64, 5, 7)})
    y = net.node("Reshape", net.conv("x", 64, 64, r=3, pads=[1, 1, 1, 1]), shape(net, 0, 64, -1))
    moves(net, y, layer_norm(net, net.node("Transpose", y, perm=[0, 2, 1]), 64))


def shuffle(net: Net, x: str, groups: int, c: int, size: int = 9) -> str:
    split = net.node("Reshape", x, shape(net, 2, groups, c // groups, size, size))
    return net.node(
        "Reshape", net.node("Transpose", split, perm=[0, 2, 1, 3, 4]), shape(net, 2, c, size, size)
    )


@pytest.mark.parametrize("groups", [2, 4])
def test_a_shuffle_is_one_transpose(groups: int) -> None:
    net = Net({"x": (2, 64, 9, 9)})
    y = net.node(
        "Relu", net.conv(shuffle(net, net.node("Relu", net.conv("x", 64, 64)), groups, 64), 64, 64)
    )
    assert sorted(moves(net, net.node("GlobalAveragePool", y)))[1:] == ["Transpose"]


@pytest.mark.parametrize("op", ["Split", "Slice"])
def test_halves_of_a_shuffle_are_read_where_they_lie(op: str) -> None:
    """Two units of ShuffleNet V2."""
    net = Net({"x": (2, 64, 9, 9)})
    y = net.node("Relu", net.conv("x", 64, 64))
    for _ in range(2):
        y = shuffle(net, y, 2, 64)
        kept, other = (
            net.several("Split", y, outputs=2, axis=1)
            if op == "Split"
            else [
                net.node("Slice", y, *(shape(net, at) for at in (first, first + 32, 1)))
                for first in (0, 32)
            ]
        )
        y = net.node("Concat", kept, net.node("Relu", net.conv(other, 32, 32)), axis=1)
    found = moves(net, net.node("GlobalAveragePool", net.node("Relu", net.conv(y, 64, 64))))
    assert found.count("Transpose") == 2
    assert sum(op.startswith("NhwcToNchw") for op in found) == 0


def test_what_stands_within_a_shuffle_may_be_an_output() -> None:
    net = Net({"x": (2, 64, 9, 9)})
    y = shuffle(net, net.node("Relu", net.conv("x", 64, 64)), 2, 64)
    inner = [node.output[0] for node in net.nodes if node.op_type in ("Reshape", "Transpose")]
    moves(net, net.node("Relu", net.conv(y, 64, 64)), *inner[:2])


@pytest.mark.parametrize("perm", [[0, 2, 1, 4, 3], [0, 1, 2, 4, 3]])
def test_other_transposes_between_reshapes_are_as_the_source_has_them(perm: list[int]) -> None:
    net = Net({"x": (2, 64, 9, 9)})
    split = net.node("Reshape", net.node("Relu", net.conv("x", 64, 64)), shape(net, 2, 2, 32, 9, 9))
    joined = net.node("Reshape", net.node("Transpose", split, perm=perm), shape(net, 2, 64, 9, 9))
    moves(net, net.node("Relu", net.conv(joined, 64, 64)))


def test_padding_is_taken_away_by_the_change_of_layout() -> None:
    """A detector's head of six channels, which its kernel writes as eight."""
    net = Net({"x": (1, 64, 16, 16)})
    rows = tokens_of(
        net, net.conv(net.node("Relu", net.conv("x", 64, 64, r=3, pads=[1, 1, 1, 1])), 64, 6), 6
    )
    found = moves(net, net.node("Sigmoid", net.several("Split", rows, outputs=2, axis=2)[0]))
    assert [op for op in found if op.startswith("NhwcToNchw")] == ["NhwcToNchw_f16_pad2"]


@pytest.mark.parametrize("op", ["Split", "Slice"])
def test_halves_that_are_no_whole_accesses_stay_in_nhwc(op: str) -> None:
    """A unit of ShuffleNet V2 x1.0: 58 of 116 channels."""
    net = Net({"x": (2, 64, 9, 9)})
    y = shuffle(
        net,
        net.node("Concat", *(net.node("Relu", net.conv("x", 64, 58)) for _ in range(2)), axis=1),
        2,
        116,
    )
    kept, other = (
        net.several("Split", y, outputs=2, axis=1)
        if op == "Split"
        else [
            net.node("Slice", y, *(shape(net, at) for at in (first, first + 58, 1)))
            for first in (0, 58)
        ]
    )
    joined = net.node("Concat", kept, net.node("Relu", net.conv(other, 58, 58)), axis=1)
    found = moves(net, net.node("GlobalAveragePool", net.node("Relu", net.conv(joined, 116, 64))))
    assert sorted(op for op in found if not op.startswith("NchwToNhwc_CastF16")) == ["Transpose"]
