"""Gated linear units as one product: which are recognized, what their nodes compute, and why others
stay two products."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxbolt
from onnxbolt.candidates import Refusal
from onnxbolt.dtypes import DType
from onnxbolt.errors import FrozenError, InputError
from onnxbolt.graph import weights
from onnxbolt.measurements.timings import Choice, Timings
from onnxbolt.opspec import OpSpec
from onnxbolt.plan.cost import predict
from onnxbolt.plan.cuts import cover, cover_as, segments
from onnxbolt.problems import GluProblem
from tests.support import Net, assert_same, ops, prepare

K, N = 64, 256
Activation = Callable[[Net, str], str]


def silu(net: Net, x: str) -> str:
    return net.node("Mul", x, net.node("Sigmoid", x))


def gelu(net: Net, x: str) -> str:
    halves = net.node("Erf", net.node("Div", x, net.const(2**0.5)))
    return net.node(
        "Mul", net.node("Mul", x, net.node("Add", halves, net.const(1))), net.const(0.5)
    )


def sigmoid(net: Net, x: str) -> str:
    return net.node("Sigmoid", x)


def leaky(net: Net, x: str) -> str:
    return net.node("LeakyRelu", x, alpha=0.2)


def nothing(net: Net, x: str) -> str:
    return x


def product(net: Net, x: str, bias: bool, n: int = N) -> str:
    y = net.node("MatMul", x, net.normal(K, n, scale=K**-0.5))
    return net.node("Add", y, net.normal(n)) if bias else y


def unit(
    activation: Activation, gate_bias: bool = False, bias: bool = False, n: int = N
) -> tuple[Net, str]:
    net = Net({"x": (2, 160, K)})
    gate = activation(net, product(net, "x", gate_bias, n))
    return net, net.node("Mul", gate, product(net, "x", bias, n))


def found(
    model: onnx.ModelProto, precision: str = "fp16", archs: tuple[int, ...] = (90,)
) -> tuple[list[str], list[Refusal]]:
    candidates, refusals, *_ = cover(prepare(model, precision), archs)
    rules = [candidate.rule.removesuffix("+CastF32") for candidate in candidates]
    return rules, [refusal for refusal in refusals if refusal.apart]


FORMS = [
    (silu, False, False, "glu+Silu+Gate"),
    (silu, True, False, "glu+Bias+Silu+Gate"),
    (silu, False, True, "glu+Silu+GateBias"),
    (silu, True, True, "glu+Bias+Silu+GateBias"),
    (gelu, False, False, "glu+GeluErf+Gate"),
    (gelu, True, True, "glu+Bias+GeluErf+GateBias"),
    (sigmoid, True, True, "glu+Bias+Sigmoid+GateBias"),
    (leaky, False, True, "glu+LeakyRelu+GateBias"),
    (nothing, False, False, "glu+Gate"),
    (nothing, True, False, "glu+Bias+Gate"),
    (nothing, False, True, "glu+Bias+Gate"),
    (nothing, True, True, "glu+Bias+GateBias"),
]


@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
@pytest.mark.parametrize(("activation", "gate_bias", "bias", "rule"), FORMS)
def test_both_factors_are_one_product(
    activation: Activation, gate_bias: bool, bias: bool, rule: str, precision: str
) -> None:
    net, y = unit(activation, gate_bias, bias)
    assert found(net.model(y), precision) == ([rule], [])


@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
@pytest.mark.parametrize(("activation", "gate_bias", "bias", "rule"), FORMS)
def test_the_body_computes_the_unit(
    activation: Activation, gate_bias: bool, bias: bool, rule: str, precision: str
) -> None:
    net, y = unit(activation, gate_bias, bias)
    limit = {"fp16": 2e-3, "bf16": 2e-2, "keep": 1e-6}[precision]
    optimized = assert_same(net.model(y), limit, precision, arch=90)
    names = [name for name in ops(optimized) if name != "Cast"]
    assert [name.startswith("FusedGlu_") for name in names] == [True], names


def test_steps_may_follow_the_gate() -> None:
    net, y = unit(silu, True, True)
    net.inputs += Net({"residual": (2, 160, N)}).inputs
    y = net.node("Add", net.node("Mul", y, net.normal(N)), "residual")
    optimized = assert_same(net.model(net.node("Relu", y)), arch=90)
    assert ops(optimized) == ["FusedGlu_Bias_Silu_GateBias_Scale_Add_Relu_f32"]


@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
def test_the_whole_model_is_verified(precision: str) -> None:
    net, y = unit(gelu, True, True)
    model = net.model(net.node("MatMul", y, net.normal(N, 512)))
    report = onnxbolt.optimize(
        model, precision=precision, archs=("sm_90a",), fuse="all", library=False
    )
    assert "glu+Bias+GeluErf+GateBias" in [node.rule for node in report.fused]
    assert report.passed


def test_a_packed_product_is_one_again() -> None:
    net = Net({"x": ("batch", "tokens", K)}, opset=18)
    both = net.node("Add", net.node("MatMul", "x", net.normal(K, 2 * N)), net.normal(2 * N))
    gate, factor = net.several("Split", both, outputs=2, axis=-1, num_outputs=2)
    model = net.model(net.node("Mul", silu(net, gate), factor))
    assert found(model) == (["glu+Bias+Silu+GateBias"], [])
    assert_same(model, 1e-6, arch=90)


def test_a_large_weight_is_packed_when_it_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "LARGE", 64)
    net, y = unit(silu)
    assert_same(net.model(y), 1e-6, arch=90)


def _two_inputs() -> tuple[Net, str]:
    net = Net({"x": (2, 160, K), "z": (2, 160, K)})
    return net, net.node("Mul", silu(net, product(net, "x", True)), product(net, "z", True))


def _two_activations() -> tuple[Net, str]:
    net = Net({"x": (2, 160, K)})
    factors = (silu(net, product(net, "x", True)) for _ in range(2))
    return net, net.node("Mul", *factors)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (_two_inputs(), "they have different inputs"),
        (_two_activations(), "both have an activation"),
        (unit(silu, n=100), "their columns are no multiple of 8: 100"),
    ],
    ids=["inputs", "activations", "columns"],
)
def test_others_stay_two_products(made: tuple[Net, str], reason: str) -> None:
    net, y = made
    rules, (refusal,) = found(net.model(y))
    assert [rule.partition("+")[0] for rule in rules] == ["gemm", "gemm"]
    assert refusal.op == "Mul"
    assert refusal.reason == f"its factors are not one product, because {reason}"


def test_a_factor_that_others_read_stays_a_product() -> None:
    net = Net({"x": (2, 160, K)})
    factor = product(net, "x", False)
    y = net.node("Mul", silu(net, product(net, "x", False)), factor)
    assert found(net.model(y, factor))[0] == ["gemm", "gemm+Silu+Mul"]


def test_all_architectures_need_a_kernel() -> None:
    net, y = unit(silu)
    rules, (refusal,) = found(net.model(y), archs=(80, 90))
    assert rules == ["gemm+Silu+Mul", "gemm"]
    assert "no kernel computes both: glu 320x2x256x64, f16 to f32, Silu+Gate" in refusal.reason


def test_measured_times_decide() -> None:
    net, y = unit(silu)
    graph = prepare(net.model(y), "keep")
    both, first, second = segments(graph, (90,))
    assert isinstance(both, GluProblem)
    assert (first, second) == both.apart
    choices = {
        (problem, 90): Choice(predict(problem, 90)[0], us)
        for problem, us in ((both, 30.0), (first, 5.0), (second, 6.0))
    }
    measured = cover(graph, (90,), timings=Timings(choices))
    assert [candidate.rule for candidate in measured.candidates] == ["gemm+Silu+Mul", "gemm"]
    refusal = measured.refusals[-1]
    assert "one kernel for both was measured to be slower" in refusal.reason
    assert refusal.values == {"together_us": 30.0, "apart_us": 11.0}
    later = cover(graph, (90,), timings=Timings(cuts=measured.cuts))
    assert [candidate.rule for candidate in later.candidates] == ["gemm+Silu+Mul", "gemm"]
    assert "as decided before" in later.refusals[-1].reason
    with pytest.raises(FrozenError, match="lacks whether one kernel computes glu"):
        cover(graph, (90,), timings=Timings(frozen=True))


@pytest.mark.parametrize("known", [0, 1, 2])
def test_a_measured_time_is_not_compared_with_predicted_ones(known: int) -> None:
    net, y = unit(silu)
    graph = prepare(net.model(y), "keep")
    problem = segments(graph, (90,))[known]
    slow = Choice(predict(problem, 90)[0], 1000.0 if known == 0 else 0.001)
    (candidate,) = cover(graph, (90,), timings=Timings({(problem, 90): slow})).candidates
    assert candidate.rule == "glu+Silu+Gate"


def test_another_plan_is_repeated_by_its_outputs() -> None:
    net, y = unit(silu, bias=True)
    graph = prepare(net.model(y), "keep")
    (together,) = cover(graph, (90,)).candidates
    apart = [layer.output.name for layer in together.layers]
    for ends in ([together.output.name], apart):
        again = cover_as(graph, (90,), ends)
        assert sorted(c.output.name for c in again) == sorted(ends)


GATED, CHAINED = ["gemm", "glu+Silu+Gate"], ["gemm", "gemm+Silu+Mul+Gemm"]


@pytest.mark.parametrize(("both", "rules"), [(3.0, GATED), (9.0, CHAINED)])
def test_a_unit_is_compared_with_a_chain_that_has_its_product(
    both: float, rules: list[str]
) -> None:
    """Apart are the first factor's product, and the chain of the second factor's with what follows
    it; together the unit, and what follows."""
    net, y = unit(silu)
    graph = prepare(net.model(net.node("MatMul", y, net.normal(N, K))), "fp16")
    problems = dict.fromkeys(segments(graph, (90,)))
    choices = {
        (problem, 90): Choice(
            predict(problem, 90)[0], both if isinstance(problem, GluProblem) else 4.0
        )
        for problem in problems
    }
    found = cover(graph, (90,), timings=Timings(choices))
    assert sorted(c.rule.removesuffix("+CastF32") for c in found.candidates) == rules
    refused = [refusal.values for refusal in found.refusals if refusal.op == "Mul"]
    assert refused == ([] if both < 4 else [{"together_us": both + 4, "apart_us": 8.0}])
    again = cover(graph, (90,), timings=Timings(cuts=found.cuts, frozen=True))
    assert [c.rule for c in again.candidates] == [c.rule for c in found.candidates]
    ends = {candidate.output.name for candidate in found.candidates}
    assert {c.rule for c in cover_as(graph, (90,), ends)} == {c.rule for c in found.candidates}


def test_predictions_take_a_product_out_of_a_chain() -> None:
    net, y = unit(silu)
    model = net.model(net.node("MatMul", y, net.normal(N, K)))
    assert found(model) == (["glu+Silu+Gate", "gemm"], [])
    assert_same(model, 1e-6, arch=90)


def test_a_chain_that_ends_with_a_factor_is_compared() -> None:
    """Both factors read the result of a product, which a chain with one of them would store."""
    net = Net({"x": (2, 160, K)})
    x = net.node("Relu", product(net, "x", True, K))
    gate, factor = silu(net, product(net, x, False)), product(net, x, False)
    model = net.model(net.node("Mul", gate, factor))
    assert sorted(found(model)[0]) == ["gemm+Bias+Relu", "glu+Silu+Gate"]
    assert_same(model, 1e-6, arch=90)


@pytest.mark.parametrize(("kind", "chain"), [("glu", ("Bias", "Silu")), ("gemm", ("Gate",))])
def test_a_kind_and_its_gates_have_to_agree(kind: str, chain: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="gates, but nodes of the kind"):
        OpSpec("FusedSomething_f16", kind, DType.F16, DType.F16, chain)


def test_one_product_is_predicted_to_take_less_time() -> None:
    for m, n, k in ((16_384, 1152, 768), (4096, 8192, 2048), (512, 3072, 768)):
        problem = GluProblem(m, n, k, DType.F16, DType.F16, ("Silu", "Gate"))
        apart = sum(predict(each, 90)[1] for each in problem.apart)
        assert 0.5 * apart < predict(problem, 90)[1] < apart
        assert problem.flops == sum(each.flops for each in problem.apart)
        saved = sum(each.bytes_moved for each in problem.apart) - problem.bytes_moved
        assert saved == 2 * (m * k + 2 * m * n)  # x once, and the factor, written and read


def test_three_factors_are_one_product_and_another() -> None:
    net = Net({"x": (2, 160, K)})
    first, second, third = (product(net, "x", False) for _ in range(3))
    model = net.model(net.node("Mul", first, net.node("Mul", second, third)))
    optimized = assert_same(model, 1e-6, arch=90)
    assert sorted(name.partition("_")[0] for name in ops(optimized)) == ["FusedGemm", "FusedGlu"]


def test_a_lock_file_repeats_the_decision(tmp_path: Path) -> None:
    net, y = unit(silu, True, True)
    model = net.model(y)
    choices: dict[str, Any] = {"archs": ("sm_90a",), "library": False, "verify": False}
    lock = str(tmp_path / "model.lock")
    onnxbolt.optimize(model, tmp_path / "first.onnx", fuse="all", lock=lock, **choices)
    assert "glu 320x2x256x64" in Path(lock).read_text()
    again = onnxbolt.optimize(
        model, tmp_path / "again.onnx", fuse="all", lock=lock, frozen=True, **choices
    )
    assert [node.rule for node in again.fused] == ["glu+Bias+Silu+GateBias+CastF32"]


@pytest.mark.parametrize("rows", [1, 64, 4096])
def test_a_unit_that_wins_is_fused_by_default(rows: int) -> None:
    net = Net({"x": (rows, K)})
    gate = silu(net, product(net, "x", False, 2048))
    model = net.model(net.node("Mul", gate, product(net, "x", False, 2048)))
    report = onnxbolt.optimize(model, archs=("sm_90a",), library=False)
    assert [node.rule for node in report.fused] == ["glu+Silu+Gate+CastF32"]
    assert report.passed
