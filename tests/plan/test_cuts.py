"""Cutting chains of GEMMs: layers that pay share a kernel, others keep their own."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import pytest

from onnxbolt.dtypes import DType
from onnxbolt.errors import FrozenError
from onnxbolt.match.matcher import UNKNOWN
from onnxbolt.measurements.timings import NOTHING, Choice, Comparison, Timings
from onnxbolt.plan.choose import Plan, plan
from onnxbolt.plan.cost import predict
from onnxbolt.plan.cuts import cover, cover_as, segments
from onnxbolt.plan.problems import problem_of
from onnxbolt.problems import GemmProblem
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


@pytest.mark.parametrize(
    ("rows", "widths"),
    [(2048, (13, 512, 256, 64, 16)), (16384, (13, 512, 256, 64, 16)), (16384, (367, 512, 256, 1))],
)
def test_layers_of_512_columns_share_a_kernel(rows: int, widths: tuple[int, ...]) -> None:
    """DLRM's perceptrons."""
    net, y = mlp(rows, *widths)
    assert rules(net, y) == ["gemm+" + "+Gemm+".join(["Bias+Relu"] * (len(widths) - 1))]


@pytest.mark.parametrize("widths", [*WIDTHS, (40, 12, 20, 5)])
def test_bodies_of_several_layers_compute_what_the_original_does(widths: tuple[int, ...]) -> None:
    net, y = mlp(16384 if max(widths) < 429 else 2048, *widths)
    optimized = assert_same(net.model(y), 2e-3, "fp16", arch=90)
    assert [op.split("_")[0] for op in ops(optimized) if op.startswith("Fused")] == ["FusedGemm"]


@pytest.mark.parametrize("archs", [(75,), (80,), (86, 89), (80, 90)])
def test_narrow_layers_share_a_kernel_on_older_architectures(archs: tuple[int, ...]) -> None:
    net, y = mlp(16384, 256, 64, 16)
    assert rules(net, y, archs=archs) == ["gemm+Bias+Relu+Gemm+Bias+Relu"]


def test_wide_layers_have_no_kernel_for_several() -> None:
    net, y = mlp(128, 768, 3072, 768)
    assert rules(net, y) == rules(net, y, archs=(80,)) == ["gemm+Bias+Relu"] * 2


def test_a_cut_for_want_of_shared_memory_is_reported() -> None:
    net, y = mlp(16384, 256, 256, 64)
    _, (cut,), *_ = cover(prepare(net.model(y), "fp16"), [80, 75])
    assert cut.reason.endswith(
        "at these widths: 256 to 256 to 64 (a block needs 74 KB of shared memory, of which sm_75"
        " has 64)"
    )


@pytest.mark.parametrize("archs", [(75,), (80, 90), (90,)])
@pytest.mark.parametrize("widths", [(4, 1, 4), (13, 16, 8, 1)])
def test_narrow_layers_share_a_kernel_on_every_architecture(
    widths: tuple[int, ...], archs: tuple[int, ...]
) -> None:
    net, y = mlp(2464, *widths)
    assert rules(net, y, archs=archs) == [
        "gemm+" + "+Gemm+".join(["Bias+Relu"] * (len(widths) - 1))
    ]


@pytest.mark.parametrize("precision", ["keep", "fp16"])
def test_rows_of_odd_length_are_read_without_padding_the_input(precision: str) -> None:
    net, y = mlp(2464, 13, 16, 4)
    optimized = assert_same(net.model(y), 2e-3, precision, arch=90)
    (fused,) = [op for op in ops(optimized) if op.startswith("Fused")]
    assert fused.endswith("_pad3")
    assert "Pad" not in ops(optimized)


def test_an_inner_result_that_is_used_elsewhere_is_stored_or_ends_the_kernel() -> None:
    net = Net({"x": (16384, 256)})
    inner = net.node("Relu", net.node("MatMul", "x", net.normal(256, 64)))
    y = net.node("MatMul", inner, net.normal(64, 16))
    assert rules(net, y, inner) == ["gemm+Relu+Store+Gemm"]
    assert rules(net, y, inner, archs=(80,)) == ["gemm+Relu", "gemm"]


def test_residuals_stand_behind_the_last_layer() -> None:
    net = Net({"x": (16384, 256), "r": (16384, 16), "inner": (16384, 64)})
    inner = net.node("Relu", net.node("MatMul", "x", net.normal(256, 64)))
    y = net.node("Add", net.node("MatMul", inner, net.normal(64, 16)), "r")
    assert rules(net, y) == ["gemm+Relu+Gemm+Add"]
    optimized = assert_same(net.model(y), 2e-3, "fp16", arch=90)
    assert [op.split("_")[0] for op in ops(optimized) if op.startswith("Fused")] == ["FusedGemm"]
    inner = net.node("Add", net.node("MatMul", "x", net.normal(256, 64)), "inner")
    assert rules(net, net.node("MatMul", inner, net.normal(64, 16)), archs=(80,)) == [
        "gemm+Add",
        "gemm",
    ]


