"""Convolutions and 1x1 convolutions behind them: which share a kernel, what their bodies
compute, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from onnxbolt.families import named
from onnxbolt.match.matcher import match
from onnxbolt.match.partition import partition
from onnxbolt.plan.choose import plan
from onnxbolt.plan.cuts import cover
from onnxbolt.plan.problems import problem_of
from onnxbolt.problems import ConvProblem
from tests.support import Net, assert_same, ops, prepare

SAME: dict[str, Any] = {"pads": [1] * 4}
BOTH = "conv+Bias+Relu+Gemm+Bias+Relu"


def rules(
    net: Net, *outputs: str, archs: tuple[int, ...] = (90,), precision: str = "fp16"
) -> list[str]:
    graph = prepare(net.model(*outputs), precision)
    return [candidate.rule.removesuffix("+CastF32") for candidate in cover(graph, archs)[0]]


def pair(
    c: int, inner: int, k: int, size: int = 56, batch: int = 32, **attributes: Any
) -> tuple[Net, str]:
    """A 3x3 convolution and a 1x1 one, each with bias and ReLU; `attributes` are the second
    one's."""
    net = Net({"x": (batch, c, size, size)})
    y = net.node("Relu", net.conv("x", c, inner, 3, **SAME))
    return net, net.node("Relu", net.conv(y, inner, k, **attributes))


@pytest.mark.parametrize(
    "widths", [(48, 48, 48), (64, 64, 64), (3, 64, 64), (64, 64, 256), (40, 20, 40)]
)
def test_narrow_layers_share_a_kernel(widths: tuple[int, int, int]) -> None:
    net, y = pair(*widths)
    assert rules(net, y) == [BOTH]


def test_repvgg_s_deepened_blocks_are_one_kernel_each() -> None:
    net = Net({"x": (2, 3, 64, 64)})
    y, c = "x", 3
    for k, stride in ((48, 2), (48, 2), (48, 1), (96, 2)):
        y = net.node("Relu", net.conv(y, c, k, 3, strides=[stride] * 2, **SAME))
        y, c = net.node("Relu", net.conv(y, k, k)), k
    assert rules(net, y) == [BOTH] * 4


@pytest.mark.parametrize("attributes", [{"strides": [2, 2]}, {"pads": [1] * 4}, {"group": 8}])
def test_only_1x1_convolutions_of_every_pixel_are_further_products(
    attributes: dict[str, Any],
) -> None:
    net, y = pair(64, 64, 64, **attributes)
    assert rules(net, y) == ["conv+Bias+Relu"] * 2


@pytest.mark.parametrize("archs", [(75,), (80,), (86, 89), (80, 90)])
def test_older_architectures_have_kernels_for_both(archs: tuple[int, ...]) -> None:
    net, y = pair(64, 64, 64)
    assert rules(net, y, archs=archs) == [BOTH]


def test_float32_has_no_kernel_for_both() -> None:
    net, y = pair(64, 64, 64)
    assert rules(net, y, precision="keep") == ["conv+Bias+Relu"] * 2


def test_an_inner_result_that_is_used_elsewhere_ends_the_kernel() -> None:
    net = Net({"x": (32, 64, 56, 56)})
    inner = net.node("Relu", net.conv("x", 64, 64, 3, **SAME))
    y = net.conv(inner, 64, 64)
    assert rules(net, y, inner) == ["conv+Bias+Relu", "conv+Bias"]
    # one refusal, in the words of plan/multi_use.py
    (refusal,) = cover(prepare(net.model(y, inner), "fp16"), [90]).refusals
    assert (refusal.op, refusal.tensor) == ("Conv", inner)
    assert "has other consumers" in refusal.reason


