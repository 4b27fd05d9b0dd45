"""Forms: what is padded, where Transposes remain, and that every rule computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxbolt.forms import concatenated, padded_channels, take
from tests.support import Net, assert_same, feeds_of, fused, ops, run


def layout_changes(model: onnx.ModelProto) -> int:
    return sum(
        op == "Transpose" or op.startswith(("NchwToNhwc", "NhwcToNchw")) for op in ops(model)
    )


def attribute(node: onnx.NodeProto, name: str) -> object:
    return next(
        (onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), None
    )


def weights(model: onnx.ModelProto) -> list[list[int]]:
    shapes = {t.name: list(t.dims) for t in model.graph.initializer}
    return [shapes[node.input[1]] for node in model.graph.node if node.op_type.startswith("Fused")]


def test_channel_maps() -> None:
    assert padded_channels(5, 8) == (0, 1, 2, 3, 4, -1, -1, -1)
    assert padded_channels(16, 8) is None
    assert concatenated([((0, 1, -1), 2), (None, 1)]) == (0, 1, -1, 2)
    assert take(np.arange(3.0), (2, -1, 0), 0, 7.0).tolist() == [2, 7, 0]


def test_a_chain_of_convolutions_has_transposes_at_its_ends_alone() -> None:
    net = Net({"x": (2, 8, 9, 9)})
    y = net.node("Relu", net.conv("x", 8, 16, 3, pads=[1, 1, 1, 1]))
    y = net.node("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = net.node("Relu", net.node("Add", net.conv(y, 16, 16), y))
    optimized = assert_same(net.model(net.conv(y, 16, 8, 3)))
    assert layout_changes(optimized) == 2
    assert "MaxPool_nhwc_f32" in ops(optimized)


def test_an_empty_auto_pad_of_pooling_is_none() -> None:
    net = Net({"x": (2, 8, 9, 9)})
    y = net.node(
        "MaxPool",
        net.conv("x", 8, 16),
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        auto_pad="",
    )
    assert "MaxPool_nhwc_f32" in ops(assert_same(net.model(net.conv(y, 16, 8, 3, auto_pad=""))))


def test_odd_channels_between_convolutions_are_padded_once_and_for_all() -> None:
    net = Net({"x": (1, 3, 8, 8)})
    y = net.node("Sigmoid", net.conv("x", 3, 5, 3))
    optimized = assert_same(net.model(net.conv(y, 5, 8)))
    assert weights(optimized) == [[8, 3, 3, 4], [8, 1, 1, 8]]
    assert ops(optimized)[0] == "NchwToNhwc_f32_pad1"
    assert attribute(optimized.graph.node[1], "channel_map") == [0, 1, 2, 3, 4, -1, -1, -1]


def test_padding_that_something_else_would_have_to_take_away_is_not_made() -> None:
    net = Net({"x": (1, 8, 8, 8)})
    y = net.conv("x", 8, 5)
    optimized = assert_same(
        net.model(net.conv(y, 5, 8), net.node("Softmax", net.node("Abs", y), axis=1))
    )
    assert weights(optimized)[0] == [5, 1, 1, 8]


def test_a_result_stays_padded_where_the_change_of_layout_leaves_the_padding_behind() -> None:
    net = Net({"x": (1, 8, 8, 8)})
    y = net.conv("x", 8, 5)
    optimized = assert_same(net.model(y, net.conv(y, 5, 8), net.node("Softmax", y, axis=1)))
    assert weights(optimized)[:2] == [[8, 1, 1, 8], [8, 1, 1, 8]]
    assert [op for op in ops(optimized) if op.startswith("NhwcToNchw")] == [
        "NhwcToNchw_f32_pad3",
        "NhwcToNchw_f32",
    ]


def test_concat_joins_channel_maps() -> None:
    net = Net({"x": (1, 8, 6, 6)})
    parts = [net.conv("x", 8, k) for k in (5, 12, 8)]
    optimized = assert_same(net.model(net.conv(net.node("Concat", *parts, axis=1), 25, 8)))
    assert weights(optimized)[-1] == [8, 1, 1, 28]  # 5 padded to 8, and 12, and 8
    assert layout_changes(optimized) == 2


def test_flatten_permutes_the_weights_of_the_gemm_behind_it() -> None:
    net = Net({"x": (2, 8, 4, 4)})
    y = net.node("Flatten", net.conv("x", 8, 5))
    optimized = assert_same(net.model(net.linear(y, 80, 10)))
    assert layout_changes(optimized) == 1


def test_global_pooling_and_flatten_need_no_transpose() -> None:
    for pool in ({"op": "GlobalAveragePool"}, {"op": "ReduceMean", "axes": [2, 3], "keepdims": 1}):
        net = Net({"x": (2, 8, 5, 5)})
        attributes: dict[str, Any] = {k: v for k, v in pool.items() if k != "op"}
        y = net.node("Flatten", net.node(str(pool["op"]), net.conv("x", 8, 12), **attributes))
        optimized = assert_same(net.model(net.linear(y, 12, 10)))
        assert layout_changes(optimized) == 1
        assert "GlobalAveragePool_nhwc_f32" in ops(optimized)


def test_squeeze_and_excite_stays_in_channels_last() -> None:
    net = Net({"x": (2, 8, 5, 5)})
    y = net.conv("x", 8, 12)
    gate = net.node(
        "HardSigmoid",
        net.conv(net.node("Relu", net.conv(net.node("GlobalAveragePool", y), 12, 4)), 4, 12),
    )
    optimized = assert_same(net.model(net.conv(net.node("Mul", y, gate), 12, 8)))
    assert layout_changes(optimized) == 2


@pytest.mark.parametrize("op", ["Relu", "Exp", "Abs", "Softplus", "Erf"])
def test_unary_ops_follow(op: str) -> None:
    net = Net({"x": (1, 8, 6, 6)})
    y = net.conv("x", 8, 6)
    optimized = assert_same(net.model(net.conv(net.node(op, net.node("Neg", y)), 6, 8)))
    assert layout_changes(optimized) == 2


def test_padded_channels_make_no_nan() -> None:
    """The six real values are 2 - sigmoid(x); two padded channels would have 0 - 0.5, whose
    root, NaN, no zero weight removes."""
    net = Net({"x": (1, 8, 5, 5)})
    y = net.node("Sigmoid", net.conv("x", 8, 6))
    y = net.node("Sqrt", net.node("Sub", net.const(np.full((1, 6, 1, 1), 2.0)), y))
    assert_same(net.model(net.conv(y, 6, 8)))


@pytest.mark.parametrize("shape", [(), (6, 1, 1), (1, 6, 1, 1), (5, 5), (1, 6, 5, 5)])
def test_constants_are_stored_to_fit(shape: tuple[int, ...]) -> None:
    net = Net({"x": (1, 8, 5, 5)})
    y = net.node("Neg", net.conv("x", 8, 6))
    optimized = assert_same(
        net.model(net.conv(net.node("Div", y, net.const(net.rng.uniform(1, 2, shape))), 6, 8))
    )
    assert layout_changes(optimized) == 2


def test_pad_resize_reduce_and_batchnorm_follow() -> None:
    net = Net({"x": (1, 8, 5, 5)})
    y = net.node("Relu", net.batchnorm(net.node("Abs", net.conv("x", 8, 6)), 6))
    y = net.node("Pad", y, net.const([0, 0, 1, 2, 0, 0, 3, 0], np.int64))
    y = net.node(
        "Resize",
        y,
        "",
        net.const([1, 1, 2, 2]),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    y = net.node("Add", y, net.node("ReduceMax", y, axes=[2], keepdims=1))
    optimized = assert_same(net.model(net.conv(y, 6, 8)))
    assert layout_changes(optimized) == 2


@pytest.mark.parametrize("op", ["GlobalMaxPool", "ReduceProd", "ReduceSumSquare"])
@pytest.mark.parametrize("opset", [17, 18])
def test_reductions_of_images_of_any_size(op: str, opset: int) -> None:
    """The largest value of each channel, as channel attention has it, and other reductions."""
    net = Net({"x": (2, 16, "h", "w")}, opset=opset)
    image = net.node("Sigmoid", net.conv("x", 16, 16))
    if op == "GlobalMaxPool":
        most = net.node(op, image)
    elif opset < 18:
        most = net.node(op, image, axes=[1])
    else:
        most = net.node(op, image, net.const([1], np.int64))
    optimized = assert_same(net.model(net.conv(net.node("Div", image, most), 16, 8)))
    assert layout_changes(optimized) == 2
    assert "GlobalMaxPool" not in ops(optimized)


@pytest.mark.parametrize("sizes", [False, True])
def test_resize_keeps_the_inputs_that_old_opsets_require(sizes: bool) -> None:
    net = Net({"x": (1, 8, 6, 6)}, opset=11)
    nothing, to = (
        net.const([]),
        (net.const([1, 8, 12, 12], np.int64) if sizes else net.const([1, 1, 2, 2])),
    )
    y = net.node(
        "Resize", net.conv("x", 8, 8), nothing, *([nothing, to] if sizes else [to]), mode="nearest"
    )
    assert layout_changes(assert_same(net.model(net.conv(y, 8, 8)))) == 2


def test_a_transpose_behind_a_convolution_vanishes() -> None:
    net = Net({"x": (1, 8, 5, 5)})
    y = net.node("Transpose", net.conv("x", 8, 8), perm=[0, 2, 3, 1])
    assert layout_changes(assert_same(net.model(net.node("Softmax", y)))) == 1


# six have to be padded, which a change of layout does
@pytest.mark.parametrize(("channels", "changes"), [(8, 1), (6, 3)])
def test_a_transpose_in_front_of_a_convolution_vanishes(channels: int, changes: int) -> None:
    net = Net({"x": (1, 5, 5, channels)})
    y = net.node("Transpose", "x", perm=[0, 3, 1, 2])
    assert layout_changes(assert_same(net.model(net.conv(y, channels, 8)))) == changes


def test_a_branch_of_products_joins_convolutions_without_a_change_of_layout() -> None:
    net = Net({"x": (1, 8, 5, 5)})
    y = net.conv("x", 8, 16, 3)
    rows = net.node(
        "LayerNormalization", net.node("Transpose", y, perm=[0, 2, 3, 1]), net.normal(16)
    )
    back = net.node("Transpose", net.linear(rows, 16, 16), perm=[0, 3, 1, 2])
    optimized = assert_same(net.model(net.conv(net.node("Add", back, y), 16, 8)))
    assert layout_changes(optimized) == 2


def test_a_branch_whose_sum_with_a_convolution_leaves_nhwc_needs_no_conversion() -> None:
    net = Net({"x": (1, 8, 5, 5)})
    y = net.conv("x", 8, 16, 3)
    rows = net.node("Softmax", net.node("Transpose", y, perm=[0, 2, 3, 1]))
    back = net.node("Transpose", rows, perm=[0, 3, 1, 2])
    optimized = assert_same(
        net.model(
            net.node("Softmax", net.node("Transpose", net.node("Add", back, y), perm=[0, 2, 3, 1]))
        )
    )
    assert layout_changes(optimized) == 1


def test_a_transpose_of_sequences_in_front_of_a_convolution_vanishes() -> None:
    net = Net({"x": ("N", 20, 8)})
    y = net.node("Conv", net.node("Transpose", "x", perm=[0, 2, 1]), net.normal(16, 8, 3))
    assert layout_changes(assert_same(net.model(net.node("Transpose", y, perm=[0, 2, 1])))) == 0


def test_a_transpose_that_no_convolution_follows_stays() -> None:
    net = Net({"x": (1, 5, 5, 8)})
    optimized = assert_same(
        net.model(
            net.node(
                "Softmax", net.node("Relu", net.node("Transpose", "x", perm=[0, 3, 1, 2])), axis=1
            )
        )
    )
    assert ops(optimized) == ["Transpose", "Relu", "Softmax"]


def test_a_normalization_of_channels_stays_in_channels_last() -> None:
    net = Net({"x": (1, 8, 5, 5)})
    x = net.conv("x", 8, 16, 3)
    d = net.node("Sub", x, net.node("ReduceMean", x, axes=[1]))
    variance = net.node("ReduceMean", net.node("Mul", d, d), axes=[-3])
    y = net.node("Div", d, net.node("Sqrt", net.node("Add", variance, net.const(1e-6))))
    assert layout_changes(assert_same(net.model(net.conv(y, 16, 8)))) == 2


def test_means_of_images_need_no_transpose() -> None:
    net = Net({"x": (2, 8, 5, 5)})
    y = net.node("ReduceMean", net.node("Relu", net.conv("x", 8, 12)), axes=[2, 3], keepdims=0)
    optimized = assert_same(net.model(net.linear(y, 12, 4)))
    assert [op for op in ops(optimized) if not op.startswith("Fused")] == [
        "NchwToNhwc_f32",
        "GlobalAveragePool_nhwc_f32",
        "Reshape",
    ]


@pytest.mark.parametrize("opset", [11, 13])
def test_one_row_of_pixels_stays_in_channels_last(opset: int) -> None:
    net = Net({"x": (1, 8, 3, 9)}, opset=opset)
    y = net.conv("x", 8, 12, 3)
    y = (
        net.node("Squeeze", y, net.const([2], np.int64))
        if opset > 12
        else net.node("Squeeze", y, axes=[-2])
    )
    optimized = assert_same(net.model(net.node("Transpose", y, perm=[2, 0, 1])))
    assert layout_changes(optimized) == 2  # the change at the entry, and the Transpose itself


def test_one_row_of_pixels_without_an_nhwc_reader_is_converted() -> None:
    net = Net({"x": (1, 8, 3, 9)})
    optimized = assert_same(
        net.model(
            net.node(
                "Softmax",
                net.node("Squeeze", net.conv("x", 8, 12, 3), net.const([2], np.int64)),
                axis=1,
            )
        )
    )
    assert ops(optimized)[-2:] == ["Squeeze", "Softmax"]


@pytest.mark.parametrize(("more", "changes"), [(4, 2), (3, 4)])
def test_channels_are_padded_where_accesses_stay_whole(more: int, changes: int) -> None:
    net = Net({"x": (1, 8, 5, 5)})
    y = net.node(
        "Pad", net.conv("x", 8, 8), net.const([0, 0, 1, 0, 0, more, 0, 0], np.int64), net.const(0.5)
    )
    assert layout_changes(assert_same(net.model(net.conv(y, 8 + more, 8)))) == changes


def test_one_dimensional_convolutions() -> None:
    net = Net({"x": (2, 8, 30)})
    y = net.node("Conv", "x", net.normal(16, 8, 3), net.normal(16), pads=[1, 2], strides=[2])
    y = net.node("Conv", net.node("Relu", y), net.normal(8, 16, 5), dilations=[2])
    optimized = assert_same(net.model(y))
    assert layout_changes(optimized) == 2
    assert [op for op in ops(optimized) if op.startswith("Fused")] == [
        "FusedConv_Bias_Relu_f32_1d",
        "FusedConv_f32_1d",
    ]


def test_asymmetric_padding_stride_and_dilation() -> None:
    net = Net({"x": (1, 8, 13, 11)})
    y = net.conv("x", 8, 8, 3, pads=[0, 1, 2, 3], strides=[2, 1], dilations=[1, 2])
    assert_same(net.model(y))


def test_odd_gemms_are_padded_between_each_other() -> None:
    net = Net({"x": (4, 429)})
    y = net.node("Relu", net.linear("x", 429, 131))
    optimized = assert_same(net.model(net.linear(net.node("Add", net.node("Abs", y), y), 131, 3)))
    assert weights(optimized) == [[132, 432], [3, 132]]


def test_symbolic_batch() -> None:
    net = Net({"x": ("n", 3, 12, 12)})
    y = net.node("Flatten", net.node("GlobalAveragePool", net.node("Relu", net.conv("x", 3, 8, 3))))
    assert_same(net.model(net.linear(y, 8, 4)))


def test_fp16_keeps_the_types_of_the_graphs_ends() -> None:
    net = Net({"x": (2, 3, 12, 12)})
    y = net.node("Flatten", net.node("GlobalAveragePool", net.node("Relu", net.conv("x", 3, 8, 3))))
    optimized = assert_same(net.model(net.linear(y, 8, 4)), limit=1e-2, precision="fp16")
    assert any(op.endswith("CastF32_f16") for op in ops(optimized))


def test_padding_of_a_product_is_not_taken_for_padding_of_channels() -> None:
    """Both have three entries and are padded to four; but the product's are the image's columns."""
    net = Net({"x": (2, 3, 4, 3)})
    y = net.node("MatMul", net.conv("x", 3, 3, 3, pads=[1] * 4), net.normal(3, 3))
    assert_same(net.model(net.conv(y, 3, 5)))


@pytest.mark.parametrize("crosses", [1, 3])
def test_products_that_add_one_another_stay_padded_whoever_reads_the_last(crosses: int) -> None:
    """DCNv2's cross layers: one Slice behind the last of them, else none of them would be
    padded."""
    net = Net({"x": (8, 429)})
    y = "x"
    for _ in range(crosses):
        y = net.node("Add", net.node("Mul", net.linear(y, 429, 429), "x"), y)
    optimized = assert_same(net.model(net.node("Softmax", y)), 1e-2, "fp16")
    assert weights(optimized) == [[432, 432]] * crosses
    assert [op for op in ops(optimized) if op in ("Pad", "Slice")] == ["Pad", "Slice"]


def test_a_product_that_adds_what_is_not_padded_is_not() -> None:
    net = Net({"x": (8, 429), "r": (8, 131)})
    y = net.node("Add", net.linear("x", 429, 131), "r")
    assert weights(assert_same(net.model(net.node("Softmax", y)), 1e-2, "fp16")) == [[131, 432]]


def test_an_infinite_border_does_not_meet_the_zero_weights_of_padding() -> None:
    """Weights are positive: what the border reaches is infinite, and would be NaN with infinity
    times zero."""
    net = Net({"x": (2, 8, 6, 6)})
    y = net.node(
        "Pad",
        net.conv("x", 8, 13),
        net.const([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
        net.const(np.inf),
    )
    model = net.model(net.node("Conv", y, net.const(net.rng.uniform(0.5, 1.5, (8, 13, 1, 1)))))
    feeds = feeds_of(model)
    (expected,), (got,) = run(model, feeds), run(fused(model), feeds)
    assert np.isposinf(expected).any()
    assert np.array_equal(np.isposinf(got), np.isposinf(expected))
    assert not np.isnan(got).any()


@pytest.mark.parametrize("channels", [8, 12, 16])
@pytest.mark.parametrize("precision", ["keep", "fp16"])
@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_a_constant_image_is_brought_into_the_layout(
    op: str, precision: str, channels: int
) -> None:
    """With 8 channels of 8 x 8 pixels its shape is the same in both layouts."""
    net = Net({"x": (1, 8, 8, 8)})
    y = net.node(op, net.conv("x", 8, channels), net.normal(1, channels, 8, 8))
    assert_same(net.model(net.node("Relu", y)), 1e-2 if precision == "fp16" else 1e-5, precision)
