from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from onnxbolt.canonicalize.quantized.scaling import Scaling, scaling_of
from tests.canonicalize.compare import outputs_of
from tests.canonicalize.quantized.compare import CODES, codes, few, graph_of, model, scales, values

seeds = st.integers(0, 2**16)


@few
@given(st.sampled_from(CODES), scales(3), seeds, st.booleans())
def test_both_directions_are_onnx_runtimes(
    code: Any, scale: np.ndarray, seed: int, per_channel: bool
) -> None:
    scale = scale if per_channel else scale[:1].reshape(())
    zero = codes(code, seed, *scale.shape)
    x = values(seed, float(scale.max()), 4, 3, 5)
    source = model(
        [("QuantizeLinear", "x s z", "q"), ("DequantizeLinear", "q s z", "y")],
        {"x": x},
        ["q", "y"],
        {"s": scale, "z": zero},
    )
    quantize, dequantize = graph_of(source).nodes
    found = scaling_of(quantize)
    assert found is not None
    assert found.axis == (1 if per_channel else None)
    down = scaling_of(dequantize)
    assert down is not None
    assert found.same(down)
    q, y = outputs_of(source, ["q", "y"], {"x": x})
    assert found.quantized(x).tobytes() == q.tobytes()
    assert found.dequantized(q).tobytes() == y.tobytes()


@few
@given(st.sampled_from([*CODES, ml_dtypes.float8_e4m3fn]), st.floats(0, 2.0**120, width=32), seeds)
def test_what_returns_does(code: Any, scale: float, seed: int) -> None:
    """All codes have themselves as the codes of their values, if the scaling says so."""
    every = np.arange(256).astype(np.uint8).view(code)
    every = every[np.isfinite(every.astype(np.float32))]
    zero = np.zeros((), code) if code not in CODES else codes(code, seed)
    scaling = Scaling(np.dtype(code), np.array(scale, np.float32), zero)
    if not scaling.returns:
        assert not 2.0**-100 < scale < 2.0**100
        return
    # ONNX Runtime's Python interface has no fp8, and a Cast gives each code a value of its own
    source = model(
        [
            ("DequantizeLinear", "q s z", "x"),
            ("QuantizeLinear", "x s z", "r"),
            ("Cast", "r", "c", {"to": TensorProto.FLOAT}),
            ("Add", "c nothing", "y"),
        ],
        {"nothing": np.zeros((), np.float32)},
        ["y"],
        {"s": scaling.scale, "z": zero, "q": every},
    )
    (y,) = outputs_of(source, ["y"], {"nothing": np.zeros((), np.float32)})
    assert np.array_equal(y, every.astype(np.float32))


@pytest.mark.parametrize("dtype", CODES)
def test_scales_of_fp16_return(dtype: Any) -> None:
    scale = np.array([2.0**-14, 0.003, 0.1, 1.0, 200.0], np.float16)
    every = np.tile(np.arange(256).astype(np.uint8).view(dtype)[:, None], (1, len(scale)))
    zero = np.zeros(len(scale), dtype)
    assert Scaling(np.dtype(dtype), scale, zero, 1).returns
    source = model(
        [("DequantizeLinear", "q s z", "x"), ("QuantizeLinear", "x s z", "y")],
        {"q": every},
        ["y"],
        {"s": scale, "z": zero},
    )
    (y,) = outputs_of(source, ["y"], {"q": every})
    assert y.tobytes() == every.tobytes()


def test_scales_without_numbers_are_none() -> None:
    x, s = np.ones((2, 4), np.float32), np.ones((), np.float32)
    source = model(
        [
            ("QuantizeLinear", "x s", "q"),
            ("QuantizeLinear", "x t", "r"),
            ("QuantizeLinear", "x b", "u", {"block_size": 2}),
        ],
        {"x": x, "s": s},
        ["q", "r", "u"],
        {"t": np.ones(3, np.float32), "b": np.ones((2, 2), np.float32)},
        opset=21,
    )
    nodes = graph_of(source).nodes
    assert scaling_of(nodes[0]) is None  # computed at run time
    three = scaling_of(nodes[1])
    assert three is not None
    assert three.axis == 1
    assert scaling_of(nodes[2]) is None  # scales for blocks


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan, 2.0**-140, 2.0**125])
def test_scales_that_lose_codes_do_not_return(scale: float) -> None:
    numbers = np.array(scale, np.float32)
    assert not Scaling(np.dtype(np.int8), numbers, np.zeros((), np.int8)).returns
