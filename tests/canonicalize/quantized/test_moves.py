from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxbolt.canonicalize import constant_fold
from onnxbolt.canonicalize.quantized.moves import run
from tests.canonicalize.compare import operators
from tests.canonicalize.quantized.compare import (
    CODES,
    codes,
    few,
    graph_of,
    model,
    rewritten,
    same_bits,
    scales,
    unchanged,
    values,
)

seeds = st.integers(0, 2**16)
SHAPE = (2, 4, 6, 6)
INTS: dict[str, Any] = {
    "shape": np.array([2, 4, 36], np.int64),
    "axes": np.array([1], np.int64),
    "starts": np.array([1], np.int64),
    "ends": np.array([5], np.int64),
    "which": np.array([3, 0, 2], np.int64),
    "places": np.zeros(SHAPE, np.int64),
    "points": np.array([[1, 2], [0, 3]], np.int64),
    "times": np.array([1, 2, 1, 1], np.int64),
    "wide": np.array([3, 2, 4, 6, 6], np.int64),
    "pads": np.array([0, 0, 1, 2, 0, 0, 0, 1], np.int64),
    "factors": np.array([1, 1, 2, 1.5], np.float32),
    "parts": np.array([1, 3], np.int64),
    "zero": np.float32(0),
}
# each operator that moves values: (op, further inputs, attributes)
MOVES: list[tuple[str, str, dict[str, Any]]] = [
    ("Transpose", "", {"perm": [0, 2, 3, 1]}),
    ("Transpose", "", {}),
    ("Reshape", "shape", {}),
    ("Flatten", "", {"axis": 2}),
    ("Unsqueeze", "axes", {}),
    ("Slice", "starts ends axes", {}),
    ("Gather", "which", {"axis": 1}),
    ("GatherElements", "places", {"axis": 1}),
    ("GatherND", "points", {}),
    ("Tile", "times", {}),
    ("Expand", "wide", {}),
    ("Pad", "pads", {}),
    ("Pad", "pads zero", {}),
    ("Pad", "pads", {"mode": "reflect"}),
    ("Resize", "_ factors", {"mode": "nearest", "nearest_mode": "floor"}),
    ("MaxPool", "", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1]}),
]
each = st.sampled_from(MOVES)


@few
@given(each, st.sampled_from(CODES), scales(), seeds)
def test_codes_are_moved_behind_dequantization(
    move: tuple[str, str, dict[str, Any]], code: Any, scale: np.ndarray, seed: int
) -> None:
    op, further, attributes = move
    q = codes(code, seed, *SHAPE)
    source = model(
        [
            ("DequantizeLinear", "q s z", "x"),
            (op, f"x {further}", "m", attributes),
            ("Relu", "m", "y"),
        ],
        {"q": q},
        ["y"],
        {"s": scale, "z": codes(code, seed), **INTS},
    )
    assert rewritten(source, run, {"q": q}, 1) == [op, "DequantizeLinear", "Relu"]


@few
@given(each, st.sampled_from(CODES), scales(), seeds)
def test_codes_are_moved_in_front_of_quantization(
    move: tuple[str, str, dict[str, Any]], code: Any, scale: np.ndarray, seed: int
) -> None:
    op, further, attributes = move
    x = values(seed, float(scale), *SHAPE)
    source = model(
        [
            ("Relu", "x", "r"),
            (op, f"r {further}", "m", attributes),
            ("QuantizeLinear", "m s z", "q"),
            ("DequantizeLinear", "q s z", "y"),
        ],
        {"x": x},
        ["y"],
        {"s": scale, "z": codes(code, seed), **INTS},
    )
    left = rewritten(source, run, {"x": x}, 1)
    assert left == ["Relu", "QuantizeLinear", op, "DequantizeLinear"]


