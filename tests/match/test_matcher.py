"""Chains: how far they go, where they end, and why anchors are left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.support import Net, assert_same, matched


def rules(net: Net, *outputs: str) -> list[str]:
    return [candidate.rule for candidate in matched(net.model(*outputs))[0]]


def test_chain_follows_bias_residual_and_activation() -> None:
    net = Net({"x": (1, 8, 6, 6)})
    a = net.conv("x", 8, 8, 3, pads=[1, 1, 1, 1])
    assert rules(net, net.node("Relu", net.node("Add", a, "x"))) == ["conv+Bias+Add+Relu"]


def test_residual_behind_the_activation() -> None:
    net = Net({"x": (1, 8, 6, 6)})
    assert rules(net, net.node("Add", "x", net.node("Relu", net.conv("x", 8, 8)))) == [
        "conv+Bias+Relu+Add"
    ]


@pytest.mark.parametrize(
    ("op", "attributes", "step", "params"),
    [
        ("Relu", {}, "Relu", ()),
        ("LeakyRelu", {"alpha": 0.1}, "LeakyRelu", (0.1,)),
        ("LeakyRelu", {}, "LeakyRelu", (0.01,)),
        ("Sigmoid", {}, "Sigmoid", ()),
        ("Tanh", {}, "Tanh", ()),
        ("HardSigmoid", {}, "HardSigmoid", (0.2, 0.5)),
        ("HardSwish", {}, "HardSwish", ()),
        ("Softplus", {}, "Softplus", ()),
        ("Elu", {}, "Elu", (1.0,)),
    ],
)
def test_single_op_activations(
    op: str, attributes: dict[str, Any], step: str, params: tuple[float, ...]
) -> None:
    net = Net({"x": (1, 8, 6, 6)})
    (candidate,), _ = matched(net.model(net.node(op, net.conv("x", 8, 8), **attributes)))
    assert candidate.steps == ("Bias", step)
    assert candidate.links[-1].step.params == pytest.approx(params)


def test_clip_with_one_bound_is_open_on_the_other_side() -> None:
    net = Net({"x": (1, 8, 6, 6)})
    (candidate,), _ = matched(net.model(net.node("Clip", net.conv("x", 8, 8), "", net.const(6.0))))
    assert candidate.links[-1].step.params == (-np.inf, 6.0)


def test_prelu_with_a_slope_per_channel() -> None:
    net = Net({"x": (1, 8, 6, 6)})
    assert rules(net, net.node("PRelu", net.conv("x", 8, 8), net.normal(8, 1, 1))) == [
        "conv+Bias+PRelu"
    ]


def test_a_value_used_elsewhere_is_still_produced() -> None:
    net = Net({"x": (1, 8, 6, 6)})
    a = net.conv("x", 8, 8)
    net_output = net.node("Relu", a)
    assert rules(net, net_output, net.node("Exp", a)) == ["conv+Bias"]


def test_a_graph_output_ends_the_chain() -> None:
    net = Net({"x": (1, 8, 6, 6)})
    a = net.conv("x", 8, 8)
    assert rules(net, a, net.node("Relu", a)) == ["conv+Bias"]


def test_two_convolutions_meet_at_an_add_and_one_takes_it() -> None:
    net = Net({"x": (1, 8, 6, 6), "z": (1, 8, 6, 6)})
    a, b = net.conv("x", 8, 8), net.conv("z", 8, 8)
    assert sorted(rules(net, net.node("Relu", net.node("Add", a, b)))) == [
        "conv+Bias",
        "conv+Bias+Add+Relu",
    ]


def test_matmul_of_rank_three_is_a_gemm() -> None:
    net = Net({"x": (2, 5, 16)})
    assert rules(net, net.node("Relu", net.linear("x", 16, 8))) == ["gemm+Bias+Relu"]


def test_scale_vector_behind_an_activation() -> None:
    net = Net({"x": (2, 16)})
    y = net.node("Mul", net.node("Relu", net.linear("x", 16, 8)), net.normal(8))
    (candidate,), _ = matched(net.model(y))
    assert candidate.steps == ("Bias", "Relu", "Scale")


def test_division_becomes_a_scale_by_the_reciprocal() -> None:
    net = Net({"x": (2, 16)})
    (candidate,), _ = matched(
        net.model(net.node("Div", net.node("Relu", net.linear("x", 16, 8)), net.const(4.0)))
    )
    assert candidate.steps[-1] == "Scale"
    assert candidate.links[-1].operand.values == pytest.approx(0.25)  # type: ignore[union-attr]


def test_a_constant_divided_by_the_chain_is_no_step() -> None:
    net = Net({"x": (2, 16)})
    assert rules(
        net, net.node("Div", net.const(4.0), net.node("Relu", net.linear("x", 16, 8)))
    ) == ["gemm+Bias+Relu"]


@pytest.mark.parametrize(
    ("shape", "weight", "attributes", "reason"),
    [
        ((1, 111, 6, 6), (111, 3, 3, 3), {"group": 37}, "grouped"),
        ((1, 222, 6, 6), (444, 1, 3, 3), {"group": 222}, "grouped"),
        # a damaged model, which onnx's checker passes
        ((1, 8, 6, 6), (16, 8, 3, 3), {"group": 0}, "grouped"),
        ((1, 24, 6, 6), (16, 8, 3, 3), {"group": 3}, "grouped"),
        ((1, 8, 6, 6, 6, 6), (8, 8, 1, 1, 1, 1), {}, "4-D"),
    ],
)
def test_refused_convolutions_say_why(
    shape: tuple[int, ...], weight: tuple[int, ...], attributes: dict[str, int], reason: str
) -> None:
    net = Net({"x": shape})
    candidates, refusals = matched(
        net.model(net.node("Conv", "x", net.normal(*weight), **attributes))
    )
    assert not candidates
    assert reason in refusals[0].reason


def test_run_time_weights_say_why() -> None:
    net = Net({"x": (1, 8, 6, 6), "w": (8, 8, 1, 1), "a": (4, 4)})
    outputs = [
        net.node("ConvTranspose", "x", "w", strides=[2, 2]),
        net.node("Conv", "x", "w"),
        net.node("MatMul", "a", "a"),
    ]
    candidates, refusals = matched(net.model(*outputs))
    assert not candidates
    assert [refusal.reason.split(" ")[0] for refusal in refusals] == [
        "its",
        "its",
        "both",
    ]


def test_a_broadcast_residual_is_a_near_miss_with_its_shape() -> None:
    net = Net({"x": (1, 8, 6, 6), "g": (1, 8, 1, 1)})
    candidates, refusals = matched(net.model(net.node("Mul", net.conv("x", 8, 8), "g")))
    assert [c.rule for c in candidates] == ["conv+Bias"]
    general, _, details = refusals[0].reason.partition(": ")
    assert (
        general
        == "not fused into the previous epilogue, because its other operand's shape differs from"
        " the result's"
    )
    assert details == "g [1, 8, 1, 1] and [1, 8, 6, 6]"


def test_a_residual_of_unknown_size_may_be_broadcast() -> None:
    net = Net({"x": (1, 8, 6, 6), "g": (1, 8, "h", "w")})
    _, refusals = matched(net.model(net.node("Mul", net.conv("x", 8, 8), "g")))
    assert "its other operand's shape may differ from the result's" in refusals[0].reason


def test_a_third_residual_does_not_fit_the_kernel() -> None:
    net = Net({"x": (1, 8, 6, 6), "a": (1, 8, 6, 6), "b": (1, 8, 6, 6), "c": (1, 8, 6, 6)})
    y = net.conv("x", 8, 8)
    for name in "abc":
        y = net.node("Add", y, name)
    assert rules(net, y) == ["conv+Bias+Add+Add"]


@pytest.mark.parametrize("rows", [1, 5])
def test_a_product_that_is_no_tensor_of_the_source_is_left_alone(rows: int) -> None:
    """Gemm adds one number per row; of the sum's first part the source model has no value to
    verify it by."""
    net = Net({"x": (5, 4)})
    candidates, refusals = matched(
        net.model(net.node("Gemm", "x", net.normal(4, 6), net.normal(rows, 1)))
    )
    assert [c.rule for c in candidates] == (["gemm+Bias"] if rows == 1 else [])
    assert [r.reason for r in refusals[1:]] == (
        ["its result is not a tensor of the original model, so it could not be verified"]
        if rows > 1
        else []
    )


def test_a_chain_is_cut_back_to_a_tensor_of_the_source() -> None:
    """Reshape, MatMul, bias, 1/x, Reshape: without the Reshapes only the last result is the
    source's, and no kernel divides by its sum."""
    net = Net({"x": (2, 3, 4)})
    y = net.linear(net.node("Reshape", "x", net.const([-1, 4], np.int64)), 4, 6)
    y = net.node("Reshape", net.node("Div", net.const(1.0), y), net.const([2, 3, 6], np.int64))
    candidates, refusals = matched(net.model(y))
    assert not candidates
    assert "not a tensor of the original model" in refusals[-1].reason


