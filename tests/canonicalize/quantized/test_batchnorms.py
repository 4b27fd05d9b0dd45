from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnxbolt.canonicalize.quantized.batchnorms import run
from onnxbolt.graph.exporter import export_model
from tests.canonicalize.compare import operators, outputs_of
from tests.canonicalize.quantized.compare import codes, graph_of, model, unchanged

CHANNELS = 6


def _model(code: Any, bias: bool, scale: np.ndarray, **more: Any) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weight = rng.integers(-100, 100, (CHANNELS, 3, 3, 3)).astype(code)
    zero = weight.reshape(-1)[0] if code is np.int8 and not scale.shape else 0
    constants = {
        "w": weight,
        "t": scale,
        "z": np.full(scale.shape, zero, code),
        "b": rng.standard_normal(CHANNELS).astype(scale.dtype),
        **{name: rng.standard_normal(CHANNELS).astype(scale.dtype) for name in ("g", "h", "m")},
        "v": rng.uniform(0.1, 2, CHANNELS).astype(scale.dtype),
        **more,
    }
    nodes = [
        ("DequantizeLinear", "w t z", "values", {"axis": 0}),
        ("Conv", "x values b" if bias else "x values", "c"),
        ("BatchNormalization", "c g h m v", "y"),
    ]
    return model(nodes, {"x": _x(scale.dtype)}, ["y"], constants)


def _x(dtype: Any) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((2, 3, 5, 5)).astype(dtype)


def _scales(dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(2).uniform(0.001, 0.01, CHANNELS).astype(dtype)


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("code", [np.int8, ml_dtypes.float8_e4m3fn])
def test_scales_and_bias_take_it(code: Any, bias: bool, per_channel: bool) -> None:
    """Codes stay, and results differ by roundings of fp32 alone."""
    source = _model(code, bias, _scales() if per_channel else _scales()[0])
    graph = graph_of(source)
    assert run(graph) == 1
    assert operators(graph) == ["DequantizeLinear", "Conv"]
    assert graph.nodes[0].inputs[0].name == "w"
    x = _x(np.float32)
    (before,), (after,) = (
        outputs_of(each, ["y"], {"x": x}) for each in (source, export_model(graph))
    )
    np.testing.assert_allclose(after, before, rtol=0, atol=2.0**-20 * np.abs(before).max())


def test_scales_of_fp16_and_factors_beyond_the_range_stay() -> None:
    unchanged(_model(np.int8, True, _scales(np.float16)), run)
    huge = np.full(CHANNELS, 3e38, np.float32)
    unchanged(_model(np.int8, True, _scales(), g=huge, h=huge), run)


def test_a_convolution_that_others_read_stays() -> None:
    source = _model(np.int8, True, _scales())
    source.graph.output.append(onnx.ValueInfoProto(name="c"))
    unchanged(source, run)
    unchanged(
        model(
            [("DequantizeLinear", "w t", "values"), ("MatMul", "x values", "y")],
            {"x": np.ones((2, 4), np.float32)},
            ["y"],
            {"w": codes(np.int8, 0, 4, 5), "t": np.float32(1)},
        ),
        run,
    )
