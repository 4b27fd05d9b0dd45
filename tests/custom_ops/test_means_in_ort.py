"""Convolutions whose output is the mean over each image, inside ONNX Runtime. Kernels run on the
CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxbolt.ops.base import Part
from tests import library_fixtures as fx
from tests.custom_ops.test_library_in_ort import compare, inferred, session

WINDOW = {"strides": [2, 1], "pads": [0, 1, 2, 3], "dilations": [1, 2], "group": 2}
POINTWISE: dict[str, Any] = {"strides": [1, 1], "pads": [0] * 4, "dilations": [1, 1], "group": 1}
PLACED = fx.Fused("conv", *fx.MEAN_STEPS, rank=4, family=fx.CONV_MEAN.family, part=Part.FIRST)


def averaged(
    op: fx.Fused = fx.CONV_MEAN,
    residual: tuple[int | str, ...] = ("N", 5, 13, 6),
    **attributes: Any,
) -> onnx.ModelProto:
    return fx.fused_model(
        op, ["N", 9, 11, 8], (6, 3, 2, 4), [[6], residual], **{**WINDOW, **attributes}
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> fx.HostLibrary:
    built = fx.host_library(
        tmp_path_factory.mktemp("library") / "means.onnxbolt.so", (fx.CONV_MEAN, PLACED)
    )
    built.machine()
    return built


@pytest.mark.parametrize("batch", [1, 3])
def test_kernel_agrees_with_body(library: fx.HostLibrary, batch: int) -> None:
    assert compare(averaged(), library, (batch, 9, 11, 8), (batch, 5, 13, 6)).shape == (
        batch,
        1,
        1,
        6,
    )
    pointwise = fx.fused_model(
        fx.CONV_MEAN, ["N", 7, 7, 8], (6, 1, 1, 8), [[6], ["N", 7, 7, 6]], **POINTWISE
    )
    compare(pointwise, library, (batch, 7, 7, 8), (batch, 7, 7, 6))


def test_shapes_follow_symbols(library: fx.HostLibrary) -> None:
    assert inferred(averaged(), library) == ["N", 1, 1, 6]
    assert inferred(averaged(PLACED, around=[0, 0, 0, 2, 0, 0, 0, 3]), library) == ["N", 1, 1, 11]


def test_means_are_written_to_their_channels_of_a_larger_tensor(library: fx.HostLibrary) -> None:
    model = averaged(PLACED, around=[0, 0, 0, 2, 0, 0, 0, 3])
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((2, 9, 11, 8)).astype(np.float32),
        "operand2": rng.standard_normal((2, 5, 13, 6)).astype(np.float32),
    }
    (ours,), (body,) = (session(model, used).run(None, feeds) for used in (library, None))
    assert ours.shape == (2, 1, 1, 11)
    np.testing.assert_allclose(ours[..., 2:8], body[..., 2:8], rtol=1e-5, atol=1e-5)


def test_no_images_have_no_means(library: fx.HostLibrary) -> None:
    feeds = {
        "x": np.zeros((0, 9, 11, 8), np.float32),
        "operand2": np.zeros((0, 5, 13, 6), np.float32),
    }
    before = library.launches
    assert session(averaged(), library).run(None, feeds)[0].shape == (0, 1, 1, 6)
    assert library.launches == before


def test_residuals_have_the_shape_of_what_is_averaged(library: fx.HostLibrary) -> None:
    model = averaged(residual=("N", 1, 1, 6))
    feeds = {
        "x": np.zeros((2, 9, 11, 8), np.float32),
        "operand2": np.zeros((2, 1, 1, 6), np.float32),
    }
    with pytest.raises(
        ort.capi.onnxruntime_pybind11_state.InvalidArgument,
        match=r"shape \[2,1,1,6\], expected \[2,5,13,6\]",
    ):
        session(model, library).run(None, feeds)