@pytest.mark.parametrize("written", [True, False])
def test_pixels_that_are_pooled_away_are_rounded_by_kernels_of_codes_alone(written: bool) -> None:
    """The pair stays behind the pooling, where fewer values are rounded."""
    weight = np.ones((SHAPE[1], SHAPE[1], 1, 1), np.float32)
    read = [("QuantizeLinear", "x s z", "a"), ("DequantizeLinear", "a s z", "b")]
    source = model(
        [
            *(read if written else []),
            ("Conv", f"{'b' if written else 'x'} w", "c"),
            ("Relu", "c", "r"),
            ("MaxPool", "r", "m", {"kernel_shape": [2, 2], "strides": [2, 2]}),
            ("QuantizeLinear", "m s z", "q"),
            ("DequantizeLinear", "q s z", "y"),
        ],
        {"x": values(0, 0.05, *SHAPE)},
        ["y"],
        {"s": np.float32(0.05), "z": np.int8(0), "w": weight},
    )
    found = rewritten(source, run, {"x": values(0, 0.05, *SHAPE)}, int(written))
    behind = ["QuantizeLinear", "MaxPool"] if written else ["MaxPool", "QuantizeLinear"]
    assert found[-4:] == ["Relu", *behind, "DequantizeLinear"]


def split(codes_first: bool, q: np.ndarray, scale: np.ndarray, other: float = 1) -> onnx.ModelProto:
    cut = ("Split", "x parts", "a b", {"axis": 1})
    if codes_first:
        nodes = [("DequantizeLinear", "q s z", "x"), cut, ("Relu", "a", "y"), ("Relu", "b", "w")]
    else:
        nodes = [
            ("Relu", "q", "x"),
            cut,
            ("QuantizeLinear", "a s z", "y"),
            ("QuantizeLinear", "b t z", "w"),
        ]
    constants = {"s": scale, "t": scale * np.float32(other), "z": np.int8(5), **INTS}
    return model(nodes, {"q": q}, ["y", "w"], constants)


@few
@given(scales(), seeds)
def test_splits(scale: np.ndarray, seed: int) -> None:
    q = codes(np.int8, seed, *SHAPE)
    left = rewritten(split(True, q, scale), run, {"q": q}, 1)
    assert left[:1] == ["Split"]
    x = values(seed, float(scale), *SHAPE)
    left = rewritten(split(False, x, scale), run, {"q": x}, 1)
    assert left == ["Relu", "QuantizeLinear", "Split"]
    unchanged(split(False, x, scale, other=2), run)


@few
@given(scales(3), seeds, st.booleans())
def test_scales_of_channels_follow_a_transpose(scale: np.ndarray, seed: int, down: bool) -> None:
    turn: tuple[Any, ...] = ("Transpose", "x", "m", {"perm": [2, 0, 1]})
    numbers = {"s": scale, "z": codes(np.int8, seed, 3)}
    if down:
        q = codes(np.int8, seed, 4, 3, 5)
        nodes: list[tuple[Any, ...]] = [
            ("DequantizeLinear", "q s z", "x"),
            turn,
            ("Relu", "m", "y"),
        ]
    else:
        q = values(seed, float(scale[0]), 4, 5, 3)
        nodes = [("Relu", "q", "x"), turn, ("QuantizeLinear", "m s z", "y", {"axis": 0})]
    rewritten(model(nodes, {"q": q}, ["y"], numbers), run, {"q": q}, 1)
    stays = [nodes[0], ("Flatten", "x", "m"), *nodes[2:]]
    unchanged(model(stays, {"q": q}, ["y"], numbers), run)


def concat(scale: np.ndarray, other: np.ndarray, result: np.ndarray) -> onnx.ModelProto:
    return model(
        [
            ("DequantizeLinear", "a s z", "x"),
            ("DequantizeLinear", "b t z", "w"),
            ("Concat", "x w", "c", {"axis": 1}),
            ("QuantizeLinear", "c u z", "q"),
            ("DequantizeLinear", "q u z", "y"),
        ],
        {"a": codes(np.uint8, 0, 2, 3), "b": codes(np.uint8, 1, 2, 4)},
        ["y"],
        {"s": scale, "t": other, "u": result, "z": np.uint8(100)},
    )


@few
@given(scales(3), seeds)
def test_concats(scale: np.ndarray, seed: int) -> None:
    """Down with equal scales, up with any."""
    feeds = {"a": codes(np.uint8, seed, 2, 3), "b": codes(np.uint8, seed + 1, 2, 4)}
    left = rewritten(concat(scale[0], scale[0], scale[1]), run, feeds)
    assert left[0] == "Concat"
    if scale[0] != scale[1]:
        left = rewritten(concat(*scale), run, feeds)
        assert left[-2:] == ["Concat", "DequantizeLinear"]