@pytest.mark.parametrize(
    ("hidden", "left"), [(1, ["gemm", "gemm+Bias+Add+Mul"]), (2, ["gemm+Bias+Add+Mul"])]
)
def test_where_no_cover_is_possible_each_layer_is_by_itself(hidden: int, left: list[str]) -> None:
    """No registers hold both residuals, and the tensor between the layers is none of the source,
    so that nothing may end there."""
    net = Net({"x": (16384, 256), "r": (16384, 512), "s": (16384, 512)})
    product = net.node("MatMul", "x", net.normal(256, 512))
    biased = net.node("Add", product, net.normal(512))
    inner = net.node("Relu", biased)
    graph = prepare(
        net.model(net.node("Mul", net.node("Add", net.linear(inner, 512, 512), "r"), "s")), "fp16"
    )
    graph.source_tensors -= {inner, biased, product} if hidden == 2 else {inner, biased}
    found, refusals, *_ = cover(graph, [90])
    assert [candidate.rule.removesuffix("+CastF32") for candidate in found] == left
    assert [refusal.tensor for refusal in refusals if refusal.reason == UNKNOWN] == [product] * (
        hidden - 1
    )


def test_where_a_chain_is_cut_is_reported_with_both_times() -> None:
    net = Net({"x": (1024, 64), "r": (1024, 512), "s": (1024, 512)})
    hidden = net.node("Relu", net.linear(net.node("Relu", net.linear("x", 64, 512)), 512, 512))
    # no registers hold both residuals
    y = net.node("Mul", net.node("Add", net.linear(hidden, 512, 512), "r"), "s")
    graph = prepare(net.model(y), "fp16")
    found, refusals, *_ = cover(graph, [90])
    cuts = [refusal for refusal in refusals if "with the previous layer" in refusal.reason]
    assert sum(len(candidate.widths) for candidate in found) == 3
    assert [(cut.op, cut.tensor) for cut in cuts] == [
        ("MatMul", candidate.output.name) for candidate in found[:-1]
    ]
    slower, impossible = cuts
    assert slower.reason.endswith("is predicted to be slower")
    assert slower.values["together_us"] >= slower.values["apart_us"] > 0
    assert impossible.reason.endswith("previous layer at these widths: 512 to 512 to 512")
    net, y = mlp(16384, 256, 64, 16)
    assert not cover(prepare(net.model(y), "fp16"), [90])[1]


def test_a_kernel_for_several_layers_knows_them_one_by_one() -> None:
    net, y = mlp(16384, 256, 64, 16, 8)
    (chain,) = cover(prepare(net.model(y), "fp16"), [90])[0]
    assert [layer.anchor.channels for layer in chain.layers] == [64, 16, 8]
    assert {node for layer in chain.layers for node in layer.nodes} == set(chain.nodes)
    assert not any(layer.layers for layer in chain.layers)
    problem = problem_of(chain, None)
    assert isinstance(problem, GemmProblem)
    assert [problem_of(layer, None) for layer in chain.layers] == list(problem.layers)


def test_the_layers_of_a_chain_that_loses_are_offered_by_themselves() -> None:
    net, y = mlp(16384, 256, 64, 16)
    model = net.model(y)

    def planned(timings: Timings) -> Plan:
        graph = prepare(model, "fp16")
        return plan(graph, cover(graph, [90])[0], [90], "winning", timings)

    (key,) = planned(NOTHING).used.comparisons
    loses, wins = Comparison(2, 0, 1, 0), Comparison(1, 0, 2, 0)
    lost = planned(Timings(comparisons={key: loses}))
    keys = [region.key for region in lost.lost]
    layers = [each for each in lost.used.comparisons if each != key]
    assert keys[0] == key
    assert len(layers) == 2
    apart = planned(Timings(comparisons={key: loses, layers[0]: wins, layers[1]: loses}))
    assert [candidate.rule for candidate in apart.candidates] == ["gemm+Bias+Relu"]
    assert [refusal.reason for refusal in apart.refusals] == [
        "measured slower than ONNX Runtime, counting its 2 layers in one kernel",
        "measured slower than ONNX Runtime, counting its layout conversions",
    ]
    again = planned(dataclasses.replace(apart.used, frozen=True))
    assert list(again.configs.values()) == list(apart.configs.values())
    doomed = planned(
        Timings(
            comparisons={
                key: dataclasses.replace(loses, reason="the whole model is slower"),
                layers[0]: wins,
            }
        )
    )
    assert not doomed.candidates


