from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto

from onnxbolt.canonicalize.gemm_form import run
from tests.canonicalize.compare import applied, model, operators, random, unchanged


@pytest.mark.parametrize(
    ("trans_a", "trans_b", "alpha", "beta"),
    list(itertools.product((0, 1), (0, 1), (1.0, 0.5), (1.0, 2.0))),
)
def test_transposes_and_factors(trans_a: int, trans_b: int, alpha: float, beta: float) -> None:
    attributes: dict[str, Any] = {
        "transA": trans_a,
        "transB": trans_b,
        "alpha": alpha,
        "beta": beta,
    }
    source = model(
        [("Gemm", "x w b", "y", attributes)],
        {"x": (4, 5) if trans_a else (5, 4)},
        {"y": (5, 6)},
        {"w": random(6, 4) if trans_b else random(4, 6), "b": random(6)},
    )
    graph = applied(source, run, 1)
    assert operators(graph) == ["Transpose"] * trans_a + ["MatMul", "Add"]
    product, add = graph.nodes[-2:]
    assert (product.inputs[1].name == "w") == (not trans_b and alpha == 1)
    assert add.inputs[1].shape == (6,)
    assert (add.inputs[1].name == "b") == (beta == 1)
    assert add.provenance == product.provenance == ("node_y",)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 6), (6,)])
def test_constant_rows_become_a_vector(shape: tuple[int, ...]) -> None:
    source = model(
        [("Gemm", "x w c", "y")],
        {"x": (5, 4)},
        {"y": (5, 6)},
        {"w": random(4, 6), "c": random(*shape)},
    )
    graph = applied(source, run, 1)
    assert graph.nodes[1].inputs[1].shape == (6,)


@pytest.mark.parametrize("shape", [(5, 6), (5, 1)])
@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_other_constants_are_added_as_they_are(shape: tuple[int, ...], beta: float) -> None:
    source = model(
        [("Gemm", "x w c", "y", {"beta": beta})],
        {"x": (5, 4)},
        {"y": (5, 6)},
        {"w": random(4, 6), "c": random(*shape)},
    )
    graph = applied(source, run, 1)
    assert operators(graph) == ["MatMul", "Add"]
    assert graph.nodes[1].inputs[1].shape == shape


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_computed_addends(beta: float) -> None:
    source = model(
        [("Gemm", "x w c", "y", {"beta": beta})],
        {"x": (5, 4), "c": (5, 6)},
        {"y": (5, 6)},
        {"w": random(4, 6)},
    )
    assert operators(applied(source, run, 1)) == (
        ["MatMul", "Add"] if beta == 1 else ["MatMul", "Mul", "Add"]
    )


@pytest.mark.parametrize(("inputs", "beta"), [("x w", 1.0), ("x w _", 1.0), ("x w b", 0.0)])
def test_without_an_addend(inputs: str, beta: float) -> None:
    source = model(
        [("Gemm", inputs, "y", {"beta": beta})],
        {"x": (5, 4)},
        {"y": (5, 6)},
        {"w": random(4, 6), "b": random(6)},
    )
    assert operators(applied(source, run, 1)) == ["MatMul"]


def test_a_shared_weight_is_transposed_once_and_kept_where_it_is_needed() -> None:
    nodes = [
        ("Gemm", "x w b", "h", {"transB": 1}),
        ("Gemm", "h w b", "g", {"transB": 1}),
        ("MatMul", "g w", "y"),
    ]
    source = model(nodes, {"x": (5, 4)}, {"y": (5, 4)}, {"w": random(4, 4), "b": random(4)})
    graph = applied(source, run, 2)
    first, second, last = (node for node in graph.nodes if node.op == "MatMul")
    assert first.inputs[1] is second.inputs[1]
    assert last.inputs[1].name == "w"


def test_fp16() -> None:
    source = model(
        [("Gemm", "x w b", "y", {"transB": 1, "alpha": 0.3, "beta": 0.7})],
        {"x": (5, 4)},
        {"y": (5, 6)},
        {"w": random(6, 4), "b": random(6)},
        dtype=TensorProto.FLOAT16,
    )
    graph = applied(source, run, 1)
    assert all(
        t.dtype == np.float16
        for node in graph.nodes
        for t in node.inputs
        if isinstance(t, gs.Constant)
    )


def test_computed_weights_stay() -> None:
    unchanged(model([("Gemm", "w x", "y")], {"x": (4, 6)}, {"y": (5, 6)}, {"w": random(5, 4)}), run)
