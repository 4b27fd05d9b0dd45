"""The GPU tests' references for resizing agree with ONNX Runtime and with ONNX's reference
implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from tests.gpu.resized import SHAPES, ResizeShape, resize
from tests.support import Net, run


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reference_is_onnx_runtime(shape: ResizeShape) -> None:
    model, feeds = _resizing(shape)
    (expected,) = run(model, feeds)
    np.testing.assert_allclose(
        resize(_channels_last(feeds["x"]), shape), _channels_last(expected), rtol=1e-5, atol=1e-5
    )


def _is_as_onnx_says(shape: ResizeShape) -> bool:
    """ONNX's reference takes a fractional number of outputs to align corners, and has a single
    one of pytorch_half_pixel at -0.5, not 0."""
    whole = (
        shape.extent == (shape.scales[0] * shape.h, shape.scales[1] * shape.w)
        and 1 not in shape.extent
    )
    return whole or shape.sampling.coordinates in ("half_pixel", "asymmetric")


@pytest.mark.parametrize(
    "shape", [s for s in SHAPES if s.sampling.mode == "cubic" and _is_as_onnx_says(s)], ids=str
)
def test_reference_is_that_of_onnx(shape: ResizeShape) -> None:
    model, feeds = _resizing(shape)
    expected = np.asarray(next(iter(ReferenceEvaluator(model).run(None, feeds))))
    np.testing.assert_allclose(
        resize(_channels_last(feeds["x"]), shape), _channels_last(expected), rtol=1e-4, atol=1e-4
    )


def _resizing(shape: ResizeShape) -> tuple[ModelProto, dict[str, np.ndarray]]:
    net = Net({"x": (shape.n, shape.c, shape.h, shape.w)})
    cubic: dict[str, Any] = (
        {"cubic_coeff_a": shape.cubic_coeff_a, "exclude_outside": int(shape.exclude_outside)}
        if shape.sampling.mode == "cubic"
        else {}
    )
    y = net.node(
        "Resize",
        "x",
        "",
        net.const([1, 1, *shape.scales]),
        mode=shape.sampling.mode,
        nearest_mode=shape.sampling.rounding,
        coordinate_transformation_mode=shape.sampling.coordinates,
        **cubic,
    )
    x = (
        np.random.default_rng(0)
        .standard_normal((shape.n, shape.c, shape.h, shape.w))
        .astype(np.float32)
    )
    return net.model(y), {"x": x}


def _channels_last(x: np.ndarray) -> np.ndarray:
    return x.transpose(0, 2, 3, 1)