def test_empty_tensors_stay() -> None:
    net = Net({"x": (0, 4, 6, 6), "v": (0, 4)})
    candidates, refusals = matched(
        net.model(net.conv("x", 4, 8), net.node("MatMul", "v", net.normal(4, 6)))
    )
    assert not candidates
    assert {r.reason for r in refusals} == {"an empty tensor: there is nothing to compute"}


def test_a_chain_that_fills_the_kernels_arguments_says_so() -> None:
    net = Net({"x": (1, 8, 6, 6), "a": (1, 8, 6, 6), "b": (1, 8, 6, 6), "c": (1, 8, 6, 6)})
    y = net.conv("x", 8, 8)
    for name in "abc":
        y = net.node("Relu", net.node("Add", y, name))
    (candidate,), (refusal,) = matched(net.model(y))
    assert candidate.rule == "conv+Bias+Add+Relu+Add+Relu"
    assert refusal.reason.startswith("the previous epilogue is full: ")


@pytest.mark.parametrize(
    ("op", "bias", "rule"),
    [
        ("BiasGelu", True, "gemm+Bias+GeluErf"),
        ("FastGelu", True, "gemm+Bias+GeluTanh"),
        ("FastGelu", False, "gemm+GeluTanh"),
        ("Gelu", False, "gemm+GeluErf"),
        ("QuickGelu", False, "gemm+QuickGelu"),
    ],
)
def test_gelus_of_onnx_runtimes_optimizer(op: str, bias: bool, rule: str) -> None:
    net = Net({"x": (4, 16)})
    product = net.node("MatMul", "x", net.normal(16, 8, scale=0.25))
    y = net.node(op, product, *([net.normal(8)] if bias else []), domain="com.microsoft")
    assert rules(net, y) == [rule]
    model = net.model(y)
    model.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, [4, 8])
    )
    assert_same(model)


