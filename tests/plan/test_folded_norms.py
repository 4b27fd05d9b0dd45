"""Normalizations between two products that these compute by themselves, where that is faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import numpy_helper

from onnxbolt import optimize
from onnxbolt.candidates import Refusal
from onnxbolt.families import is_unmeasured, named, problem_types
from onnxbolt.families.gemm_sm90 import GemmSm90
from onnxbolt.graph import weights
from onnxbolt.measurements.timings import NOTHING, Choice, Timings
from onnxbolt.plan.choose import Plan
from onnxbolt.plan.cost import predict
from onnxbolt.plan.folded_norms import mergers
from onnxbolt.plan.mergers import Merger
from onnxbolt.plan.planner import planned
from onnxbolt.plan.ranges import AS_IS
from onnxbolt.plan.regions import regions
from onnxbolt.problems import GemmMomentsProblem
from onnxbolt.registry import empty_caches
from onnxbolt.verify import verify
from onnxbolt.verify.session import CPU
from tests.support import Net, prepare

ROWS, WIDTH, WIDE = 448, 128, 640
FOLDED = ["gemm+Bias+Add+Moments", "gemm+FoldedLayerNorm+Bias+Relu"]
NORM = "LayerNormalization"


@pytest.fixture(autouse=True)
def _switched_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Planning may choose kernels that were not measured."""
    with monkeypatch.context() as patch:
        patch.setattr(named("gemm_sm90"), "unmeasured", ())
        empty_caches()
        yield
    empty_caches()


def _rms(net: Net, x: str, width: int) -> str:
    square = net.node("ReduceMean", net.node("Mul", x, x), axes=[-1], keepdims=1)
    deviation = net.node("Sqrt", net.node("Add", square, net.const(1e-5)))
    return net.node("Mul", net.node("Div", x, deviation), net.normal(width))


def _model(
    *also: str, rows: Any = (ROWS,), width: int = WIDTH, gamma: float = 1.0, bias: bool = True
) -> onnx.ModelProto:
    """The end of one half of a transformer's block and the begin of the other; `also`: "rms",
    "read" where a second product reads the normalized rows, "output" where these are a graph
    output, and "plain" for a norm without factors behind a product without residual."""
    net = Net({"x": (*rows, width), "r": (*rows, width)})
    residual = net.node("Tanh", "r")
    total = net.linear("x", width, width)
    if "plain" not in also:
        total = net.node("Add", total, residual)
    factors = [net.const(np.full(width, gamma) * net.rng.uniform(0.5, 1.5, width))]
    factors += [] if "plain" in also else [net.normal(width)]
    y = _rms(net, total, width) if "rms" in also else net.node(NORM, total, *factors)
    inner = net.linear(y, width, WIDE)
    if not bias:
        inner = net.node("MatMul", y, net.normal(width, WIDE, scale=width**-0.5))
    z = net.node("Relu", inner)
    outputs = [net.node("Tanh", net.node("Add", net.linear(z, WIDE, width), total))]
    if "read" in also:
        outputs.append(net.node("Tanh", net.linear(y, width, WIDE)))
    if "output" in also:
        outputs.append(y)
    return net.model(*outputs)


def _graph(*also: str, precision: str = "fp16", **sizes: Any) -> gs.Graph:
    return prepare(_model(*also, **sizes), precision)


def _planned(graph: gs.Graph, timings: Timings = NOTHING, arch: int = 90) -> Plan:
    return planned(graph, (arch,), "all", timings)


def _rules(found: Plan) -> list[str]:
    return [candidate.rule for candidate in found.candidates]


