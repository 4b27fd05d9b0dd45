"""Activations behind Reshapes and Transposes of a product's result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto

import onnxbolt
from onnxbolt.canonicalize import activations
from onnxbolt.canonicalize.rearranged_activations import run
from tests.canonicalize.compare import applied, model, operators, random, unchanged

C, IMAGE, TOKENS = 8, (2, 8, 4, 6), (2, 24, 8)
CONSTANTS = {
    "w": random(C, 1, 3, 3),
    "b": random(C),
    "tokens": np.array([2, C, -1]),
    "root": np.array(np.sqrt(2)),
    "one": np.array(1.0),
    "row": np.ones((1, 1, 1, 1)),
    "half": np.array(0.5),
    "pixels": np.array([2, C, 4, 6]),
    "second": random(C, C),
}
CONV = ("Conv", "x w b", "c", {"pads": [1] * 4, "group": C})
TO_TOKENS = [
    ("Reshape", "c tokens", "r"),
    ("Transpose", "r", "t", {"perm": [0, 2, 1]}),
]
GELU = [
    ("Div", "t root", "d"),
    ("Erf", "d", "e"),
    ("Add", "e one", "f"),
    ("Mul", "t f", "g"),
    ("Mul", "g half", "y"),
]


def _source(
    nodes: Sequence[tuple[Any, ...]], outputs: dict[str, Any] | None = None, **options: Any
) -> onnx.ModelProto:
    used = {name for node in nodes for name in node[1].split()}
    constants = {name: value for name, value in CONSTANTS.items() if name in used}
    return model(nodes, {"x": IMAGE}, outputs or {"y": TOKENS}, constants, **options)


def _both(graph: gs.Graph) -> int:
    """Activations are one node each when the pass runs."""
    activations.run(graph)
    return run(graph)


def test_gelu_moves_to_its_convolution() -> None:
    graph = applied(_source([CONV, *TO_TOKENS, *GELU]), _both, 1)
    activated = graph.nodes[1]
    assert (activated.inputs[0].name, list(activated.outputs[0].shape)) == ("c", list(IMAGE))
    # tensors with new values have new names
    assert not {"r", "t", "d", "e"} & set(graph.tensors())
    assert operators(graph)[-2:] == ["Reshape", "Transpose"]


@pytest.mark.parametrize(
    "path",
    [
        [("Flatten", "c", "t", {"axis": 2})],
        [("Reshape", "c pixels", "u"), ("Transpose", "u", "t", {"perm": [0, 2, 3, 1]})],
    ],
    ids=["Flatten", "same shape"],
)
def test_other_rearrangements(path: list[tuple[Any, ...]]) -> None:
    shape = (16, 24) if len(path) == 1 else (2, 4, 6, 8)
    applied(_source([CONV, *path, ("Relu", "t", "y")], {"y": shape}), _both, 1)


def test_a_residual_before_is_passed() -> None:
    nodes = [CONV, ("Add", "c x", "s"), ("Reshape", "s tokens", "t"), ("Sigmoid", "t", "y")]
    graph = applied(_source(nodes, {"y": (2, 8, 24)}), _both, 1)
    assert [node.op for node in graph.nodes][:2] == ["Conv", "Add"]


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ([CONV, *TO_TOKENS, ("Relu", "t", "y"), ("Neg", "r", "z")], {"z": (2, 8, 24)}),
        ([CONV, *TO_TOKENS, ("Relu", "t", "y"), ("Neg", "c", "z")], {"z": IMAGE}),
        ([CONV, *TO_TOKENS, ("Relu", "t", "y")], {"t": TOKENS}),
        ([("Neg", "x", "c"), *TO_TOKENS, ("Relu", "t", "y")], {}),
        ([CONV, ("Relu", "c", "y")], {"y": IMAGE}),
        ([CONV, *TO_TOKENS, ("Cast", "t", "y", {"to": TensorProto.FLOAT})], {}),
    ],
    ids=[
        "between",
        "the product's result",
        "a graph output",
        "no product",
        "nothing between",
        "a Cast",
    ],
)
def test_others_stay(nodes: list[tuple[Any, ...]], outputs: dict[str, Any]) -> None:
    unchanged(_source(nodes, {"y": TOKENS} | outputs), _both)


def test_constants_of_a_higher_rank_stay() -> None:
    """[1, 1, 1, 1] would widen a matrix."""
    wide = [(op, read.replace("one", "row"), *rest) for op, read, *rest in GELU]
    product = [("Reshape", "x rows", "m"), ("MatMul", "m second", "c")]
    nodes = [*product, ("Reshape", "c pixels", "t"), *wide]
    constants = CONSTANTS | {"rows": np.array([48, C])}
    used = {
        name: constants[name] for node in nodes for name in node[1].split() if name in constants
    }
    graph = applied(model(nodes, {"x": IMAGE}, {"y": IMAGE}, used), _both, 0)
    assert graph.tensors()["t"].outputs[0].op == "Div"


@pytest.mark.parametrize("sizes", [(4, 6), ("height", "width")], ids=["static", "symbolic"])
def test_the_convolution_takes_it(tmp_path: Path, sizes: tuple[Any, Any]) -> None:
    """SegFormer's MLP: a depthwise convolution, GELU on tokens, a product."""
    tokens = ("Reshape", "c tokens", "r")
    gelu = [*GELU[:-1], ("Mul", "g half", "a")]
    nodes: list[tuple[Any, ...]] = [
        CONV,
        tokens,
        TO_TOKENS[1],
        *gelu,
        ("MatMul", "a second", "y"),
    ]
    used = {name for node in nodes for name in node[1].split()}
    source = model(
        nodes,
        {"x": (2, C, *sizes)},
        {"y": (2, "tokens", C)},
        {name: value for name, value in CONSTANTS.items() if name in used},
        dtype=TensorProto.FLOAT16,
    )
    out = tmp_path / "out.onnx"
    report = onnxbolt.optimize(
        source, out, archs=("sm_90a",), fuse="all", library=False, opt_shapes={"x": (2, C, 4, 6)}
    )
    assert [node.op for node in report.fused] == ["FusedConv_Bias_GeluErf_f16", "FusedGemm_f16"]
    assert report.passed, report.text()
