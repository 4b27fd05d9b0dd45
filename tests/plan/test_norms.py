"""Normalizations of rows that the product before them computes itself, where that is faster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import onnx
import onnx_graphsurgeon as gs
import pytest

from onnxbolt.errors import FrozenError
from onnxbolt.families import named
from onnxbolt.measurements.timings import NOTHING, Choice, Timings
from onnxbolt.plan.cost import predict
from onnxbolt.plan.cuts import Cover, cover, cover_as, segments
from onnxbolt.problems import GemmNormProblem, GemmProblem, NormProblem
from tests.support import Net, planned, prepare

ROWS, DEPTH, WIDTH = 1280, 3072, 768
TOGETHER = ["gemm+Bias+Add+LayerNorm+Scale+Bias"]
TOGETHER_STORED = ["gemm+Bias+Add+Store+LayerNorm+Scale+Bias"]
APART = ["gemm+Bias+Add", "layer_norm+Scale+Bias"]
NORM_ADDS = ["gemm+Bias", "layer_norm+Add+Scale+Bias"]


@pytest.fixture(autouse=True)
def _planned() -> Iterator[None]:
    with planned(named("gemm_norm_sm90")):
        yield


def _graph(
    *also: str, width: int = WIDTH, precision: str = "fp16", first: bool = False
) -> gs.Graph:
    """The end of a transformer's MLP, and the norm behind it; `also`: "read" where others read the
    sum, "output" where it is a graph output. `first`: the product is the first operand."""
    net = Net({"x": (ROWS, DEPTH), "r": (ROWS, width)})
    residual, product = net.node("Tanh", "r"), net.linear("x", DEPTH, width)
    total = net.node("Add", *((product, residual) if first else (residual, product)))
    y = net.node("LayerNormalization", total, net.normal(width), net.normal(width))
    outputs = [net.node("Mul", y, total) if "read" in also else y]
    outputs += [total] if "output" in also else []
    return prepare(net.model(*outputs), precision)


def _rules(graph: gs.Graph, timings: Timings = NOTHING) -> list[str]:
    return [c.rule for c in cover(graph, (90,), timings=timings).candidates]


def _timings(graph: gs.Graph, together: float, apart: float, **fields: float) -> Timings:
    """Measured microseconds of one kernel for both, and of each of two; `without` the residual in
    the product."""
    choices = {}
    for problem in segments(graph, (90,)):
        us = together if isinstance(problem, GemmNormProblem) else apart
        if ("Add" in problem.chain) == isinstance(problem, NormProblem):
            us += fields.get("without", 0.0)
        choices[problem, 90] = Choice(predict(problem, 90)[0], us, measured=True)
    return Timings(choices)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
def test_the_faster_way_is_taken(precision: str, first: bool) -> None:
    graph = _graph(precision=precision, first=first)
    assert _rules(graph, _timings(graph, 7.0, 4.0)) == TOGETHER
    assert _rules(graph, _timings(graph, 9.0, 4.0)) == APART


@pytest.mark.parametrize("also", ["read", "output"])
def test_a_sum_that_others_read_is_a_second_output(also: str) -> None:
    graph = _graph(also)
    found = cover(graph, (90,), timings=_timings(graph, 7.0, 4.0)).candidates
    assert [c.rule for c in found] == TOGETHER_STORED
    assert found[0].stored is not None
    assert [layer.rule for layer in found[0].layers] == APART


@pytest.mark.parametrize("first", [False, True])
def test_a_residual_that_the_norm_adds_becomes_the_product_s(first: bool) -> None:
    graph = _graph(first=first)
    assert _rules(graph, _timings(graph, 9.0, 4.0, without=-1.0)) == NORM_ADDS
    timings = _timings(graph, 5.0, 4.0, without=-1.0)
    both = {
        problem: choice
        for problem, choice in timings.choices.items()
        if not isinstance(problem[0], GemmNormProblem)
    }
    (candidate,) = cover(graph, (90,), timings=timings).candidates
    assert candidate.rule == TOGETHER[0]
    assert [tensor.name for tensor in candidate.tensors] != [candidate.output.name]
    assert len(both) == 4


@pytest.mark.parametrize("faster", [True, False])
def test_a_chain_s_last_product_may_normalize(faster: bool) -> None:
    """Apart are a chain of two products and the norm; together the first product, and the second
    one with the norm."""
    net = Net({"x": (ROWS, 256)})
    inner = net.node("Relu", net.linear("x", 256, 256))
    y = net.node("LayerNormalization", net.linear(inner, 256, 256), *[net.normal(256)] * 2)
    graph = prepare(net.model(y), "fp16")
    timings = _timings(graph, 3.0 if faster else 9.0, 4.0)
    found = cover(graph, (90,), timings=timings)
    rules = [c.rule.removesuffix("+CastF32") for c in found.candidates]
    together = ["gemm+Bias+Relu", "gemm+Bias+LayerNorm+Scale+Bias"]
    assert rules == (together if faster else ["gemm+Bias+Relu+Gemm+Bias", APART[1]])
    again = cover(graph, (90,), timings=Timings(cuts=found.cuts, frozen=True))
    assert [c.rule for c in again.candidates] == [c.rule for c in found.candidates]
    ends = {candidate.output.name for candidate in found.candidates}
    assert [c.rule for c in cover_as(graph, (90,), ends)] == [c.rule for c in found.candidates]


def test_predictions_decide_without_measurements() -> None:
    graph = _graph()
    both, product, norm = (
        next(p for p in segments(graph, (90,)) if isinstance(p, kind) and "Bias" in p.chain)
        for kind in (GemmNormProblem, GemmProblem, NormProblem)
    )
    assert isinstance(both, GemmNormProblem)
    times = [predict(problem, 90)[1] for problem in (both, both.product, both.norm)]
    assert _rules(graph) == (TOGETHER if times[0] <= times[1] + times[2] else APART)
    assert (product.columns, norm.columns) == (WIDTH, WIDTH)


def test_a_measured_time_is_not_compared_with_predicted_ones() -> None:
    graph = _graph()
    timings = _timings(graph, 1000.0, 4.0)
    some = {p: c for p, c in timings.choices.items() if isinstance(p[0], GemmNormProblem)}
    assert _rules(graph, Timings(some)) == _rules(graph)


def _refused(found: Cover) -> tuple[str, dict[str, float]]:
    (refusal,) = (r for r in found.refusals if r.op == "LayerNormalization")
    assert refusal.apart
    return refusal.reason, refusal.values


def test_the_report_says_why_they_are_apart() -> None:
    graph = _graph()
    slower = cover(graph, (90,), timings=_timings(graph, 9.0, 4.0))
    reason, values = _refused(slower)
    assert "measured to be slower" in reason
    assert values == {"together_us": 9.0, "apart_us": 8.0}
    later = cover(graph, (90,), timings=replace(_timings(graph, 7.0, 4.0), cuts=slower.cuts))
    assert "as decided before" in _refused(later)[0]
    assert (
        "no kernel computes both: rows of 4096 columns"
        in _refused(cover(_graph(width=4096), (90,)))[0]
    )
    assert "no kernel computes both" in _refused(cover(graph, (80, 90)))[0]


def test_a_frozen_lock_decides_alone() -> None:
    graph = _graph()
    for together, rules in ((7.0, TOGETHER), (9.0, APART)):
        cuts = cover(graph, (90,), timings=_timings(graph, together, 4.0)).cuts
        assert _rules(graph, Timings(cuts=cuts, frozen=True)) == rules
    only = {k: c for k, c in cuts.items() if "layer norm, f16, Bias" not in c.chain}
    with pytest.raises(FrozenError, match="whether one kernel computes gemm 1280x768x3072, layer"):
        cover(graph, (90,), timings=Timings(cuts=only, frozen=True))


@pytest.mark.parametrize("also", ["", "read"])
def test_another_plan_s_ends_are_kept(also: str) -> None:
    graph = _graph(also)
    for together in (7.0, 9.0):
        timings = _timings(graph, together, 4.0)
        candidates = cover(graph, (90,), timings=timings).candidates
        ends = {candidate.output.name for candidate in candidates}
        assert [c.rule for c in cover_as(graph, (90,), ends)] == [c.rule for c in candidates]


def test_a_product_that_others_read_without_the_residual_stays_apart() -> None:
    net = Net({"x": (ROWS, DEPTH), "r": (ROWS, WIDTH)})
    product = net.linear("x", DEPTH, WIDTH)
    total = net.node("Add", net.node("Tanh", "r"), product)
    y = net.node("LayerNormalization", total, net.normal(WIDTH), net.normal(WIDTH))
    graph = prepare(net.model(net.node("Mul", y, product)), "fp16")
    assert not any(isinstance(p, GemmNormProblem) for p in segments(graph, (90,)))


def test_more_vectors_than_a_kernel_takes_stay_apart() -> None:
    net = Net({"x": (ROWS, DEPTH)})
    product = net.node("Tanh", net.linear("x", DEPTH, WIDTH))
    for op in ("Mul", "Add"):
        product = net.node(op, product, net.normal(WIDTH))
    y = net.node("LayerNormalization", product, net.normal(WIDTH), net.normal(WIDTH))
    rules = ["gemm+Bias+Tanh+Scale+Bias", "layer_norm+Scale+Bias"]
    assert _rules(prepare(net.model(y), "fp16")) == rules


def test_a_norm_of_another_tensor_is_not_the_product_s() -> None:
    net = Net({"x": (ROWS, DEPTH)})
    rows = net.node("Reshape", net.linear("x", DEPTH, WIDTH), net.const([-1, WIDTH // 2], "int64"))
    y = net.node("LayerNormalization", rows, net.normal(WIDTH // 2), net.normal(WIDTH // 2))
    assert _rules(prepare(net.model(y), "fp16")) == ["gemm+Bias", "layer_norm+Scale+Bias"]


@pytest.mark.parametrize(
    ("name", "norm", "count", "stored"),
    [("bert_base.ts", "LayerNorm", 24, 0), ("timm_vit_base_patch16_224.ts", "LayerNorm", 24, 23)],
)
def test_a_transformer_s_norms_are_computed_by_its_products(
    zoo: Callable[[str], onnx.ModelProto], name: str, norm: str, count: int, stored: int
) -> None:
    """All but the first one, which is the embeddings' or the tokens'. A pre-norm model's sums have
    two readers."""
    graph = prepare(zoo(name), "fp16")
    rules = Counter(_rules(graph, _timings(graph, 1.0, 4.0)))
    both = {rule: n for rule, n in rules.items() if rule.startswith("gemm") and norm in rule}
    assert sum(both.values()) == count
    assert sum(n for rule, n in both.items() if "Store" in rule) == stored
    assert not any(rule.startswith("layer_norm") for rule in rules)