def test_the_cover_is_the_cheapest_one() -> None:
    net, y = mlp(16384, 256, 256, 256, 64, 16)
    found = cover(prepare(net.model(y), "fp16"), [90])[0]
    chosen = sum(predict(problem_of(candidate, None), 90)[1] for candidate in found)
    alone = [layer for candidate in found for layer in problem_of(candidate, None).layers]
    assert sum(len(candidate.widths) for candidate in found) == 4
    assert chosen <= sum(predict(layer, 90)[1] for layer in alone)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_kernels_take_no_other_cover_is_cheaper(seed: int) -> None:
    """Against all ways to share up to six layers among kernels, for random times of these."""
    choose = random.Random(seed)
    widths = tuple(choose.choice((16, 64, 128)) for _ in range(choose.randint(3, 7)))
    net, y = mlp(4096, *widths)
    graph = prepare(net.model(y), "fp16")
    times = {
        problem: choose.lognormvariate(1, 0.5) for problem in dict.fromkeys(segments(graph, [90]))
    }
    timings = Timings(
        {(problem, 90): Choice(predict(problem, 90)[0], us) for problem, us in times.items()}
    )
    by_columns = {
        (problem.k, *problem.inner, problem.n, problem.out): us
        for problem, us in times.items()
        if isinstance(problem, GemmProblem)
    }
    assert len(by_columns) == len(times)
    ends = [DType.F16] * (len(widths) - 2) + [DType.F32]  # the type of each layer's result

    def cheapest(start: int) -> float:
        return min(
            (
                by_columns.get((*widths[start : end + 1], ends[end - 1]), math.inf) + cheapest(end)
                for end in range(start + 1, len(widths))
            ),
            default=0.0,
        )

    chosen = cover(graph, [90], timings=timings).candidates
    assert sum(times[problem_of(candidate, None)] for candidate in chosen) == pytest.approx(
        cheapest(0)
    )


def test_a_measured_time_is_compared_with_measured_ones_or_with_corrected_predictions() -> None:
    net, y = mlp(16384, 256, 64, 16)
    graph = prepare(net.model(y), "fp16")
    both = next(problem for problem in segments(graph, [90]) if problem.inner)
    first, second = both.layers

    def kernels(**measured: float) -> int:
        problems = {"both": both, "first": first, "second": second}
        choices = {
            (problems[name], 90): Choice(predict(problems[name], 90)[0], us)
            for name, us in measured.items()
        }
        return len(cover(graph, [90], timings=Timings(choices)).candidates)

    assert kernels() == 1
    assert kernels(both=100.0) == 1  # nothing to compare it with
    assert kernels(both=5.0, first=2.0, second=2.0) == 2
    assert kernels(both=5.0, first=4.0, second=2.0) == 1
    assert kernels(both=5.0, first=0.1) == 2  # the second one's prediction is as much too high
    assert kernels(both=5.0, first=40.0) == 1


def test_a_kernel_that_does_not_run_right_is_in_no_cover() -> None:
    net, y = mlp(16384, 256, 64, 16)
    graph = prepare(net.model(y), "fp16")
    both = next(problem for problem in segments(graph, [90]) if problem.inner)
    assert len(cover(graph, [90], timings=Timings(failed=frozenset({(both, 90)}))).candidates) == 2


def test_a_cut_that_was_decided_stays_and_frozen_ones_are_needed() -> None:
    net, y = mlp(16384, 256, 64, 16)
    graph = prepare(net.model(y), "fp16")
    ((key, cut),) = cover(graph, [90]).cuts.items()
    assert cut.layers == 2
    decided = cover(
        graph, [90], timings=Timings(frozen=True, cuts={key: dataclasses.replace(cut, layers=1)})
    )
    assert [len(candidate.widths) for candidate in decided.candidates] == [1, 1]
    with pytest.raises(FrozenError, match="lacks how many layers of gemm 16384x64-16x256"):
        cover(graph, [90], timings=Timings(frozen=True))


def test_a_cover_is_rebuilt_from_its_ends() -> None:
    net, y = mlp(16384, 256, 64, 16, 8)
    graph = prepare(net.model(y), "fp16")
    apart = [layer.output.name for layer in cover(graph, [90]).candidates[0].layers]
    for ends in ([apart[2]], apart[1:], [apart[0], apart[2]], apart):
        assert [candidate.output.name for candidate in cover_as(graph, [90], ends)] == ends


def test_a_pass_that_pads_rows_counts_where_one_kernel_does_without() -> None:
    net, y = mlp(2048, 429, 256, 64, 16)
    assert rules(net, y) == ["gemm+Bias+Relu+Gemm+Bias+Relu+Gemm+Bias+Relu"]


def test_chains_may_be_longer_than_recursion_is_deep() -> None:
    net, y = mlp(128, *[64] * 400)
    assert (
        sum(rule.count("gemm") + rule.count("Gemm") for rule in rules(net, y, archs=(80,))) == 399
    )
