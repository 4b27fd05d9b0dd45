from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxbolt.canonicalize.quantized.gemms import run
from tests.canonicalize.quantized.compare import (
    codes,
    few,
    model,
    powers,
    rewritten,
    unchanged,
)

SHAPES = {(0, 0): ((3, 6), (6, 5)), (0, 1): ((3, 6), (5, 6)), (1, 1): ((6, 3), (5, 6))}
seeds = st.integers(0, 2**16)


@few
@given(st.sampled_from(sorted(SHAPES)), seeds, st.booleans(), st.booleans())
def test_products_with_and_without_bias(
    transposed: tuple[int, int], seed: int, bias: bool, per_channel: bool
) -> None:
    left, right = SHAPES[transposed]
    columns = 0 if transposed[1] else 1
    scale = powers(seed, 5) if per_channel else powers(seed, 1).reshape(())
    q = codes(np.int8, seed, *left)
    attributes = {"transA": transposed[0], "transB": transposed[1]}
    source = model(
        [
            ("DequantizeLinear", "q s z", "x"),
            ("DequantizeLinear", "w t", "v", {"axis": columns}),
            ("Gemm", "x v b" if bias else "x v", "y", attributes),
        ],
        {"q": q},
        ["y"],
        {
            "s": np.float32(0.25),
            "z": codes(np.int8, seed),
            "w": codes(np.uint8, seed, *right),
            "t": scale,
            "b": powers(seed, 5),
        },
    )
    after = rewritten(source, run, {"q": q}, 1)
    assert after[2:] == ["Transpose"] * sum(transposed) + ["MatMul"] + ["Add"] * bias


@pytest.mark.parametrize("attributes", [{"alpha": 0.5}, {"beta": 2.0}])
def test_factors_stay(attributes: dict[str, Any]) -> None:
    nodes = [("DequantizeLinear", "w s", "v"), ("Gemm", "x v b", "y", attributes)]
    constants = {"w": codes(np.uint8, 0, 4, 5), "s": np.float32(0.5), "b": powers(0, 5)}
    unchanged(model(nodes, {"x": np.ones((2, 4), np.float32)}, ["y"], constants), run)


def test_a_weight_that_is_computed_stays() -> None:
    nodes = [("DequantizeLinear", "w s", "v"), ("Gemm", "x v", "y")]
    inputs = {"x": np.ones((2, 4), np.float32), "w": codes(np.uint8, 0, 4, 5)}
    unchanged(model(nodes, inputs, ["y"], {"s": np.float32(0.5)}), run)
