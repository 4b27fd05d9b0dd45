"""Cutting chains of GEMMs: layers that pay share a kernel, others keep their own."""
from __future__ import annotations

import itertools

import pytest

from onnxbolt.plan.cost import predict
from onnxbolt.plan.cuts import cover
from onnxbolt.plan.problems import problem_of
from tests.support import Net, assert_same, ops, prepare


def rules(net: Net, *outputs: str, archs: tuple[int, ...] = (90,)) -> list[str]:
    graph = prepare(net.model(*outputs), "fp16")
    return [candidate.rule.removesuffix("+CastF32") for candidate in cover(graph, archs)[0]]


def mlp(rows: int, *widths: int) -> tuple[Net, str]:
    net = Net({"x": (rows, widths[0])})
    y = "x"
    for k, n in itertools.pairwise(widths):
        y = net.node("Relu", net.linear(y, k, n))
    return net, y


WIDTHS = [(256, 64, 16), (256, 64, 16, 8), (96, 32, 96), (429, 256, 64, 16), (64, 32, 1)]


@pytest.mark.parametrize("widths", WIDTHS)
def test_narrow_layers_share_a_kernel(widths: tuple[int, ...]) -> None:
    net, y = mlp(16384, *widths)
    assert rules(net, y) == ["gemm+" + "+Gemm+".join(["Bias+Relu"] * (len(widths) - 1))]


@pytest.mark.parametrize("widths", [*WIDTHS, (40, 12, 20, 5)])
def test_bodies_of_several_layers_compute_what_the_original_does(widths: tuple[int, ...]) -> None:
    net, y = mlp(16384 if max(widths) < 429 else 2048, *widths)
    optimized = assert_same(net.model(y), 2e-3, "fp16", arch=90)
    assert [op.split("_")[0] for op in ops(optimized) if op.startswith("Fused")] == ["FusedGemm"]


def test_wide_layers_and_other_architectures_have_no_kernel_for_several() -> None:
    net, y = mlp(128, 768, 3072, 768)
    assert rules(net, y) == ["gemm+Bias+Relu"] * 2
    net, y = mlp(16384, 256, 64, 16)
    assert rules(net, y, archs=(80,)) == rules(net, y, archs=(80, 90)) == ["gemm+Bias+Relu"] * 2


def test_an_inner_result_that_is_used_elsewhere_ends_the_kernel() -> None:
    net = Net({"x": (16384, 256)})
    inner = net.node("Relu", net.node("MatMul", "x", net.normal(256, 64)))
    assert rules(net, net.node("MatMul", inner, net.normal(64, 16)), inner) == ["gemm+Relu", "gemm"]


def test_a_residual_behind_the_last_layer_keeps_it_apart() -> None:
    net = Net({"x": (16384, 256), "r": (16384, 16)})
    inner = net.node("Relu", net.node("MatMul", "x", net.normal(256, 64)))
    y = net.node("Add", net.node("MatMul", inner, net.normal(64, 16)), "r")
    assert rules(net, y) == ["gemm+Relu", "gemm+Add"]


def test_the_cover_is_the_cheapest_one() -> None:
    net, y = mlp(16384, 256, 256, 256, 64, 16)
    found = cover(prepare(net.model(y), "fp16"), [90])[0]
    chosen = sum(predict(problem_of(candidate, None), 90)[1] for candidate in found)
    alone = [layer for candidate in found for layer in problem_of(candidate, None).layers]  # type: ignore[union-attr]
    assert sum(len(candidate.widths) for candidate in found) == 4
    assert chosen <= sum(predict(layer, 90)[1] for layer in alone)
