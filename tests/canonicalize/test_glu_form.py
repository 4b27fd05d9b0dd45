"""The product in front of a gated linear unit becomes two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

import onnxbolt
from onnxbolt.canonicalize.glu_form import run
from onnxbolt.graph import weights
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from tests.support import Net, assert_same, feeds_of, ops, prepare
from tests.support import run as answers

K, F = 16, 24
Halves = Callable[[Net, str], list[str]]
Unit = Callable[[Net, str, str], str]


def split(net: Net, y: str) -> list[str]:
    return net.several("Split", y, outputs=2, axis=-1, num_outputs=2)


def split_with_sizes(net: Net, y: str) -> list[str]:
    return net.several("Split", y, net.const([F, F], np.int64), outputs=2, axis=2)


def cut(net: Net, y: str, begin: int, end: int, axis: int = -1) -> str:
    return net.node("Slice", y, *(net.const([n], np.int64) for n in (begin, end, axis)))


def slices(net: Net, y: str) -> list[str]:
    return [cut(net, y, 0, F), cut(net, y, F, 2**63 - 1)]


def slices_from_the_end(net: Net, y: str) -> list[str]:
    return [cut(net, y, -F, 2 * F, 2), cut(net, y, 0, -F, 2)]


def silu(net: Net, x: str) -> str:
    return net.node("Mul", x, net.node("Sigmoid", x))


def swiglu(net: Net, g: str, u: str) -> str:
    return net.node("Mul", silu(net, g), u)


def swiglu_behind(net: Net, g: str, u: str) -> str:
    return net.node("Mul", g, silu(net, u))


def geglu(net: Net, g: str, u: str) -> str:
    return net.node("Mul", net.node("Gelu", g), u)


def glu(net: Net, g: str, u: str) -> str:
    return net.node("Mul", g, net.node("Sigmoid", u))


def bilinear(net: Net, g: str, u: str) -> str:
    return net.node("Mul", g, u)


def packed(halves: Halves, unit: Unit, bias: bool = True, batch: int | str = 2) -> Net:
    net = Net({"x": (batch, 5, K)}, opset=20)
    y = net.node("MatMul", "x", net.normal(K, 2 * F, scale=K**-0.5))
    y = net.node("Add", y, net.normal(2 * F)) if bias else y
    unit(net, *halves(net, y))
    return net


def last(net: Net) -> str:
    return str(net.nodes[-1].output[0])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("unit", [swiglu, swiglu_behind, geglu, glu, bilinear])
@pytest.mark.parametrize("halves", [split, split_with_sizes, slices, slices_from_the_end])
def test_units_are_fused(halves: Halves, unit: Unit, bias: bool, tmp_path: Path) -> None:
    """Two kernels, of which the second one reads what the first one wrote."""
    net = packed(halves, unit, bias, "batch")
    model = net.model(net.linear(last(net), F, K))
    report = onnxbolt.optimize(
        model, tmp_path / "out.onnx", archs="sm_80", precision="keep", fuse="all", library=False
    )
    assert report.passed
    new = onnx.load(tmp_path / "out.onnx")
    assert len(new.graph.node) == len(report.fused) == 3
    assert sum("Mul" in node.rule.split("+") for node in report.fused) == 1
    feeds = feeds_of(model)
    np.testing.assert_allclose(answers(new, feeds)[0], answers(model, feeds)[0], atol=1e-5)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_in_16_bits(precision: str, tmp_path: Path) -> None:
    net = packed(split, swiglu)
    report = onnxbolt.optimize(
        net.model(net.linear(last(net), F, K)),
        tmp_path / "out.onnx",
        archs="sm_90a",
        precision=precision,
        fuse="all",
        library=False,
    )
    assert report.passed
    assert "glu+Bias+Silu+GateBias" in [node.rule for node in report.fused]


# --- the pass alone -------------------------------------------------------------------------------


def divided(net: Net, *outputs: str) -> gs.Graph | None:
    """The graph after the pass; None if it changed nothing."""
    graph = import_model(net.model(*outputs))
    infer(graph)
    before = [node.op for node in graph.nodes]
    count = run(graph)
    assert bool(count) == ([node.op for node in graph.nodes] != before)
    return graph if count else None


def test_halves_keep_their_names_and_columns() -> None:
    net = packed(split, glu)
    graph = divided(net, last(net))
    assert graph is not None
    sums = [node for node in graph.nodes if node.op == "Add"]
    parts = next(node for node in net.nodes if node.op_type == "Split").output
    assert [node.outputs[0].name for node in sums] == [*parts]
    whole = onnx.numpy_helper.to_array(net.initializers[0])
    products = [node.inputs[1].values for node in graph.nodes if node.op == "MatMul"]
    np.testing.assert_array_equal(np.concatenate(products, axis=1), whole)


def test_halves_that_others_read_stay_together() -> None:
    net = packed(split, glu)
    (g, _) = next(node for node in net.nodes if node.op_type == "Split").output
    assert divided(net, last(net), net.node("Abs", g)) is None
    net = packed(split, glu)
    (g, _) = next(node for node in net.nodes if node.op_type == "Split").output
    assert divided(net, last(net), g) is None


def test_a_product_that_others_read_stays_whole() -> None:
    for others in ("Abs", ""):
        net = packed(split, glu)
        y = net.nodes[1].output[0]
        assert divided(net, last(net), net.node(others, y) if others else y) is None


@pytest.mark.parametrize(
    "halves",
    [
        lambda net, y: net.several("Split", y, outputs=2, axis=1, num_outputs=2),
        lambda net, y: [cut(net, y, 0, F), cut(net, y, 0, F)],
        lambda net, y: [cut(net, y, 0, F), cut(net, y, F - 8, 2 * F - 8)],
        lambda net, y: net.several("Split", y, outputs=3, axis=-1, num_outputs=3)[:2],
    ],
)
def test_other_parts_stay(halves: Halves) -> None:
    net = Net({"x": (2, 4, K)}, opset=20)
    net.node("MatMul", "x", net.normal(K, 2 * F))
    assert divided(net, glu(net, *halves(net, last(net)))) is None


@pytest.mark.parametrize(
    "unit",
    [
        lambda net, g, u: net.node("Add", g, net.node("Sigmoid", u)),
        lambda net, g, u: net.node("Mul", net.node("Tanh", g), net.node("Sigmoid", u)),
        lambda net, g, u: net.node("Mul", net.node("Softmax", g), u),
        lambda net, g, u: net.node("Mul", net.node("Mul", g, u), u),
        lambda net, g, u: net.node("Sigmoid", net.node("Concat", g, u, axis=0)),
    ],
)
def test_other_units_stay(unit: Unit) -> None:
    net = packed(split, unit)
    assert divided(net, last(net)) is None


@pytest.mark.parametrize(("large", "expected"), [(weights.LARGE, True), (1024, False)])
def test_weights_that_others_read(
    large: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of a small one is no loss."""
    net = packed(split, glu)
    y = last(net)
    other = net.node("Abs", net.node("MatMul", "x", "c0"))
    monkeypatch.setattr(weights, "LARGE", large)
    assert (divided(net, y, other) is not None) is expected


