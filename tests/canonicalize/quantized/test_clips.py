from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxbolt.canonicalize.quantized.clips import run
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


def clipped(
    x: np.ndarray, scale: Any, zero: np.ndarray, low: Any, high: Any, opset: int = 19
) -> onnx.ModelProto:
    return model(
        [
            ("QuantizeLinear", "x s z", "q"),
            ("Clip", "q l h", "c"),
            ("DequantizeLinear", "c s z", "y"),
        ],
        {"x": x},
        ["y"],
        {"s": scale, "z": zero, "l": low, "h": high},
        opset,
    )


@few
@given(st.sampled_from(CODES), scales(), st.integers(0, 2**16), st.data())
def test_codes_are_clipped_as_values(
    code: Any, scale: np.ndarray, seed: int, data: st.DataObject
) -> None:
    info = np.iinfo(code)
    within = st.integers(int(info.min), int(info.max))
    low, high = sorted((data.draw(within), data.draw(within)))
    if (low, high) == (info.min, info.max):
        high -= 1
    x = values(seed, float(scale), 4, 50)
    source = clipped(x, scale, codes(code, seed), code(low), code(high))
    left = rewritten(source, run, {"x": x}, expected=1)
    assert left == ["Clip", "QuantizeLinear", "DequantizeLinear"]


@pytest.mark.parametrize("code", CODES)
def test_a_clip_to_all_codes_is_none(code: Any) -> None:
    x, info = values(0, 0.1, 4, 50), np.iinfo(code)
    source = clipped(x, np.float32(0.1), codes(code, 1), code(info.min), code(info.max))
    assert rewritten(source, run, {"x": x}, 1) == ["QuantizeLinear", "DequantizeLinear"]


def test_clips_of_channels_and_of_codes_that_others_read_stay() -> None:
    x = values(0, 0.1, 4, 3)
    scale, zero = np.array([0.1, 0.2, 0.3], np.float32), np.zeros(3, np.int8)
    unchanged(clipped(x, scale, zero, np.int8(-127), np.int8(127)), run)
    nodes = [("QuantizeLinear", "x s", "q"), ("Clip", "q l h", "c"), ("Identity", "q", "y")]
    constants = {"s": np.float32(0.1), "l": np.uint8(3), "h": np.uint8(9)}
    unchanged(model(nodes, {"x": x}, ["c", "y"], constants), run)
