"""Ops with a second output inside ONNX Runtime: a layer's result that is stored as well, or the
other form of y. Kernels run on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests import library_fixtures as fx
from tests.custom_ops.test_library_in_ort import compare, inferred, session

POINTWISE: dict[str, Any] = {"strides": [1, 1], "pads": [0] * 4, "dilations": [1, 1], "group": 1}
GEMM = fx.fused_model(
    fx.GEMM_STORED, ["B", "S", 24], (16, 24), [[16], ["B", "S", 16], [8, 16], [8]]
)
CONV = fx.fused_model(
    fx.CONV_STORED,
    ["N", 9, 11, 8],
    (6, 1, 1, 8),
    [[6], ["N", 9, 11, 6], [10, 1, 1, 6], [10]],
    **POINTWISE,
)
NORM = fx.fused_model(fx.LAYER_NORM, ["B", "S", 24], (), [["B", "S", 24], [24], [24]], epsilon=0.25)
BOTH = fx.fused_model(
    fx.BOTH,
    ["N", "H", 11, 8],
    (8, 3, 2, 8),
    [[8]],
    strides=[2, 1],
    pads=[0, 1, 2, 3],
    dilations=[1, 1],
    group=1,
    padding=3,
)
BOTH_1D = fx.fused_model(
    fx.BOTH_1D,
    [2, "L", 4],
    (8, 3, 4),
    [[8]],
    strides=[2],
    pads=[1, 2],
    dilations=[1],
    group=1,
    padding=3,
)
# a model, shapes of its inputs, what is known of y's and the stored result's
CASES = {
    "gemm": (GEMM, ((2, 5, 24), (2, 5, 16), (8, 16)), ["B", "S", 8], ["B", "S", 16]),
    "conv": (
        CONV,
        ((2, 9, 11, 8), (2, 9, 11, 6), (10, 1, 1, 6)),
        ["N", 9, 11, 10],
        ["N", 9, 11, 6],
    ),
    "norm": (NORM, ((2, 5, 24), (2, 5, 24)), ["B", "S", 24], ["B", "S", 24]),
    "both forms": (
        BOTH,
        ((2, 9, 11, 8),),
        ["N", 5, "floor((H-1)/2)+1", 14],
        ["N", "floor((H-1)/2)+1", 14, 8],
    ),
    "both forms 1d": (
        BOTH_1D,
        ((2, 12, 4),),
        [2, 5, "floor((L+0)/2)+1"],
        [2, "floor((L+0)/2)+1", 8],
    ),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> fx.HostLibrary:
    path = tmp_path_factory.mktemp("library") / "stored.onnxbolt.so"
    return fx.host_library(
        path, (fx.GEMM_STORED, fx.CONV_STORED, fx.LAYER_NORM, fx.BOTH, fx.BOTH_1D)
    )


def feeds(model: onnx.ModelProto, shapes: Sequence[tuple[int, ...]]) -> dict[str, np.ndarray]:
    return {
        value.name: np.zeros(shape, np.float32)
        for value, shape in zip(model.graph.input, shapes, strict=True)
    }


@pytest.mark.parametrize("case", CASES)
def test_kernel_agrees_with_body(library: fx.HostLibrary, case: str) -> None:
    model, shapes, *_ = CASES[case]
    library.machine()
    compare(model, library, *shapes)


@pytest.mark.parametrize("case", CASES)
def test_shapes_of_both_outputs_are_inferred(library: fx.HostLibrary, case: str) -> None:
    model, _, y, stored = CASES[case]
    library.machine()
    assert (inferred(model, library), inferred(model, library, "stored")) == (y, stored)


@pytest.mark.parametrize("case", ["gemm", "conv"])
def test_a_stored_result_has_the_first_layer_s_columns(library: fx.HostLibrary, case: str) -> None:
    model, shapes, y, stored = CASES[case]
    library.machine()
    empty = [(0, *shape[1:]) if i < 2 else shape for i, shape in enumerate(shapes)]
    results = session(model, library).run(None, feeds(model, empty))
    assert [(value.shape[0], value.shape[-1]) for value in results] == [(0, y[-1]), (0, stored[-1])]


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_both_forms_hold_the_same_values(library: fx.HostLibrary, batch: int) -> None:
    library.machine()
    x = np.random.default_rng(0).standard_normal((batch, 9, 11, 8)).astype(np.float32)
    planes, rows = session(BOTH, library).run(None, {"x": x})
    assert (planes.shape, rows.shape) == ((batch, 5, 5, 14), (batch, 5, 14, 8))
    np.testing.assert_array_equal(planes, rows.transpose(0, 3, 1, 2)[:, :5])


def test_only_1x1_convolutions_store_a_result(library: fx.HostLibrary) -> None:
    model = fx.fused_model(
        fx.CONV_STORED,
        [2, 9, 11, 8],
        (6, 1, 1, 8),
        [[6], [2, 5, 6, 6], [10, 1, 1, 6], [10]],
        **{**POINTWISE, "strides": [2, 2]},
    )
    library.machine()
    with pytest.raises(
        ort.capi.onnxruntime_pybind11_state.InvalidArgument, match="1x1 convolution of every pixel"
    ):
        session(model, library).run(
            None, feeds(model, [(2, 9, 11, 8), (2, 5, 6, 6), (10, 1, 1, 6)])
        )


def test_a_padding_is_less_than_the_channels_that_are_stored(library: fx.HostLibrary) -> None:
    model = fx.fused_model(
        fx.BOTH,
        [2, 9, 11, 8],
        (8, 3, 2, 8),
        [[8]],
        strides=[1, 1],
        pads=[0] * 4,
        dilations=[1, 1],
        group=1,
        padding=8,
    )
    library.machine()
    with pytest.raises(
        ort.capi.onnxruntime_pybind11_state.InvalidArgument,
        match="8 channels, which does not fit a padding of 8",
    ):
        session(model, library).run(None, feeds(model, [(2, 9, 11, 8)]))
