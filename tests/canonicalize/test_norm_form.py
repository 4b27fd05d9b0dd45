"""Decomposed normalizations: all ways to write them, and near misses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxbolt.canonicalize.norm_form import LAYER, RMS, run
from onnxbolt.canonicalize.restore import restore
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from tests.canonicalize.compare import applied, check_same_answers, model, operators, random
from tests.canonicalize.compare import unchanged as untouched
from tests.support import Net

WIDTH = 6
SHAPES = {"x": ("n", 4, WIDTH)}, {"y": ("n", 4, WIDTH)}
FLOAT, HALF = ({"to": int(to)} for to in (TensorProto.FLOAT, TensorProto.FLOAT16))
CONSTANTS = {
    "gamma": random(WIDTH, seed=1),
    "beta": random(WIDTH, seed=2),
    "two": np.array(2.0),
    "half": np.array(0.5),
    "one": np.array(1.0),
    "minus_half": np.array(-0.5),
    "epsilon": np.array(1e-3),
    "last": np.array([-1]),
}
Nodes = Sequence[tuple[Any, ...]]
LAST = {"axes": [-1], "keepdims": 1}


def _layer(
    *end: tuple[str, str, str] | tuple[str, str, str, dict[str, Any]],
    square: tuple[str, str, str] = ("Pow", "d two", "dd"),
    root: Nodes = (("Sqrt", "v", "s"), ("Div", "d s", "n")),
    x: str = "x",
) -> Nodes:
    """d = x - mean(x), n = d / sqrt(mean(d * d) + epsilon), then `end`."""
    return (
        ("ReduceMean", x, "m", LAST),
        ("Sub", f"{x} m", "d"),
        square,
        ("ReduceMean", "dd", "vv", {"axes": [2]}),
        ("Add", "vv epsilon", "v"),
        *root,
        *end,
    )


def _rms(*nodes: tuple[Any, ...], x: str = "x", begin: Nodes = ()) -> Nodes:
    """dd = x * x, v = mean(dd) + epsilon, then `nodes`."""
    return (
        *begin,
        ("Pow", f"{x} two", "dd"),
        ("ReduceMean", "dd", "vv", LAST),
        ("Add", "vv epsilon", "v"),
        *nodes,
    )


GAMMA_BETA = ("Mul", "n gamma", "g"), ("Add", "g beta", "y")
SQRT_DIV = ("Sqrt", "v", "s"), ("Div", "x s", "n")
LAYERS: dict[str, Nodes] = {
    "TorchScript's": _layer(*GAMMA_BETA),
    "the square a product": _layer(*GAMMA_BETA, square=("Mul", "d d", "dd")),
    "gamma and beta first": _layer(("Mul", "gamma n", "g"), ("Add", "beta g", "y")),
    "without beta": _layer(("Mul", "n gamma", "y")),
    "without gamma": _layer(root=(("Sqrt", "v", "s"), ("Div", "d s", "y"))),
    "a reciprocal": _layer(
        *GAMMA_BETA, root=(("Sqrt", "v", "s"), ("Reciprocal", "s", "r"), ("Mul", "r d", "n"))
    ),
    "a power": _layer(*GAMMA_BETA, root=(("Pow", "v minus_half", "r"), ("Mul", "d r", "n"))),
    "a deviation of its own": (
        *_layer(("Sub", "x m", "e"), root=(("Sqrt", "v", "s"),)),
        ("Div", "e s", "n"),
        *GAMMA_BETA,
    ),
}
RMSES: dict[str, Nodes] = {
    "T5's": _rms(*SQRT_DIV, ("Mul", "gamma n", "y")),
    "a reciprocal": _rms(
        ("Sqrt", "v", "s"), ("Reciprocal", "s", "r"), ("Mul", "x r", "n"), ("Mul", "n gamma", "y")
    ),
    "a quotient": _rms(
        ("Pow", "v half", "s"),
        ("Div", "one s", "r"),
        ("Mul", "r x", "n"),
        ("Mul", "n gamma", "y"),
    ),
    "without gamma": _rms(("Sqrt", "v", "s"), ("Div", "x s", "y")),
}


def _source(nodes: Nodes, dtype: int = TensorProto.FLOAT, **constants: Any) -> onnx.ModelProto:
    """A model of opset 17 in this type; tensors that Casts need keep their own."""
    used = {name for node in nodes for name in node[1].split()}
    given = {name: value for name, value in (CONSTANTS | constants).items() if name in used}
    return model(nodes, *SHAPES, given, dtype=dtype)


def _recognized(source: onnx.ModelProto, op: str, factors: int) -> None:
    """The model becomes one node, with the answers that it had."""
    graph = applied(source, run, 1)
    assert operators(graph) == [node.op_type for node in source.graph.node]  # restored
    graph = import_model(source)
    infer(graph)
    run(graph)
    assert operators(graph) == [f"onnxbolt.internal.{op}"]
    (node,) = graph.nodes
    assert node.attrs["epsilon"] == pytest.approx(1e-3, rel=1e-3)
    assert [list(t.shape) for t in node.inputs[1:]] == [[WIDTH]] * factors


@pytest.mark.parametrize("form", LAYERS)
def test_a_layer_normalization_is_one_node(form: str) -> None:
    factors = sum(name in str(LAYERS[form]) for name in ("gamma", "beta"))
    _recognized(_source(LAYERS[form]), LAYER, factors)


@pytest.mark.parametrize("form", RMSES)
def test_an_rms_normalization_is_one_node(form: str) -> None:
    _recognized(_source(RMSES[form]), RMS, int("gamma" in str(RMSES[form])))


def test_an_epsilon_that_an_exporter_dropped_is_zero() -> None:
    nodes = [("Pow", "x two", "dd"), ("ReduceMean", "dd", "v", LAST), *SQRT_DIV]
    graph = import_model(_source([*nodes, ("Mul", "n gamma", "y")]))
    infer(graph)
    assert run(graph) == 1
    assert [node.attrs["epsilon"] for node in graph.nodes] == [0]


@pytest.mark.parametrize("axis", [-1, 2])
def test_onnx_runtimes_own_name_is_another_one(axis: int) -> None:
    """onnx does not know the operator, which is in its domain."""
    net = Net({"x": ("n", 4, WIDTH)})
    gamma = net.normal(WIDTH)
    product = net.node("SimplifiedLayerNormalization", "x", gamma, axis=axis, epsilon=1e-3)
    source = net.model(net.node("MatMul", product, net.normal(WIDTH, WIDTH)))
    graph = import_model(source)
    infer(graph)
    assert [tensor.shape for tensor in graph.outputs] == [["n", 4, WIDTH]]
    assert run(graph) == 1
    assert operators(graph) == [f"onnxbolt.internal.{RMS}", "MatMul"]
    restore(graph)
    assert operators(graph) == ["SimplifiedLayerNormalization", "MatMul"]


def test_axes_may_be_an_input() -> None:
    nodes = [
        (op, f"{read} last", written) if op == "ReduceMean" else (op, read, written)
        for op, read, written, *_ in LAYERS["TorchScript's"]
    ]
    source = model(nodes, *SHAPES, CONSTANTS | {"last": np.array([-1])}, opset=18)
    applied(source, run, 1)


def test_factors_may_have_the_rank_of_x() -> None:
    gamma = CONSTANTS["gamma"].reshape(1, 1, WIDTH)
    _recognized(_source(LAYERS["TorchScript's"], gamma=gamma), LAYER, 2)


@pytest.mark.parametrize("gamma_in_fp32", [False, True])
def test_casts_to_fp32_and_back_belong_to_it(gamma_in_fp32: bool) -> None:
    """Llama's, whose gamma is multiplied in the model's type, and one that does it in fp32."""
    end: Nodes = (("Cast", "n", "h", HALF), ("Mul", "gamma h", "y"))
    if gamma_in_fp32:
        end = (("Mul", "n wide", "g"), ("Cast", "g", "y", HALF))
    inverse = ("Sqrt", "v", "s"), ("Reciprocal", "s", "r"), ("Mul", "w r", "n")
    nodes = _rms(*inverse, *end, x="w", begin=(("Cast", "x", "w", FLOAT),))
    wide = {"two": 2, "epsilon": 1e-3, "wide": CONSTANTS["gamma"]}
    constants = {name: np.asarray(value, np.float32) for name, value in wide.items()}
    _recognized(_source(nodes, TensorProto.FLOAT16, **constants), RMS, 1)


def _second_reader(tensor: str) -> Nodes:
    return (*LAYERS["TorchScript's"], ("Neg", tensor, "z"))


NEAR_MISSES: dict[str, Nodes] = {
    "another exponent": _layer(*GAMMA_BETA, square=("Pow", "d half", "dd")),
    "a product of two": _layer(*GAMMA_BETA, square=("Mul", "d x", "dd")),
    "a sum of another": (
        ("ReduceMean", "x", "m", LAST),
        ("Sub", "m x", "d"),  # the mean minus x
        ("Pow", "x two", "dd"),
        *_layer(*GAMMA_BETA)[3:],
    ),
    "another axis": (
        ("Pow", "x two", "dd"),
        ("ReduceMean", "dd", "vv", {"axes": [1]}),
        ("Add", "vv epsilon", "v"),
        ("Sqrt", "v", "s"),
        ("Div", "x s", "y"),
    ),
    "no root": _layer(*GAMMA_BETA, root=(("Div", "d v", "n"),)),
    "the root over its root": _rms(("Sqrt", "v", "s"), ("Div", "s x", "y")),
}


@pytest.mark.parametrize("form", NEAR_MISSES)
def test_near_misses_stay(form: str) -> None:
    untouched(_source(NEAR_MISSES[form]), run)


def test_an_epsilon_of_more_axes_than_x_keeps_the_nodes() -> None:
    inputs, outputs = SHAPES
    wider = {key: (1, *shape) for key, shape in outputs.items()}
    constants = CONSTANTS | {"epsilon": np.reshape(CONSTANTS["epsilon"], (1, 1, 1, 1))}
    nodes = _layer(("Mul", "n gamma", "y"))
    used = {tensor for node in nodes for tensor in node[1].split()}
    given = {key: value for key, value in constants.items() if key in used}
    untouched(model(nodes, inputs, wider, given), run)


@pytest.mark.parametrize("tensor", ["m", "d", "dd", "v", "s"])
def test_a_tensor_between_that_is_read_elsewhere_keeps_its_nodes(tensor: str) -> None:
    shape = (*SHAPES[0]["x"][:2], 1 if tensor in "mvs" else WIDTH)
    source = model(
        _second_reader(tensor),
        SHAPES[0],
        SHAPES[1] | {"z": shape},
        {name: CONSTANTS[name] for name in ("gamma", "beta", "two", "epsilon")},
    )
    untouched(source, run)


@pytest.mark.parametrize("tensor", ["n", "g"])
def test_a_normalization_ends_where_its_result_is_read_twice(tensor: str) -> None:
    source = model(
        _second_reader(tensor),
        SHAPES[0],
        SHAPES[1] | {"z": SHAPES[1]["y"]},
        {name: CONSTANTS[name] for name in ("gamma", "beta", "two", "epsilon")},
    )
    graph = import_model(source)
    infer(graph)
    assert run(graph) == 1
    left = {"n": ["Mul", "Add", "Neg"], "g": ["Add", "Neg"]}[tensor]
    assert operators(graph) == [f"onnxbolt.internal.{LAYER}", *left]
    check_same_answers(source, graph)


def test_a_narrower_type_between_stays() -> None:
    nodes = (
        ("Cast", "x", "h", HALF),
        ("Cast", "h", "w", FLOAT),
        ("Pow", "w two", "dd"),
        ("ReduceMean", "dd", "vv", LAST),
        ("Add", "vv epsilon", "v"),
        ("Sqrt", "v", "s"),
        ("Div", "w s", "y"),
    )
    graph = import_model(_source(nodes))
    infer(graph)
    assert run(graph) == 1  # its x is w, since the first Casts round
    assert operators(graph) == ["Cast", "Cast", f"onnxbolt.internal.{RMS}"]
