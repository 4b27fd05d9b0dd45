"""Ops with a residual between their layers, of which nothing is stored, inside ONNX Runtime.
Kernels run on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests import library_fixtures as fx
from tests.custom_ops.test_library_in_ort import compare, inferred, session

POINTWISE: dict[str, Any] = {"strides": [1, 1], "pads": [0] * 4, "dilations": [1, 1], "group": 1}
GEMM = fx.fused_model(fx.GEMM_INNER, ["B", "S", 24], (16, 24), [[16], ["B", "S", 16], [8, 16], [8]])
CONV = fx.fused_model(
    fx.CONV_INNER,
    ["N", 9, 11, 8],
    (6, 1, 1, 8),
    [[6], ["N", 9, 11, 6], [10, 1, 1, 6], [10]],
    **POINTWISE,
)
# a model, shapes of its inputs, what is known of y's
CASES = {
    "gemm": (GEMM, ((2, 5, 24), (2, 5, 16), (8, 16)), ["B", "S", 8]),
    "conv": (CONV, ((2, 9, 11, 8), (2, 9, 11, 6), (10, 1, 1, 6)), ["N", 9, 11, 10]),
}
InvalidArgument = ort.capi.onnxruntime_pybind11_state.InvalidArgument


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> fx.HostLibrary:
    return fx.host_library(
        tmp_path_factory.mktemp("library") / "inner.onnxbolt.so", (fx.GEMM_INNER, fx.CONV_INNER)
    )


@pytest.mark.parametrize("case", CASES)
def test_kernel_agrees_with_body(library: fx.HostLibrary, case: str) -> None:
    model, shapes, _ = CASES[case]
    library.machine()
    compare(model, library, *shapes)


@pytest.mark.parametrize("case", CASES)
def test_y_has_the_last_layer_s_columns(library: fx.HostLibrary, case: str) -> None:
    model, shapes, y = CASES[case]
    library.machine()
    assert inferred(model, library) == y
    empty = {
        value.name: np.zeros((0, *shape[1:]) if i < 2 else shape, np.float32)
        for i, (value, shape) in enumerate(zip(model.graph.input, shapes, strict=True))
    }
    (result,) = session(model, library).run(None, empty)
    assert result.shape == (0, *shapes[1][1:-1], shapes[2][0])


def refused(
    library: fx.HostLibrary,
    fused: fx.Fused,
    *shapes: tuple[int, ...],
    weight: tuple[int, ...],
    **attributes: Any,
) -> str:
    """A node's message for inputs with these shapes: x, the residual and the second weight."""
    x, residual, second = map(list, shapes)
    model = fx.fused_model(
        fused, x, weight, [[weight[0]], residual, second, [second[0]]], **attributes
    )
    library.machine()
    with pytest.raises(InvalidArgument) as caught:
        session(model, library).run(
            None,
            {
                value.name: np.zeros(shape, np.float32)
                for value, shape in zip(model.graph.input, shapes, strict=True)
            },
        )
    return str(caught.value)


def test_a_residual_has_the_first_layer_s_columns(library: fx.HostLibrary) -> None:
    said = refused(library, fx.GEMM_INNER, (2, 5, 24), (2, 5, 8), (8, 16), weight=(16, 24))
    assert "input 3 has shape" in said


def test_only_1x1_convolutions_have_a_residual_before_the_next(library: fx.HostLibrary) -> None:
    said = refused(
        library,
        fx.CONV_INNER,
        (2, 9, 11, 8),
        (2, 5, 6, 6),
        (10, 1, 1, 6),
        weight=(6, 1, 1, 8),
        **{**POINTWISE, "strides": [2, 2]},
    )
    assert "1x1 convolution of every pixel" in said
