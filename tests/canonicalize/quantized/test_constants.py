from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxbolt.canonicalize.quantized.constants import run
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


@few
@given(st.sampled_from(CODES), scales(4), seeds, st.booleans())
def test_weights_of_fp32_become_codes(
    code: Any, scale: np.ndarray, seed: int, per_channel: bool
) -> None:
    x, weight = values(seed, 1, 2, 3, 6, 6), values(seed + 1, float(scale[0]), 4, 3, 3, 3)
    scale = scale if per_channel else scale[:1].reshape(())
    source = model(
        [
            ("QuantizeLinear", "w s z", "q", {"axis": 0}),
            ("DequantizeLinear", "q s z", "v", {"axis": 0}),
            ("Conv", "x v", "y"),
        ],
        {"x": x},
        ["y"],
        {"w": weight, "s": scale, "z": codes(code, seed, *scale.shape)},
    )
    graph = graph_of(source)
    assert run(graph) == (2 if code is np.uint8 else 1)  # then they are signed
    same_bits(source, graph, {"x": x})
    assert operators(graph) == ["DequantizeLinear", "Conv"]
    stored = graph.nodes[0].inputs[0]
    assert isinstance(stored, gs.Constant)
    assert stored.dtype == np.int8


@few
@given(st.sampled_from((*CODES, np.int32)), scales(5), seeds, st.booleans())
def test_biases_become_values(code: Any, scale: np.ndarray, seed: int, per_channel: bool) -> None:
    rng, x = np.random.default_rng(seed), values(seed, 1, 2, 5)
    bias = (
        rng.integers(-(2**30), 2**30, 5).astype(np.int32)
        if code is np.int32
        else codes(code, seed, 5)
    )
    source = model(
        [
            ("DequantizeLinear", "b s z", "v", {"axis": 0}),
            ("Add", "x v", "y"),
        ],
        {"x": x},
        ["y"],
        {
            "b": bias,
            "s": scale if per_channel else scale[0],
            "z": np.zeros(5 if per_channel else (), code),
        },
    )
    assert rewritten(source, run, {"x": x}, expected=1) == ["Add"]


@pytest.mark.parametrize("shared", [True, False])
def test_a_weight_that_something_else_reads_stays_unsigned(shared: bool) -> None:
    x = values(0, 1, 2, 4)
    nodes = [("DequantizeLinear", "w s z", "v"), ("MatMul", "x v", "y"), ("Relu", "v", "r")]
    source = model(
        nodes if shared else nodes[:2],
        {"x": x},
        ["y", "r"] if shared else ["y"],
        {"w": codes(np.uint8, 0, 4, 5), "s": np.float32(0.1), "z": np.uint8(130)},
    )
    if shared:
        unchanged(source, run)
    else:
        assert rewritten(source, run, {"x": x}, 1) == ["DequantizeLinear", "MatMul"]


@pytest.mark.parametrize("code", [np.int8, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_weights_of_each_type_become_codes(dtype: Any, code: Any) -> None:
    """As ModelOpt writes them: weights of fp8 and of fp16, with a scale for each column."""
    weight = values(0, 1, 16, 16).astype(dtype)
    source = model(
        [
            ("QuantizeLinear", "w s z", "q", {"axis": 1}),
            ("DequantizeLinear", "q s z", "v", {"axis": 1}),
            ("Transpose", "v", "y", {"perm": [1, 0]}),
        ],
        {"x": weight},
        ["y"],
        {
            "w": weight,
            "s": (np.abs(weight).max(axis=0) / 100).astype(dtype),
            "z": np.zeros(16, code),
        },
    )
    assert rewritten(source, run, {"x": weight}, 1) == ["DequantizeLinear", "Transpose"]


def test_matrices_of_codes_stay() -> None:
    x = values(0, 1, 4, 4)
    table = {"w": codes(np.int8, 0, 4, 4), "s": np.float32(0.1), "z": np.int8(0)}
    unchanged(
        model([("DequantizeLinear", "w s z", "v"), ("Add", "x v", "y")], {"x": x}, ["y"], table),
        run,
    )


def test_values_that_are_no_numbers_stay() -> None:
    constants = {"w": np.array([1, np.nan], np.float32), "s": np.float32(0.1), "z": np.int8(0)}
    nodes = [("QuantizeLinear", "w s z", "q"), ("DequantizeLinear", "q s z", "v")]
    x = values(0, 1, 2)
    unchanged(model([*nodes, ("Add", "x v", "y")], {"x": x}, ["y"], constants), run)


def test_a_number_becomes_its_code() -> None:
    """As ONNX Runtime quantizes the factor of a Mul."""
    x = values(0, 0.1, 2, 3)
    nodes = [
        ("QuantizeLinear", "w s z", "q"),
        ("DequantizeLinear", "q s z", "v"),
        ("Mul", "x v", "y"),
    ]
    constants = {"w": np.float32(0.7), "s": np.float32(0.01), "z": np.uint8(3)}
    assert rewritten(model(nodes, {"x": x}, ["y"], constants), run, {"x": x}) == ["Mul"]


@pytest.mark.parametrize("axis", [0, 1])
def test_codes_of_constant_codes(axis: int) -> None:
    """As onnxruntime.quantization quantizes a weight that is read transposed, too."""
    x, scale = values(0, 0.1, 2, 5), np.linspace(0.01, 0.05, 5, dtype=np.float32)
    nodes = [
        ("DequantizeLinear", "w s z", "v", {"axis": axis}),
        ("QuantizeLinear", "v s z", "q", {"axis": 1}),
        ("DequantizeLinear", "q s z", "d", {"axis": 1}),
        ("MatMul", "x d", "y"),
    ]
    constants = {"w": codes(np.int8, 0, 5, 5), "s": scale, "z": codes(np.int8, 1, 5)}
    source = model(nodes, {"x": x}, ["y"], constants)
    assert rewritten(source, run, {"x": x}) == ["DequantizeLinear", "MatMul"]