def _apart(graph: gs.Graph, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan without folds."""
    with monkeypatch.context() as patch:
        patch.setattr(named("gemm_sm90"), "unmeasured", (GemmMomentsProblem,))
        empty_caches()
        found = _planned(graph)
    empty_caches()
    return found


def _timings(graph: gs.Graph, found: Plan, together: float, apart: float) -> Timings:
    """Measured microseconds of each of the two kernels, and of each of the three."""
    choices = {}
    (merger,) = (each for each in mergers(graph, found.candidates) if isinstance(each, Merger))
    for us, problems in zip((together, apart), merger.problems(AS_IS), strict=True):
        for problem in problems:
            choices[problem, 90] = Choice(predict(problem, 90)[0], us, measured=True)
    return Timings(choices)


def _refusal(found: Plan) -> Refusal:
    (refusal,) = (r for r in found.refusals if "folded into the next product" in r.reason)
    assert refusal.apart
    assert refusal.op == NORM
    return refusal


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_norm_between_two_products_takes_no_kernel(precision: str) -> None:
    graph = _graph(precision=precision)
    found = _planned(graph)
    assert _rules(found)[:2] == FOLDED
    writer, reader, _ = found.candidates
    assert writer.statistics is not None
    assert reader.anchor.further == (writer.statistics,)
    assert reader.anchor.x is writer.output
    assert found.problems[reader.anchor.node] == GemmMomentsProblem(
        ROWS,
        WIDE,
        WIDTH,
        reader.anchor.dtype,
        reader.anchor.dtype,
        ("FoldedLayerNorm", "Bias", "Relu"),
    )


def test_both_products_are_one_region() -> None:
    found = regions(_planned(_graph()).assignment, 90)
    assert [len(region.candidates) for region in found] == [2, 1]


@pytest.mark.parametrize(
    ("also", "bias", "steps"),
    [
        ("rms", True, "FoldedRmsNorm+Bias+Relu"),
        ("rms", False, "FoldedRmsNorm+Relu"),
        ("plain", True, "FoldedLayerNorm+Bias+Relu"),
        ("plain", False, "FoldedLayerNorm+Relu"),
        ("", False, "FoldedLayerNorm+Bias+Relu"),
    ],
)
def test_steps_of_the_product_that_normalizes(also: str, bias: bool, steps: str) -> None:
    """Beta makes a bias where there is none."""
    assert _rules(_planned(_graph(also, bias=bias)))[1] == f"gemm+{steps}"


def test_a_residual_that_the_norm_adds_becomes_the_first_product_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = _graph()
    rules = _rules(_apart(graph, monkeypatch))
    assert rules[:2] == ["gemm+Bias", "layer_norm+Add+Store+Scale+Bias"]
    assert _rules(_planned(graph))[:2] == FOLDED


def test_the_faster_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = _graph()
    apart = _apart(graph, monkeypatch)
    assert _rules(_planned(graph, _timings(graph, apart, 5.0, 4.0)))[:2] == FOLDED
    slower = _planned(graph, _timings(graph, apart, 7.0, 4.0))
    assert _rules(slower)[:2] == _rules(apart)[:2]
    refusal = _refusal(slower)
    assert "was measured to be slower" in refusal.reason
    assert refusal.values == {"together_us": 14.0, "apart_us": 12.0}


def test_a_decision_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = _graph()
    apart = _apart(graph, monkeypatch)
    slower = _planned(graph, _timings(graph, apart, 7.0, 4.0))
    again = _planned(graph, replace(_timings(graph, apart, 5.0, 4.0), cuts=slower.used.cuts))
    assert "as decided before" in _refusal(again).reason


def test_unmeasured_kernels_are_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = _graph()
    problem = _planned(graph).problems
    found = _apart(graph, monkeypatch)
    assert len(found.candidates) == len(problem) + 1
    assert not any("folded" in refusal.reason for refusal in found.refusals)


def test_they_are_not_measured_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = next(
        p for p in _planned(_graph()).problems.values() if p.chain[0] == "FoldedLayerNorm"
    )
    assert not is_unmeasured(problem)
    monkeypatch.setattr(named("gemm_sm90"), "unmeasured", GemmSm90.unmeasured)
    assert is_unmeasured(problem)
    assert "GemmMomentsProblem" not in problem_types()


@pytest.mark.parametrize("also", ["read", "output"])
def test_normalized_rows_that_others_read_stay(also: str) -> None:
    found = _planned(_graph(also))
    assert any(rule.startswith("layer_norm") for rule in _rules(found))
    assert _refusal(found).reason == (
        "not folded into the next product, because others read its result as well"
    )


@pytest.mark.parametrize(
    ("gamma", "reason"),
    [
        (4e4, "gamma makes its weight larger than 16384"),
        (1e-5, "gamma makes its weight too small for fp16"),
    ],
)
def test_weights_that_fp16_does_not_hold(gamma: float, reason: str) -> None:
    assert reason in _refusal(_planned(_graph(gamma=gamma))).reason
    assert _rules(_planned(_graph(gamma=gamma, precision="bf16")))[:2] == FOLDED


@pytest.mark.parametrize(
    ("changes", "arch", "sizes"),
    [
        ({"precision": "keep"}, 90, WIDTH),
        ({"width": 136}, 90, 136),
        ({}, 80, WIDTH),
    ],
)
def test_kernels_that_there_are_none_of(changes: dict[str, Any], arch: int, sizes: int) -> None:
    refusal = _refusal(_planned(_graph(**changes), arch=arch))
    assert refusal.reason.endswith(f"because no kernel computes both: rows of {sizes} columns")
    assert "only sm_90a" in refusal.remedy


def test_large_weights_are_not_kept_in_memory() -> None:
    graph = _graph(width=1024)
    reader = _planned(graph).candidates[1]
    assert reader.anchor.weight.is_large
    values = reader.anchor.weight.values
    assert values.nbytes >= weights.LARGE
    sums = reader.links[0].operand
    assert isinstance(sums, gs.Constant)
    np.testing.assert_allclose(sums.values, values.astype(np.float64).sum(0), rtol=1e-6)


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Path]:
    """A model and its optimized form, with a batch that is not known."""
    source, out = tmp_path / "source.onnx", tmp_path / "out.onnx"
    onnx.save(_model(rows=("B", 7)), source)
    _optimized(source, out)
    return source, out


def _optimized(source: Path, out: Path, frozen: bool = False) -> None:
    optimize(
        source,
        out,
        archs=("sm_90a",),
        library=False,
        fuse="all",
        precision="fp16",
        lock=source.with_name("lock.json"),
        frozen=frozen,
        min_shapes=dict.fromkeys("xr", (1, 7, WIDTH)),
        opt_shapes=dict.fromkeys("xr", (64, 7, WIDTH)),
        max_shapes=dict.fromkeys("xr", (64, 7, WIDTH)),
    )


def test_bodies_agree_with_the_source(written: tuple[Path, Path]) -> None:
    source, out = written
    types = [node.op_type for node in onnx.load(out).graph.node]
    assert "FusedGemm_Bias_Add_Moments_f16" in types
    assert not any("LayerNorm_Scale" in name for name in types)
    found = verify(source, out, providers=[CPU])
    assert found.passed
    judged = {row.name for row in found.rows if row.level == "node"}
    assert any(name.endswith("_statistics") for name in judged)


def test_a_lock_file_makes_the_same_model(written: tuple[Path, Path], tmp_path: Path) -> None:
    source, out = written
    _optimized(source, again := tmp_path / "again.onnx", frozen=True)
    assert again.read_bytes() == out.read_bytes()


@pytest.mark.parametrize("name", ["sums", "bias", "folded"])
def test_wrong_constants_are_found(written: tuple[Path, Path], name: str) -> None:
    source, out = written
    model = onnx.load(out)
    (constant,) = (c for c in model.graph.initializer if c.name.endswith(f"_{name}__packed"))
    values = numpy_helper.to_array(constant) + np.float16(0.125)
    constant.CopyFrom(numpy_helper.from_array(values.astype(values.dtype), constant.name))
    onnx.save(model, out)
    found = verify(source, out, providers=[CPU])
    assert {row.level for row in found.rows if not row.passed} >= {"segment"}