def chains() -> dict[str, tuple[Net, str, str]]:
    """Models of one chain each, and its op type."""
    found: dict[str, tuple[Net, str, str]] = {}
    net, y = pair(16, 24, 40, 9, 2)
    found["odd size"] = net, y, "FusedConv_Bias_Relu_Gemm_Bias_Relu_CastF32_f16"
    net, y = pair(12, 20, 40, 9, 2)
    found["padded inside"] = net, y, "FusedConv_Bias_Relu_Gemm_Bias_Relu_CastF32_f16"
    net, y = pair(3, 16, 24, 15, 2)
    found["first"] = net, y, "FusedConv_Bias_Relu_Gemm_Bias_Relu_CastF32_f16_nchw_f32"
    net = Net({"x": (2, 32, 9, 11)})
    y = net.node("HardSwish", net.conv("x", 32, 16, 3, strides=[2, 1], pads=[0, 1, 2, 1]))
    y = net.node("Sigmoid", net.conv(net.node("Relu", net.conv(y, 16, 32, bias=False)), 32, 8))
    found["three layers"] = (
        net,
        y,
        "FusedConv_Bias_HardSwish_Gemm_Relu_Gemm_Bias_Sigmoid_CastF32_f16",
    )
    net = Net({"x": (2, 64, 8, 8), "r": (2, 64, 8, 8)})
    y = net.conv(net.node("Relu", net.conv("x", 64, 16, 3, **SAME)), 16, 64)
    found["residual"] = (
        net,
        net.node("Relu", net.node("Add", y, "r")),
        "FusedConv_Bias_Relu_Gemm_Bias_Add_Relu_CastF32_f16",
    )
    return found


@pytest.mark.parametrize("name", chains())
def test_bodies_compute_what_the_original_does(name: str) -> None:
    net, y, op = chains()[name]
    optimized = assert_same(net.model(y), 3e-3, "fp16", arch=90)
    assert [each for each in ops(optimized) if each.startswith("Fused")] == [op]


def test_a_problem_knows_its_layers() -> None:
    net, y = pair(64, 60, 256)
    (candidate,) = cover(prepare(net.model(y), "fp16"), [90])[0]
    problem = problem_of(candidate, None)
    assert isinstance(problem, ConvProblem)
    # inner channels are padded whatever reads the output
    assert (problem.inner, problem.k) == ((64,), 256)
    assert problem.description.startswith("conv 32x56x56x64 to 64-256, 3x3")
    first, last = problem.layers
    assert (first.k, first.r, first.chain, last.c, last.k, last.r, last.chain) == (
        64,
        3,
        ("Bias", "Relu"),
        64,
        256,
        1,
        ("Bias", "Relu"),
    )
    assert problem.flops == first.flops + last.flops
    assert [problem_of(layer, None).rows for layer in candidate.layers] == [problem.rows] * 2


def test_layers_without_a_kernel_for_what_is_stored_are_by_themselves() -> None:
    """13 channels that something else computes with as they are: TMA cannot."""
    net = Net({"x": (2, 8, 16, 16)})
    shared = net.node("Relu", net.conv("x", 8, 13, 3, **SAME))
    y = net.node("Relu", net.conv(net.node("Relu", net.conv(shared, 13, 16, 3, **SAME)), 16, 16))
    graph = prepare(net.model(y, net.node("Softmax", net.node("Abs", shared), axis=1)), "fp16")
    assert [c.rule.removesuffix("+CastF32") for c in cover(graph, [90])[0]] == [
        "conv+Bias+Relu"
    ] * 3
    alone = {candidate.anchor.node: candidate for candidate in partition(match(graph)[0])}
    together = partition(match(graph, several=True)[0])
    layers = tuple(
        candidate
        for key, candidate in alone.items()
        if key not in {c.anchor.node for c in together[:1]}
    )
    together = [dataclasses.replace(c, layers=layers) if len(c.widths) > 1 else c for c in together]
    planned = plan(graph, together, [90], "all")
    assert len(planned.candidates) == 3
    assert any(
        "no kernel computes its layers together" in refusal.reason for refusal in planned.refusals
    )
    assert not any(
        row.family is named("b2b_conv_sm90") for rows in planned.configs.values() for row in rows
    )