def test_values_that_others_read_are_not_quantized_earlier() -> None:
    x = values(0, 0.1, *SHAPE)
    nodes = [("Relu", "x", "r"), ("Flatten", "r", "m"), ("QuantizeLinear", "m s", "q")]
    constants = {"s": np.float32(0.1)}
    unchanged(model([*nodes, ("Relu", "r", "y")], {"x": x}, ["q", "y"], constants), run)
    unchanged(model([*nodes, ("Relu", "m", "y")], {"x": x}, ["q", "y"], constants), run)


@pytest.mark.parametrize(
    ("op", "further", "attributes"),
    [
        ("Resize", "_ factors", {"mode": "linear"}),
        ("AveragePool", "", {"kernel_shape": [2, 2]}),
        ("Pad", "pads value", {}),  # a value without a code
        ("MaxPool", "", {"kernel_shape": [2, 2], "ceil_mode": 1}),
    ],
)
def test_what_computes_stays(op: str, further: str, attributes: dict[str, Any]) -> None:
    q = codes(np.int8, 0, *SHAPE)
    nodes = [("DequantizeLinear", "q s z", "x"), (op, f"x {further}", "m", attributes)]
    constants = {"s": np.float32(0.1), "z": np.int8(0), "value": np.float32(0.123), **INTS}
    unchanged(model([*nodes, ("Relu", "m", "y")], {"q": q}, ["y"], constants), run)


def test_negative_scales_stay_behind_a_pooling() -> None:
    q = codes(np.int8, 0, *SHAPE)
    pool = ("MaxPool", "x", "y", {"kernel_shape": [2, 2]})
    constants = {"s": np.float32(-0.1), "z": np.int8(0)}
    unchanged(model([("DequantizeLinear", "q s z", "x"), pool], {"q": q}, ["y"], constants), run)
    assert graph_of(model([pool], {"x": values(0, 1, *SHAPE)}, ["y"], {})).nodes


def test_constant_codes_of_fp8_follow_a_transpose() -> None:
    stored = np.arange(12).reshape(3, 4).astype(ml_dtypes.float8_e4m3fn)
    nodes = [
        ("DequantizeLinear", "w s", "v"),
        ("Transpose", "v", "t", {"perm": [1, 0]}),
        ("MatMul", "x t", "y"),
    ]
    x = values(0, 1, 2, 4).astype(np.float16)
    source = model(nodes, {"x": x}, ["y"], {"w": stored, "s": np.float16(0.5)})
    graph = graph_of(source)
    assert run(graph) == 1
    assert constant_fold.run(graph) == 1
    assert operators(graph) == ["DequantizeLinear", "MatMul"]
    same_bits(source, graph, {"x": x})


def test_a_graph_without_nodes_is_left() -> None:
    """Constants alone, as folding may leave them."""
    assert run(gs.Graph()) == 0


@pytest.mark.parametrize("of_values", [True, False], ids=["attention", "linear"])
def test_codes_of_attention_stay_behind_what_moves_its_result(of_values: bool) -> None:
    """Kernels of attention write values, moved; a layer with a weight may write the codes."""
    nodes = [
        ("MatMul", "x w", "r"),
        ("Transpose", "r", "t", {"perm": [0, 2, 1, 3]}),
        ("Reshape", "t shape", "m"),
        ("QuantizeLinear", "m s z", "q"),
    ]
    x, w = values(0, 1, 2, 3, 5, 4), values(1, 1, 2, 3, 4, 6)
    inputs = {"x": x, "w": w} if of_values else {"x": x}
    constants: dict[str, Any] = {
        "s": np.float32(0.1),
        "z": np.int8(0),
        "shape": np.array([2, 5, 18], np.int64),
        "w": w,
    }
    constants = {name: value for name, value in constants.items() if name not in inputs}
    source = model(nodes, inputs, ["q"], constants)
    if of_values:
        unchanged(source, run)
    else:
        graph = graph_of(source)
        assert run(graph) == 2
        assert operators(graph) == ["MatMul", "QuantizeLinear", "Transpose", "Reshape"]
