"""Elementwise chains without a product before them: which nodes they take, what they leave, and
that they compute the same."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from tests.support import Net, assert_same, fused, ops

SAME = {"pads": [1, 1, 1, 1]}


def chains(model: onnx.ModelProto) -> list[str]:
    return [op for op in ops(model) if op.startswith("FusedElementwise")]


def test_a_normalization_and_its_activation_in_front_of_a_convolution_are_one_node() -> None:
    net = Net({"x": (2, 8, 9, 9)})
    pooled = net.node("MaxPool", net.conv("x", 8, 16), kernel_shape=[2, 2])
    inner = net.conv(net.node("Relu", net.batchnorm(pooled, 16)), 16, 8)
    optimized = assert_same(net.model(net.node("Concat", pooled, inner, axis=1)))
    assert chains(optimized) == ["FusedElementwise_Scale_Bias_Relu_f32_sliced"]
    assert not {"Mul", "Add", "Relu"} & set(ops(optimized))


def test_scale_and_shift_are_of_parameters_that_were_not_rounded() -> None:
    """In fp16 gamma, beta, mean and variance lose 11 bits each, and a shift that is the
    difference of two of them much more."""
    net = Net({"x": (1, 8, 6, 6)})
    pooled = net.node("MaxPool", net.conv("x", 8, 8), kernel_shape=[2, 2])
    normalized = net.batchnorm(pooled, 8)
    optimized = fused(net.model(net.conv(net.node("Relu", normalized), 8, 8)), "fp16")
    gamma, beta, mean, variance = (
        numpy_helper.to_array(t).astype(np.float64) for t in net.initializers[2:6]
    )
    scale = gamma / np.sqrt(variance + 1e-5)
    found = {t.name: numpy_helper.to_array(t) for t in optimized.graph.initializer}
    np.testing.assert_allclose(found[f"{normalized}.scale__packed"], scale, rtol=1e-6)
    np.testing.assert_allclose(
        found[f"{normalized}.shift__packed"], beta - mean * scale, rtol=1e-6, atol=1e-7
    )


def test_padded_channels_stay_zero_where_weights_meet_them() -> None:
    net = Net({"x": (1, 8, 6, 6)})
    pooled = net.node("MaxPool", net.conv("x", 8, 5), kernel_shape=[2, 2])
    optimized = assert_same(
        net.model(net.conv(net.node("Softplus", net.batchnorm(pooled, 5)), 5, 8))
    )
    assert chains(optimized) == ["FusedElementwise_Scale_Bias_Softplus_f32"]


def test_tensors_are_operands_and_a_value_with_more_readers_ends_the_chain() -> None:
    net = Net({"x": (1, 8, 6, 6)})
    a, b = (net.node("MaxPool", net.conv("x", 8, 8), kernel_shape=[2, 2]) for _ in range(2))
    both = net.node("Sigmoid", net.node("Add", a, b))
    gated = net.node("Tanh", net.node("Mul", both, a))
    optimized = assert_same(net.model(net.conv(net.node("Concat", both, gated, axis=1), 16, 8)))
    assert chains(optimized) == [
        "FusedElementwise_Add_Sigmoid_f32_part",
        "FusedElementwise_Mul_Tanh_f32_sliced_into",
    ]


def test_where_two_chains_meet_one_reads_the_other() -> None:
    net = Net({"x": (1, 8, 6, 6)})
    a, b = (net.node("MaxPool", net.conv("x", 8, 8), kernel_shape=[2, 2]) for _ in range(2))
    left, right = (net.node("Tanh", net.node("Relu", y)) for y in (a, b))
    optimized = assert_same(
        net.model(net.conv(net.node("Sigmoid", net.node("Mul", left, right)), 8, 8))
    )
    assert sorted(chains(optimized)) == [
        "FusedElementwise_Relu_Tanh_Mul_Sigmoid_f32",
        "FusedElementwise_Relu_Tanh_f32",
    ]


def test_a_single_node_and_one_with_a_broadcast_operand_stay() -> None:
    net = Net({"x": (1, 8, 6, 6)})
    y = net.node("MaxPool", net.conv("x", 8, 8), kernel_shape=[2, 2])
    gate = net.node("GlobalAveragePool", y)
    y = net.node("MaxPool", net.node("Relu", y), kernel_shape=[2, 2])
    optimized = assert_same(net.model(net.conv(net.node("Mul", y, gate), 8, 8)))
    assert chains(optimized) == []
    assert {"Relu", "Mul"} <= set(ops(optimized))


def test_nodes_outside_of_nhwc_are_not_fused() -> None:
    net = Net({"x": (1, 8, 6, 6)})
    y = net.node("Relu", net.batchnorm("x", 8))
    assert chains(assert_same(net.model(net.conv(y, 8, 8), y))) == []


def test_a_graph_output_ends_the_chain() -> None:
    net = Net({"x": (1, 8, 6, 6)})
    normalized = net.batchnorm(net.node("MaxPool", net.conv("x", 8, 8), kernel_shape=[2, 2]), 8)
    optimized = assert_same(net.model(net.conv(net.node("Relu", normalized), 8, 8), normalized))
    assert chains(optimized) == ["FusedElementwise_Scale_Bias_f32"]
    assert "Relu" in ops(optimized)


def test_parameters_travel_with_the_node() -> None:
    net = Net({"x": (1, 8, 6, 6)})
    y = net.batchnorm(net.node("MaxPool", net.conv("x", 8, 8), kernel_shape=[2, 2]), 8)
    optimized = assert_same(net.model(net.conv(net.node("LeakyRelu", y, alpha=0.3), 8, 8)))
    (node,) = (node for node in optimized.graph.node if node.op_type.startswith("FusedElementwise"))
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert [round(number, 6) for number in attributes["epilogue_params"]] == [0.3]
    assert attributes["rule"] == b"elementwise+Scale+Bias+LeakyRelu"
    assert attributes["layout"] == b"NHWC"