def test_gelu_with_a_bias_from_run_time_says_why() -> None:
    net = Net({"x": (4, 16), "b": (8,)})
    y = net.node(
        "BiasGelu", net.node("MatMul", "x", net.normal(16, 8)), "b", domain="com.microsoft"
    )
    candidates, refusals = matched(net.model(y))
    assert [candidate.rule for candidate in candidates] == ["gemm"]
    assert "a bias that is computed at run time: b" in refusals[0].reason


def test_operators_of_other_domains_are_not_those_of_onnx() -> None:
    net = Net({"x": (4, 16)})
    y = net.node("Relu", net.node("MatMul", "x", net.normal(16, 8)), domain="com.example")
    assert rules(net, y) == ["gemm"]


def test_clip_with_bounds_of_one_element() -> None:
    net = Net({"x": (1, 8, 6, 6)})
    model = net.model(net.node("Clip", net.conv("x", 8, 8), net.const([0.0]), net.const([6.0])))
    (candidate,), _ = matched(model)
    assert candidate.links[-1].step.params == (0.0, 6.0)
    assert_same(model)


def test_clip_with_bounds_of_several_elements_says_why() -> None:
    net = Net({"x": (1, 8, 6, 6)})
    (candidate,), (refusal,) = matched(
        net.model(net.node("Clip", net.conv("x", 8, 8), net.const([0.0, 1.0])))
    )
    assert candidate.rule == "conv+Bias"
    assert "a bound that is not a scalar" in refusal.reason


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("divisor", [1e-42, -1e-42, np.nan])
def test_division_without_a_finite_reciprocal_stays(divisor: float) -> None:
    net = Net({"x": (2, 16)})
    y = net.node("Div", net.node("Relu", net.linear("x", 16, 8)), net.const([1.0] * 7 + [divisor]))
    (candidate,), (refusal,) = matched(net.model(y))
    assert candidate.rule == "gemm+Bias+Relu"
    assert "no finite reciprocal" in refusal.reason
