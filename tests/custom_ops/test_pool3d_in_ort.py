"""Poolings of volumes inside ONNX Runtime: shapes, and the volumes or images that kernels are asked
for. Kernels run on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import pytest

from tests import library_fixtures as fx
from tests.custom_ops.test_library_in_ort import compare, inferred

_OPS = (fx.MAX_POOL_3D, fx.AVERAGE_POOL_3D, fx.GLOBAL_POOL_3D)
POOLS = pytest.mark.parametrize("op", [fx.MAX_POOL_3D, fx.AVERAGE_POOL_3D], ids=["max", "average"])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> fx.HostLibrary:
    built = fx.host_library(tmp_path_factory.mktemp("library") / "pools.onnxbolt.so", _OPS)
    built.machine()
    return built


def _model(
    op: fx.Fused,
    window: Sequence[int],
    x: Sequence[int | str] = ("N", "D", "H", "W", 3),
    **attributes: Any,
) -> onnx.ModelProto:
    extra = {"dilations": [1] * 3} if op is fx.MAX_POOL_3D else {"count_include_pad": 0}
    given = {"strides": [1] * 3, "pads": [0] * 6, "ceil_mode": 0, **extra, **attributes}
    return fx.fused_model(op, x, kernel_shape=list(window), **given)


VOLUMES: list[tuple[tuple[int, ...], dict[str, Any], tuple[int, ...]]] = [
    ((2, 2, 2), {"strides": [2, 2, 2]}, (2, 3, 3, 3, 3)),
    ((3, 3, 3), {"pads": [1] * 6, "strides": [2] * 3}, (2, 3, 4, 4, 3)),
    ((3, 2, 1), {"pads": [2, 0, 0, 1, 1, 0], "strides": [1, 2, 3]}, (2, 7, 4, 3, 3)),
    ((3, 3, 3), {"strides": [2, 2, 2], "ceil_mode": 1}, (2, 3, 3, 3, 3)),
    ((3, 7, 6), {"strides": [2, 1, 1]}, (2, 2, 1, 2, 3)),
]


@POOLS
@pytest.mark.parametrize(("window", "attributes", "expected"), VOLUMES)
def test_windows_of_volumes_agree_with_the_body(
    op: fx.Fused,
    window: tuple[int, ...],
    attributes: dict[str, Any],
    expected: tuple[int, ...],
    library: fx.HostLibrary,
) -> None:
    y = compare(_model(op, window, **attributes), library, (2, 6, 7, 7, 3))
    assert y.shape == expected
    assert library.last_slices == expected[1]


IMAGES: list[tuple[tuple[int, ...], dict[str, Any], list[int]]] = [
    ((1, 3, 2), {"pads": [0, 1, 0, 0, 2, 1], "strides": [1, 2, 2]}, [1, 0, 2, 1]),
    ((3, 1, 1), {"pads": [2, 0, 0, 1, 0, 0], "strides": [2, 1, 1]}, [2, 0, 1, 0]),
    ((6, 7, 8), {}, [0] * 4),
    ((2, 7, 8), {"pads": [1, 0, 0, 0, 0, 0], "strides": [3, 2, 2]}, [1, 0, 0, 0]),
]


@POOLS
@pytest.mark.parametrize(("window", "attributes", "pads"), IMAGES)
def test_windows_of_images_agree_with_the_body(
    op: fx.Fused,
    window: tuple[int, ...],
    attributes: dict[str, Any],
    pads: list[int],
    library: fx.HostLibrary,
) -> None:
    compare(_model(op, window, **attributes), library, (2, 6, 7, 8, 3))
    assert library.last_slices == 0
    assert library.last_pads == pads


def test_padding_counts_along_the_depth(library: fx.HostLibrary) -> None:
    for window, slices in (((3, 2, 2), 6), ((3, 1, 1), 0)):
        pads = [1, 0, 0, 1, 0, 0]
        model = _model(fx.AVERAGE_POOL_3D, window, pads=pads, count_include_pad=1)
        compare(model, library, (2, 6, 7, 8, 3))
        assert library.last_slices == slices


def test_dilations_along_the_depth(library: fx.HostLibrary) -> None:
    model = _model(fx.MAX_POOL_3D, (2, 2, 3), dilations=[3, 2, 1])
    assert compare(model, library, (2, 6, 7, 8, 3)).shape == (2, 3, 5, 6, 3)


def test_the_mean_of_a_volume(library: fx.HostLibrary) -> None:
    model = fx.fused_model(fx.GLOBAL_POOL_3D, [2, "D", "H", "W", 3])
    assert compare(model, library, (2, 5, 6, 7, 3)).shape == (2, 1, 1, 1, 3)
    assert library.last_slices == 0
    assert inferred(model, library) == [2, 1, 1, 1, 3]


def test_sizes_of_outputs_are_inferred(library: fx.HostLibrary) -> None:
    model = _model(fx.MAX_POOL_3D, (2, 2, 2), ["N", 6, "H", 9, 3], strides=[2] * 3)
    known = inferred(model, library)
    assert [known[axis] for axis in (0, 1, 3, 4)] == ["N", 3, 4, 3]
