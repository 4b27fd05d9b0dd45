"""Convolutions of volumes inside ONNX Runtime: shapes, and the volumes or images that kernels are
asked for. Kernels run on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import pytest

from tests import library_fixtures as fx
from tests.custom_ops.test_library_in_ort import compare, inferred

_OPS = (fx.CONV_3D, fx.CONV_3D_OF_IMAGES)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> fx.HostLibrary:
    built = fx.host_library(
        tmp_path_factory.mktemp("library") / "volumes.onnxbolt.so", _OPS, archs=(80, 90)
    )
    built.machine()
    return built


def _model(
    x: Sequence[int | str],
    weight: Sequence[int],
    y: Sequence[int | str],
    fused: fx.Fused = fx.CONV_3D,
    **attributes: Any,
) -> onnx.ModelProto:
    """A node with a residual."""
    given = {"strides": [1] * 3, "pads": [0] * 6, "dilations": [1] * 3, "group": 1, **attributes}
    if fused is fx.CONV_3D:
        given["epilogue_params"] = [0.25]
    return fx.fused_model(fused, x, weight, [[weight[0]], y], **given)


VOLUMES: dict[str, fx.Case] = {
    "3x3x3": (
        _model(["N", "D", 6, 7, 4], (6, 3, 3, 3, 4), ["N", "D", 6, 7, 6], pads=[1] * 6),
        [(2, 5, 6, 7, 4), (2, 5, 6, 7, 6)],
    ),
    "all sizes differ": (
        _model(
            [2, 9, "H", 8, 4],
            (6, 4, 2, 3, 4),
            [2, 4, "P", 6, 6],
            strides=[2, 3, 1],
            pads=[1, 0, 2, 0, 3, 0],
            dilations=[1, 3, 2],
        ),
        [(2, 9, 7, 8, 4), (2, 4, 3, 6, 6)],
    ),
    "groups": (
        _model([1, 4, 5, 6, 8], (6, 2, 3, 1, 4), [1, 3, 3, 6, 6], group=2),
        [(1, 4, 5, 6, 8), (1, 3, 3, 6, 6)],
    ),
    "points with strides": (
        _model([2, 5, 6, 7, 4], (6, 1, 1, 1, 4), [2, 3, 3, 4, 6], strides=[2] * 3),
        [(2, 5, 6, 7, 4), (2, 3, 3, 4, 6)],
    ),
    "all but the width": (
        _model([2, 5, 6, 7, 4], (6, 3, 3, 1, 4), [2, 3, 4, 7, 6]),
        [(2, 5, 6, 7, 4), (2, 3, 4, 7, 6)],
    ),
}
IMAGES: dict[str, fx.Case] = {
    "slices": (
        _model(
            ["N", "D", 6, 7, 4],
            (6, 1, 3, 2, 4),
            ["N", "D", 3, 9, 6],
            fx.CONV_3D_OF_IMAGES,
            strides=[1, 2, 1],
            pads=[0, 1, 1, 0, 0, 2],
        ),
        [(2, 5, 6, 7, 4), (2, 5, 3, 9, 6)],
    ),
    "columns of pixels": (
        _model(
            [2, "D", "H", 7, 4],
            (6, 3, 1, 1, 4),
            [2, "O", "H", 7, 6],
            fx.CONV_3D_OF_IMAGES,
            strides=[2, 1, 1],
            pads=[2, 0, 0, 1, 0, 0],
            dilations=[2, 1, 1],
        ),
        [(2, 6, 5, 7, 4), (2, 3, 5, 7, 6)],
    ),
    "points": (
        _model([2, 3, 5, 7, 8], (6, 1, 1, 1, 4), [2, 3, 5, 7, 6], fx.CONV_3D_OF_IMAGES, group=2),
        [(2, 3, 5, 7, 8), (2, 3, 5, 7, 6)],
    ),
}


@pytest.mark.parametrize("case", VOLUMES)
def test_kernels_of_volumes_agree_with_the_body(case: str, library: fx.HostLibrary) -> None:
    model, shapes = VOLUMES[case]
    assert compare(model, library, *shapes).shape == shapes[1]
    assert library.last_slices == shapes[1][1]


@pytest.mark.parametrize("case", IMAGES)
def test_kernels_of_images_agree_with_the_body(case: str, library: fx.HostLibrary) -> None:
    model, shapes = IMAGES[case]
    assert compare(model, library, *shapes).shape == shapes[1]
    assert library.last_slices == 0


def test_sizes_of_outputs_are_inferred(library: fx.HostLibrary) -> None:
    known = inferred(VOLUMES["all sizes differ"][0], library)
    assert [known[axis] for axis in (0, 1, 3, 4)] == [2, 4, 6, 6]
    assert inferred(VOLUMES["3x3x3"][0], library) == ["N", "D", 6, 7, 6]
