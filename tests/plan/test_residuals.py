"""Residuals in front of normalizations: the product or the normalization adds them, whichever is
faster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import onnx
import onnx_graphsurgeon as gs
import pytest

from onnxbolt.errors import FrozenError
from onnxbolt.measurements.timings import NOTHING, Choice, Timings
from onnxbolt.plan.cost import predict
from onnxbolt.plan.cuts import cover, cover_as, segments
from onnxbolt.problems import NormProblem, Problem
from tests.support import Net, prepare

ROWS, WIDTH, DEPTH = 1280, 768, 3072
PRODUCT_ADDS = ["gemm+Bias+Add", "layer_norm+Scale+Bias"]
NORM_ADDS = ["gemm+Bias", "layer_norm+Add+Scale+Bias"]
NORM_ADDS_AND_STORES = ["gemm+Bias", "layer_norm+Add+Store+Scale+Bias"]


def _graph(second_reader: bool = False) -> gs.Graph:
    """The end of a transformer's MLP, and the norm behind it; in a pre-norm model the next residual
    reads the sum, too."""
    net = Net({"x": (ROWS, DEPTH), "r": (ROWS, WIDTH)})
    total = net.node("Add", net.node("Tanh", "r"), net.linear("x", DEPTH, WIDTH))
    y = net.node("LayerNormalization", total, net.normal(WIDTH), net.normal(WIDTH))
    return prepare(net.model(net.node("Mul", y, total) if second_reader else y), "fp16")


def _rules(graph: gs.Graph, timings: Timings = NOTHING) -> list[str]:
    return [c.rule for c in cover(graph, (90,), timings=timings).candidates]


def _timings(graph: gs.Graph, faster: str) -> Timings:
    """Measured times of all four kernels, with which the pair whose chain has `faster` wins by
    two microseconds."""
    choices = {}
    for problem in segments(graph, (90,)):
        us = 5.0 if faster in _words(problem) else 7.0
        choices[problem, 90] = Choice(predict(problem, 90)[0], us, measured=True)
    return Timings(choices)


def _words(problem: Problem) -> str:
    adds = isinstance(problem, NormProblem) == ("Add" in problem.chain)
    return "norm adds" if adds else "product adds"


@pytest.mark.parametrize("second_reader", [False, True])
def test_the_faster_pair_of_kernels_is_taken(second_reader: bool) -> None:
    graph = _graph(second_reader)
    assert len(set(segments(graph, (90,)))) == 4
    norm_adds = NORM_ADDS_AND_STORES if second_reader else NORM_ADDS
    assert _rules(graph, _timings(graph, "product adds")) == PRODUCT_ADDS
    assert _rules(graph, _timings(graph, "norm adds")) == norm_adds


def test_predictions_decide_without_measurements() -> None:
    for second_reader in (False, True):
        graph = _graph(second_reader)
        times = {"norm adds": 0.0, "product adds": 0.0}
        for problem in dict.fromkeys(segments(graph, (90,))):
            times[_words(problem)] += predict(problem, 90)[1]
        product = times["product adds"] <= times["norm adds"]
        assert (_rules(graph) == PRODUCT_ADDS) == product


def test_decisions_of_a_lock_file_are_kept() -> None:
    graph = _graph()
    for faster, rules in (("product adds", PRODUCT_ADDS), ("norm adds", NORM_ADDS)):
        cuts = cover(graph, (90,), timings=_timings(graph, faster)).cuts
        assert _rules(graph, Timings(cuts=cuts, frozen=True)) == rules
    with pytest.raises(FrozenError, match="adds the residual of gemm 1280x768x3072"):
        cover(graph, (90,), timings=Timings(frozen=True))


def test_another_plan_s_ends_are_kept() -> None:
    graph = _graph()
    for faster, rules in (("product adds", PRODUCT_ADDS), ("norm adds", NORM_ADDS)):
        candidates = cover(graph, (90,), timings=_timings(graph, faster)).candidates
        ends = {candidate.output.name for candidate in candidates}
        assert [candidate.rule for candidate in cover_as(graph, (90,), ends)] == rules


def test_the_later_of_two_products_adds_the_earlier_one() -> None:
    net = Net({"x": (ROWS, WIDTH), "r": (ROWS, WIDTH)})
    total = net.node("Add", net.linear("x", WIDTH, WIDTH), net.linear("r", WIDTH, WIDTH))
    y = net.node("LayerNormalization", total, net.normal(WIDTH), net.normal(WIDTH))
    graph = prepare(net.model(y), "fp16")
    assert _rules(graph, _timings(graph, "product adds")) == ["gemm+Bias", *PRODUCT_ADDS]
    assert _rules(graph, _timings(graph, "norm adds")) == ["gemm+Bias", *NORM_ADDS]


def test_without_a_product_the_normalization_adds_it() -> None:
    net = Net({"x": (ROWS, WIDTH), "r": (ROWS, WIDTH)})
    total = net.node("Add", net.node("Tanh", "x"), "r")
    y = net.node("LayerNormalization", total, net.normal(WIDTH), net.normal(WIDTH))
    assert _rules(prepare(net.model(y), "fp16")) == NORM_ADDS[1:]


@pytest.mark.parametrize(
    ("name", "read_further"), [("bert_base.ts", 0), ("timm_vit_base_patch16_224.ts", 23)]
)
def test_a_transformer_s_residuals_are_added_where_that_is_faster(
    zoo: Callable[[str], onnx.ModelProto], name: str, read_further: int
) -> None:
    """The first of 25 norms is the embeddings' or the tokens'. A post-norm model's sums have one
    reader; those of a pre-norm model but the last one have two."""
    graph = prepare(zoo(name), "fp16")
    by_products = Counter(_rules(graph, _timings(graph, "product adds")))
    by_norms = Counter(_rules(graph, _timings(graph, "norm adds")))
    assert by_products["gemm+Add"] == 24
    assert by_products["layer_norm+Scale+Bias"] == 24
    assert by_norms["layer_norm+Add+Store+Scale+Bias"] == read_further
    assert by_norms["layer_norm+Add+Scale+Bias"] == 24 - read_further
    assert by_norms["layer_norm+Scale+Bias"] == 0
