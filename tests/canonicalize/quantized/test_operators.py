from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxbolt.canonicalize.quantized.operators import run
from tests.canonicalize.compare import operators
from tests.canonicalize.quantized.compare import (
    CODES,
    codes,
    few,
    graph_of,
    model,
    powers,
    same_bits,
    scales,
    steps_apart,
    unchanged,
)

seeds = st.integers(0, 2**16)
Numbers = dict[str, Any]


def conv(numbers: Numbers, x: Any, w: Any, seed: int, **attributes: Any) -> onnx.ModelProto:
    group = attributes.get("group", 1)
    constants = {
        "w": codes(w, seed, 4, 4 // group, 3, 3, bits=7),
        "zw": np.zeros(numbers["sw"].shape, w),
        "b": np.random.default_rng(seed).integers(-500, 500, 4).astype(np.int32),
        "zx": codes(x, seed + 1),
        "zy": codes(x, seed + 2),
    }
    return model(
        [("QLinearConv", "x sx zx w sw zw sy zy b", "y", attributes)],
        {"x": codes(x, seed, 2, 4, 7, 7)},
        ["y"],
        {**constants, **numbers},
    )


def written(source: onnx.ModelProto) -> tuple[list[str], Any]:
    graph = graph_of(source)
    assert run(graph) == 1
    return operators(graph), graph


@few
@given(
    st.sampled_from([(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]),
    seeds,
    st.booleans(),
    st.sampled_from([{}, {"pads": [1, 1, 1, 1], "strides": [2, 2]}, {"group": 2}]),
)
def test_convolutions(
    types: tuple[Any, Any], seed: int, per_channel: bool, attributes: dict[str, Any]
) -> None:
    x, w = types
    channels = (4,) if per_channel and w is np.int8 else ()
    numbers = {"sx": powers(seed, 1)[0], "sw": powers(seed + 1, *channels), "sy": np.float32(8)}
    source = conv(numbers, x, w, seed, **attributes)
    left, graph = written(source)
    assert left == ["DequantizeLinear", "DequantizeLinear", "Conv", "QuantizeLinear"]
    same_bits(source, graph, {"x": codes(x, seed, 2, 4, 7, 7)})


@few
@given(scales(3), seeds)
def test_convolutions_with_any_scales_differ_by_a_step_at_most(
    scale: np.ndarray, seed: int
) -> None:
    numbers = {"sx": scale[0], "sw": scale[1], "sy": scale[0] * scale[1] * np.float32(99.7)}
    source = conv(numbers, np.uint8, np.int8, seed)
    _, graph = written(source)
    assert steps_apart(source, graph, {"x": codes(np.uint8, seed, 2, 4, 7, 7)}) <= 1


@few
@given(st.sampled_from([(np.uint8, np.uint8), (np.int8, np.int8)]), seeds, st.booleans())
def test_products(types: tuple[Any, Any], seed: int, per_column: bool) -> None:
    x, w = types
    columns = (5,) if per_column and w is np.int8 else ()
    source = model(
        [("QLinearMatMul", "x sx zx w sw zw sy zy", "y")],
        {"x": codes(x, seed, 3, 6)},
        ["y"],
        {
            "w": codes(w, seed, 6, 5, bits=7),
            "zw": np.zeros(columns, w),
            "zx": codes(x, seed + 1),
            "zy": codes(x, seed + 2),
            "sx": powers(seed, 1)[0],
            "sw": powers(seed + 1, *columns),
            "sy": np.float32(2),
        },
    )
    left, graph = written(source)
    assert left == ["DequantizeLinear", "DequantizeLinear", "MatMul", "QuantizeLinear"]
    same_bits(source, graph, {"x": codes(x, seed, 3, 6)})


@few
@given(seeds, st.booleans(), st.booleans(), st.booleans())
def test_general_products(seed: int, transposed: bool, bias: bool, floats: bool) -> None:
    shape = (5, 6) if transposed else (6, 5)
    inputs = "x sx zx w sw zw" + (" b" if bias else " _") + ("" if floats else " sy zy")
    source = model(
        [(".QGemm", inputs, "y", {"transB": int(transposed), "alpha": 0.5})],
        {"x": codes(np.uint8, seed, 3, 6)},
        ["y"],
        {
            "w": codes(np.int8, seed, *shape, bits=7),
            "zw": np.zeros((), np.int8),
            "zx": codes(np.uint8, seed + 1),
            "zy": codes(np.uint8, seed + 2),
            "sx": powers(seed, 1)[0],
            "sw": powers(seed + 1, 1)[0],
            "sy": np.float32(2),
            "b": np.random.default_rng(seed).integers(-500, 500, 5).astype(np.int32),
        },
    )
    left, graph = written(source)
    quantize = [] if floats else ["QuantizeLinear"]
    assert left == ["DequantizeLinear", "DequantizeLinear", "Gemm", *quantize]
    same_bits(source, graph, {"x": codes(np.uint8, seed, 3, 6)})


BINARY = [("QLinearAdd", "Add"), ("QLinearMul", "Mul")]


@few
@given(st.sampled_from(BINARY), st.sampled_from(CODES), seeds)
def test_sums_and_products_of_elements(ops: tuple[str, str], code: Any, seed: int) -> None:
    feeds = {"a": codes(code, seed, 3, 6), "b": codes(code, seed + 1, 3, 6)}
    sa, sb, sc = powers(seed, 3)
    numbers = {"sa": sa, "sb": sb, "sc": sc}
    zeros = {name: codes(code, seed + i) for i, name in enumerate(("za", "zb", "zc"))}
    zeros["zc"] = (zeros["zc"] // 2 * 2).astype(code)  # ONNX Runtime rounds with an odd one added
    nodes = [(f".{ops[0]}", "a sa za b sb zb sc zc", "y")]
    source = model(nodes, feeds, ["y"], {**numbers, **zeros}, result=code)
    left, graph = written(source)
    assert left == ["DequantizeLinear", "DequantizeLinear", ops[1], "QuantizeLinear"]
    same_bits(source, graph, feeds)


UNARY: list[tuple[str, str, dict[str, Any]]] = [
    ("QLinearLeakyRelu", "LeakyRelu", {"alpha": 0.125}),
    ("QLinearSigmoid", "Sigmoid", {}),
    ("QLinearGlobalAveragePool", "GlobalAveragePool", {}),
    ("QLinearAveragePool", "AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("QLinearAveragePool", "AveragePool", {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0]}),
]


@few
@given(st.sampled_from(UNARY), st.sampled_from(CODES), seeds)
def test_functions_and_poolings(ops: tuple[str, str, dict[str, Any]], code: Any, seed: int) -> None:
    op, plain, attributes = ops
    feeds = {"x": codes(code, seed, 2, 3, 4, 4)}
    source = model(
        [(f".{op}", "x sx zx sy zy", "y", attributes)],
        feeds,
        ["y"],
        {
            "sx": powers(seed, 1)[0],
            "sy": np.float32(2.0**-6),
            "zx": codes(code, seed + 1),
            "zy": codes(code, seed + 2),
        },
        result=code,
    )
    left, graph = written(source)
    assert left == ["DequantizeLinear", plain, "QuantizeLinear"]
    # means are sums in another order
    assert steps_apart(source, graph, feeds) <= (1 if "Pool" in op else 0)


@few
@given(scales(3), st.sampled_from(CODES), seeds)
def test_concats_and_choices(scale: np.ndarray, code: Any, seed: int) -> None:
    """Each element of the result has a table of 256 codes, which ONNX Runtime makes of values."""
    feeds = {"a": codes(code, seed, 3, 6), "b": codes(code, seed + 1, 3, 6)}
    numbers = {name: scale[i] for i, name in enumerate(("sa", "sb", "sy"))}
    zeros = {name: codes(code, seed + i) for i, name in enumerate(("za", "zb", "zy"))}
    source = model(
        [(".QLinearConcat", "sy zy a sa za b sb zb", "y", {"axis": 1})],
        feeds,
        ["y"],
        {**numbers, **zeros},
        result=code,
    )
    left, graph = written(source)
    assert left == ["DequantizeLinear", "DequantizeLinear", "Concat", "QuantizeLinear"]
    same_bits(source, graph, feeds)
    chosen = {**feeds, "c": np.random.default_rng(seed).random((3, 6)) < 0.5}
    nodes = [(".QLinearWhere", "c a sa za b sb zb sy zy", "y")]
    source = model(nodes, chosen, ["y"], {**numbers, **zeros}, result=code)
    left, graph = written(source)
    assert left == ["DequantizeLinear", "DequantizeLinear", "Where", "QuantizeLinear"]
    same_bits(source, graph, chosen)


def test_onnx_runtimes_own_pairs_are_onnxs() -> None:
    x = np.array([0.1, 2, -3], np.float32)
    constants = {"s": np.float32(0.1), "z": np.int8(3)}
    nodes = [(".QuantizeLinear", "x s z", "q"), (".DequantizeLinear", "q s z", "y")]
    source = model(nodes, {"x": x}, ["y"], constants, result=np.float32)
    graph = graph_of(source)
    assert run(graph) == 2
    same_bits(source, graph, {"x": x})
    assert operators(graph) == ["QuantizeLinear", "DequantizeLinear"]


@pytest.mark.parametrize(
    "nodes",
    [
        [("DynamicQuantizeLinear", "v", "y t u")],
        [("MatMulInteger", "x w", "y")],
        [("ConvInteger", "x w", "y")],
        [(".QLinearSoftmax", "x s z s z", "y", {"axis": 1, "opset": 13})],
        [("QLinearMatMul", "x given z w s z s z", "y")],  # a scale that is computed at run time
    ],
)
def test_others_stay(nodes: Sequence[tuple[Any, ...]]) -> None:
    image = nodes[0][0] == "ConvInteger"
    shape = (1, 2, 4, 4) if image else (4, 4)
    inputs: Numbers = {
        "x": codes(np.uint8, 0, *shape),
        "v": np.ones(4, np.float32),
        "given": np.ones((), np.float32),
    }
    constants = {
        "w": codes(np.uint8, 0, *((2, 2, 1, 1) if image else (4, 4))),
        "s": np.float32(0.1),
        "z": np.uint8(3),
    }
    unchanged(model(nodes, inputs, ["y"], constants), run)


class _Counted(list[Any]):
    """A list that counts how often it is read or changed."""

    reads = 0

    def __iter__(self) -> Iterator[Any]:
        self.reads += 1
        return super().__iter__()

    def insert(self, index: SupportsIndex, value: Any) -> None:
        self.reads += 1
        super().insert(index, value)


@pytest.mark.parametrize("length", [1, 50])
def test_the_list_of_nodes_is_read_as_often_for_many_nodes(length: int) -> None:
    """So that the time is linear in their number."""
    tensors = ["x", *(f"t{i}" for i in range(1, length)), "y"]
    nodes: list[tuple[Any, ...]] = [
        (".QLinearAdd", f"{read} s z {read} s z s z", written, {})
        for read, written in itertools.pairwise(tensors)
    ]
    numbers = {"s": np.float32(1), "z": np.uint8(3)}
    graph = graph_of(model(nodes, {"x": codes(np.uint8, 0, 4)}, ["y"], numbers))
    graph.nodes = counted = _Counted(graph.nodes)
    assert run(graph) == length
    assert (
        operators(graph)
        == ["DequantizeLinear", "DequantizeLinear", "Add", "QuantizeLinear"] * length
    )
    assert counted.reads <= 3