def test_activations_that_are_written_out() -> None:
    """The pass follows the one that recognizes them."""
    net = packed(split, swiglu)
    graph = prepare(net.model(last(net)))
    assert [node.op for node in graph.nodes] == ["MatMul", "Add", "MatMul", "Add", "Silu", "Mul"]


@pytest.mark.parametrize("shape", [(2 * F, 1), (1, 1, 1, 2 * F)])
def test_a_summand_for_each_row_or_of_more_axes_is_no_bias(shape: tuple[int, ...]) -> None:
    net = Net({"x": (2, 2 * F, K)}, opset=20)
    y = net.node("MatMul", "x", net.normal(K, 2 * F, scale=K**-0.5))
    unit = glu(
        net,
        *net.several(
            "Split", net.node("Add", y, net.normal(*shape)), outputs=2, axis=-1, num_outputs=2
        ),
    )
    graph = import_model(net.model(unit))
    infer(graph)
    assert run(graph) == 0


# --- convolutions ---------------------------------------------------------------------------------

Activations = tuple[str, str]


def conv(net: Net, x: str, c: int, bias: bool = True, **attributes: Any) -> str:
    """A convolution of a line, to 2 F channels."""
    weight = net.normal(2 * F, c // attributes.get("group", 1), 3, scale=0.2)
    vector = [net.normal(2 * F)] if bias else []
    return net.node("Conv", x, weight, *vector, pads=[1, 1], **attributes)


def gated(net: Net, whole: str, activations: Activations, halves: str = "Split") -> str:
    """The first half times the second one, each behind its activation."""
    if halves == "Split":
        parts = net.several("Split", whole, net.const([F, F], np.int64), outputs=2, axis=1)
    else:
        parts = [cut(net, whole, 0, F, 1), cut(net, whole, F, 2**63 - 1, 1)]
    ends = [net.node(op, x) if op else x for x, op in zip(parts, activations, strict=True)]
    return net.node("Mul", *ends)


@pytest.mark.parametrize("halves", ["Split", "Slice"])
@pytest.mark.parametrize("activations", [("", "Sigmoid"), ("Tanh", "Sigmoid"), ("", "")])
@pytest.mark.parametrize("conditioned", [True, False])
def test_convolutions_are_divided(conditioned: bool, activations: Activations, halves: str) -> None:
    """As WaveNet's and Conformer's: two kernels, of which the second one reads what the first one
    wrote, and two more for a condition that is added."""
    net = Net({"x": ("batch", K, 9), "z": ("batch", 8, 9)})
    y = conv(net, "x", K, dilations=[1])
    y = net.node("Add", y, conv(net, "z", 8, bias=False)) if conditioned else y
    y = gated(net, y, activations, halves)
    model = net.model(net.node("Conv", y, net.normal(16, F, 1)))
    optimized = assert_same(model, arch=90)
    kernels = [op for op in ops(optimized) if op.startswith("FusedConv_")]
    assert len(kernels) == 5 if conditioned else 3
    assert not {"Split", "Slice", "Mul", "Add", "Sigmoid", "Tanh"} & set(ops(optimized))


@pytest.mark.parametrize("case", ["groups", "axis", "other", "output", "weight", "activation"])
def test_other_convolutions_stay(case: str) -> None:
    net = Net({"x": (2, K, 2 * F)})
    y = conv(net, "x", K, group=2 if case == "groups" else 1)
    if case == "weight":
        net.node("Abs", net.initializers[0].name)
    if case == "activation":
        y = net.node("Abs", y)
    outputs = [net.node("Abs", y)] if case == "other" else [y] if case == "output" else []
    if case == "axis":
        parts = net.several("Split", y, net.const([F, F], np.int64), outputs=2, axis=2)
        z = net.node("Mul", parts[0], net.node("Sigmoid", parts[1]))
    else:
        z = gated(net, y, ("", "Sigmoid"))
    outputs += [net.nodes[1].output[0]] if case == "weight" else []
    assert divided(net, z, *outputs) is None
