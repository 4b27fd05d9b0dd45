"""Concats whose inputs are written into the result: which ones, in what order, and that the
values are the same."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

from models import build
from onnxbolt import optimize
from tests.support import Net, assert_same, ops

SAME: dict[str, Any] = {"pads": [1, 1, 1, 1]}


def around(model: onnx.ModelProto) -> list[list[int]]:
    """Channels before and behind what each node writes of a result, in the graph's order."""
    found = [
        list(a.ints) for node in model.graph.node for a in node.attribute if a.name == "around"
    ]
    return [[pads[len(pads) // 2 - 1], pads[-1]] for pads in found]


def suffixes(model: onnx.ModelProto) -> list[str]:
    return [op.rsplit("_", 1)[1] for op in ops(model) if op.endswith(("_part", "_into"))]


def test_convolutions_write_into_the_result() -> None:
    net = Net({"x": ("N", 8, 9, 9)})
    squeezed = net.node("Relu", net.conv("x", 8, 16))
    parts = [
        net.node("Relu", net.conv(squeezed, 16, 24)),
        net.node("Relu", net.conv(squeezed, 16, 32, 3, **SAME)),
    ]
    optimized = assert_same(net.model(net.conv(net.node("Concat", *parts, axis=1), 56, 8)))
    assert "Concat" not in ops(optimized)
    assert (suffixes(optimized), around(optimized)) == (["part", "into"], [[0, 32], [24, 0]])
    joined = [node for node in optimized.graph.node if node.op_type.endswith("_into")]
    assert joined[0].input[-1] == next(
        node.output[0] for node in optimized.graph.node if node.op_type.endswith("_part")
    )


def test_the_last_writer_stands_for_the_result() -> None:
    net = Net({"x": (1, 8, 9, 9)})
    parts = [net.node("Relu", net.conv("x", 8, k)) for k in (5, 8)]  # 5 is stored as 8
    joined = net.node("Concat", *parts, axis=1)
    optimized = assert_same(net.model(net.conv(joined, 13, 8)))
    values = {
        node.op_type.rsplit("_", 1)[1]: {
            a.name: onnx.helper.get_attribute_value(a) for a in node.attribute
        }
        for node in optimized.graph.node
    }
    assert values["part"]["tensor"] == b""
    assert values["into"]["tensor"].decode() == joined
    assert values["into"]["channel_map"] == [*range(5), -1, -1, -1, *range(5, 13)]


def test_poolings_and_resizings_write_into_the_result_and_the_rest_is_copied() -> None:
    net = Net({"x": (1, 8, 8, 8)})
    y = net.node("Relu", net.conv("x", 8, 16))
    pooled = net.node("MaxPool", y, kernel_shape=[3, 3], **SAME)
    joined = net.node("Concat", net.node("Exp", y), pooled, net.conv(y, 16, 8), axis=1)
    optimized = assert_same(net.model(net.conv(joined, 40, 8)))
    assert [op for op in ops(optimized) if op.endswith(("_part", "_into"))] == [
        "MaxPool_nhwc_f32_part",
        "FusedConv_Bias_f32_into",
        "FusedElementwise_f32_into",
    ]
    assert around(optimized) == [[16, 8], [32, 0], [0, 24]]


@pytest.mark.parametrize("opset", [12, 13, 20])
def test_rank_three(opset: int) -> None:
    net = Net({"x": (2, 8, 20)}, opset=opset)
    wide, narrow, last = (net.normal(*shape) for shape in ((16, 8, 3), (8, 8, 1), (8, 24, 1)))
    parts = [
        net.node("Relu", net.node("Conv", "x", wide, pads=[1, 1])),
        net.node("Conv", "x", narrow),
    ]
    optimized = assert_same(net.model(net.node("Conv", net.node("Concat", *parts, axis=1), last)))
    assert around(optimized) == [[0, 8], [16, 0]]


def stays(net: Net, joined: str, channels: int) -> None:
    optimized = assert_same(net.model(net.conv(joined, channels, 8)))
    assert suffixes(optimized) == []
    assert "Concat" in ops(optimized)


def test_mostly_foreign_inputs_stay_a_concat() -> None:
    net = Net({"x": (1, 8, 8, 8)})
    y = net.node("Relu", net.conv("x", 8, 24))
    z = net.node("Relu", net.conv(y, 24, 16))
    # more channels would be copied than written
    stays(net, net.node("Concat", net.node("Exp", y), net.conv(z, 16, 16), axis=1), 40)


def test_results_that_others_read_stay_a_concat() -> None:
    net = Net({"x": (1, 8, 8, 8)})
    y = net.node("Relu", net.conv("x", 8, 8))
    z = net.node("Relu", net.conv(y, 8, 8))
    stays(
        net,
        net.node("Add", net.conv(net.node("Concat", net.node("Exp", y), z, axis=1), 16, 8), z),
        8,
    )


def test_unaligned_channels_stay_a_concat() -> None:
    net = Net({"x": (1, 8, 8, 8)})
    parts = [net.conv("x", 8, 6), net.conv("x", 8, 6)]
    y = net.node("Concat", *parts, axis=1)
    stays(net, net.node("Exp", y), 12)  # no padding is made that would not be zero


def test_another_axis_stays_a_concat() -> None:
    net = Net({"x": (1, 8, 8, 8)})
    stays(net, net.node("Concat", net.conv("x", 8, 8), net.conv("x", 8, 8), axis=2), 8)


@pytest.mark.parametrize("opset", [8, 11])
def test_opsets_without_vectors_as_attributes_are_raised(opset: int) -> None:
    """Bodies of nodes that write slices need Constant's value_ints, of opset 12."""
    net = Net({"x": (1, 8, 8, 8)}, opset=opset)
    joined = net.node("Concat", net.conv("x", 8, 8), net.conv("x", 8, 8), axis=1)
    optimized = assert_same(net.model(net.conv(joined, 16, 8)))
    assert suffixes(optimized) == ["part", "into"]
    assert "Concat" not in ops(optimized)


def dense_block(net: Net, layers: int) -> str:
    """Each layer reads all features before it."""
    features = [net.node("Relu", net.conv("x", 8, 16))]
    for _ in range(layers):
        joined = net.node("Concat", *features, axis=1) if len(features) > 1 else features[0]
        channels = 16 + 8 * (len(features) - 1)
        features.append(
            net.conv(net.node("Relu", net.batchnorm(joined, channels)), channels, 8, 3, **SAME)
        )
    return net.node("Concat", *features, axis=1)


def test_the_features_of_a_dense_block_lie_in_one_tensor() -> None:
    net = Net({"x": ("N", 8, 9, 9)})
    optimized = assert_same(net.model(net.conv(dense_block(net, 3), 40, 8)))
    assert "Concat" not in ops(optimized)
    reads = [
        list(a.ints)
        for node in optimized.graph.node
        for a in node.attribute
        if a.name == "channels"
    ]
    assert reads == [[0, 16], [0, 24], [0, 32]]
    assert around(optimized) == [[0, 24], [16, 16], [24, 8], [32, 0]]


def test_convolutions_and_poolings_read_slices() -> None:
    net = Net({"x": (2, 8, 9, 9)})
    y = net.node("Relu", net.conv("x", 8, 16))
    z = net.node("Relu", net.conv(y, 16, 24, 3, **SAME))
    pooled = net.node("MaxPool", z, kernel_shape=[3, 3], **SAME)
    optimized = assert_same(net.model(net.conv(net.node("Concat", pooled, y, z, axis=1), 64, 8)))
    assert [op for op in ops(optimized) if "sliced" in op] == [
        "FusedConv_Bias_Relu_f32_sliced_into",
        "MaxPool_nhwc_f32_sliced_into",
    ]
    assert around(optimized) == [[24, 24], [40, 0], [0, 40]]


def test_what_is_read_as_an_operand_is_no_slice() -> None:
    net = Net({"x": (1, 8, 8, 8)})
    y = net.node("Relu", net.conv("x", 8, 8))
    z = net.node("Relu", net.node("Add", net.conv(y, 8, 8), y))
    optimized = assert_same(net.model(net.conv(net.node("Concat", z, y, axis=1), 16, 8)))
    assert suffixes(optimized) == ["part", "into"]
    assert ops(optimized)[-3] == "FusedElementwise_f32_into"


def test_joined_features_in_another_order_stay_apart() -> None:
    net = Net({"x": (1, 8, 8, 8)})
    y, z = net.node("Relu", net.conv("x", 8, 8)), net.node("Relu", net.conv("x", 8, 16))
    other = net.node("Relu", net.conv(net.node("Concat", z, y, axis=1), 24, 8))
    optimized = assert_same(net.model(net.conv(net.node("Concat", y, z, other, axis=1), 32, 8)))
    assert ops(optimized).count("Concat") + suffixes(optimized).count("part") == 2


def test_a_product_of_another_layout_is_copied() -> None:
    net = Net({"x": (1, 8, 8, 8), "z": (1, 8, 8, 16)})
    product = net.node("MatMul", "z", net.normal(16, 8))
    optimized = assert_same(
        net.model(net.conv(net.node("Concat", net.conv("x", 8, 16), product, axis=1), 24, 8))
    )
    assert any(
        op.startswith("FusedGemm") and not op.endswith(("_part", "_into")) for op in ops(optimized)
    )
    assert "FusedElementwise_f32_into" in ops(optimized)


def test_a_later_concat_of_some_of_the_inputs_is_read_from_the_larger_one() -> None:
    net = Net({"x": (1, 8, 8, 8)})
    y, z, w = (net.node("Relu", net.conv("x", 8, 8 * count)) for count in (1, 2, 3))
    whole = net.conv(net.node("Concat", y, z, w, axis=1), 48, 8)
    some = net.conv(net.node("Concat", y, z, axis=1), 24, 8)
    optimized = assert_same(net.model(net.node("Add", whole, some)))
    assert "Concat" not in ops(optimized)
    assert sum("_sliced" in op for op in ops(optimized)) == 1


def test_a_slice_that_is_a_graph_output_is_made_by_itself() -> None:
    net = Net({"x": (1, 8, 8, 8)})
    y, z = net.node("Relu", net.conv("x", 8, 8)), net.node("Relu", net.conv("x", 8, 16))
    optimized = assert_same(net.model(net.conv(net.node("Concat", y, z, axis=1), 24, 8), y))
    assert suffixes(optimized) == ["part", "into"]
    assert "FusedElementwise_f32_into" in ops(optimized)


@pytest.mark.parametrize(
    ("width", "wrap", "reason"),
    [
        (
            16,
            "Exp",
            (
                "too many channels would have to be copied to or from kernels of ONNX Runtime: 1"
                " of 2 inputs, 16 of 24 channels"
            ),
        ),
        (6, "Relu", "slices are not aligned to 16 bytes: 6, 8 channels"),
    ],
)
def test_the_report_says_why_a_concat_stays(width: int, wrap: str, reason: str) -> None:
    net = Net({"x": (1, 8, 8, 8)})
    y = net.node("Concat", net.node(wrap, net.conv("x", 8, width)), net.conv("x", 8, 8), axis=1)
    report = optimize(
        net.model(net.node("Exp", y)), precision="keep", fuse="all", archs=("sm_80",), library=False
    )
    assert [refusal.reason for refusal in report.refusals if refusal.op == "Concat"] == [reason]


def test_a_kernel_that_stores_both_of_its_results_writes_the_last_one_into_its_slice() -> None:
    """SqueezeNet's fire modules: the squeezing convolution and the expanding 1x1 one."""
    report = optimize(build("squeezenet1_1"), fuse="all", archs=("sm_90a",), library=False)
    types = [node.op for node in report.fused]
    assert any("_Store_" in name and name.endswith("_part") for name in types)
    assert not [refusal for refusal in report.refusals if refusal.op == "Concat"]
