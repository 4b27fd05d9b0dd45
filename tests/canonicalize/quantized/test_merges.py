from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onnxbolt.canonicalize.quantized.merges import run
from tests.canonicalize.quantized.compare import (
    CODES,
    codes,
    few,
    model,
    rewritten,
    scales,
    unchanged,
    values,
)

seeds = st.integers(0, 2**16)


@few
@given(st.sampled_from(CODES), scales(), seeds)
def test_pairs_that_repeat_are_one(code: Any, scale: np.ndarray, seed: int) -> None:
    x = values(seed, float(scale), 3, 40)
    source = model(
        [
            ("QuantizeLinear", "x s z", "q"),
            ("DequantizeLinear", "q s z", "a"),
            ("QuantizeLinear", "a s z", "r"),
            ("DequantizeLinear", "r s z", "b"),
            ("Relu", "b", "y"),
        ],
        {"x": x},
        ["y"],
        {"s": scale, "z": codes(code, seed)},
    )
    left = rewritten(source, run, {"x": x}, expected=2)
    assert left == ["QuantizeLinear", "DequantizeLinear", "Relu"]


@few
@given(scales(2), seeds)
def test_readers_share_a_pair_of_equal_numbers(scale: np.ndarray, seed: int) -> None:
    x = values(seed, float(scale[0]), 3, 40)
    source = model(
        [
            ("QuantizeLinear", "x s z", "q"),
            ("QuantizeLinear", "x s2 z2", "r"),
            ("QuantizeLinear", "x t z", "u"),
            ("DequantizeLinear", "q s z", "a"),
            ("DequantizeLinear", "r s z", "b"),
            ("DequantizeLinear", "u t z", "c"),
            ("Sum", "a b c", "y"),
        ],
        {"x": x},
        ["y"],
        {
            "s": scale[0],
            "s2": scale[:1],  # the same number in another shape
            "t": scale[0] * np.float32(3),
            "z": codes(np.int8, seed),
            "z2": codes(np.int8, seed, 1) * 0 + codes(np.int8, seed),
        },
    )
    left = rewritten(source, run, {"x": x}, expected=2)
    assert left.count("QuantizeLinear") == left.count("DequantizeLinear") == 2


def test_others_stay() -> None:
    x = values(0, 0.1, 8)
    z = {"z": np.int8(3), "w": np.int8(4), "u": np.uint8(3)}
    nodes = [("QuantizeLinear", "x s z", "q"), ("DequantizeLinear", "q s z", "a")]
    for other in ("s w", "t z", "s u"):  # another zero point, scale, type
        unchanged(
            model(
                [
                    *nodes,
                    ("QuantizeLinear", f"a {other}", "r"),
                    ("DequantizeLinear", f"r {other}", "y"),
                ],
                {"x": x},
                ["y"],
                {"s": np.float32(0.1), "t": np.float32(0.2), **z},
            ),
            run,
        )


def test_results_that_are_outputs_keep_their_names() -> None:
    x = values(0, 0.1, 8)
    constants = {"s": np.float32(0.1), "z": np.int8(3)}
    source = model(
        [("QuantizeLinear", "x s z", "q"), ("QuantizeLinear", "x s z", "r")],
        {"x": x},
        ["q", "r"],
        constants,
    )
    unchanged(source, run)
    denormal = {"s": np.float32(2.0**-130), "z": np.int8(3)}
    nodes = [("DequantizeLinear", "q s z", "a"), ("QuantizeLinear", "a s z", "y")]
    more = ("Identity", "y", "out")
    unchanged(model([*nodes, more], {"q": codes(np.int8, 0, 8)}, ["out"], denormal), run)
