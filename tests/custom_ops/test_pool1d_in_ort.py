"""Poolings of lines inside ONNX Runtime: shapes, and padding. Kernels run on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import pytest

from tests import library_fixtures as fx
from tests.custom_ops.test_library_in_ort import compare, inferred

_OPS = (fx.MAX_POOL_1D, fx.AVERAGE_POOL_1D, fx.GLOBAL_POOL_1D)
POOLS = pytest.mark.parametrize("op", [fx.MAX_POOL_1D, fx.AVERAGE_POOL_1D], ids=["max", "average"])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> fx.HostLibrary:
    built = fx.host_library(tmp_path_factory.mktemp("library") / "pools.onnxbolt.so", _OPS)
    built.machine()
    return built


def _model(op: fx.Fused, x: Sequence[int | str] = ("N", "L", 3), **window: Any) -> onnx.ModelProto:
    extra = {"dilations": [1]} if op is fx.MAX_POOL_1D else {"count_include_pad": 0}
    given = {"strides": [1], "pads": [0, 0], "ceil_mode": 0, **extra, **window}
    return fx.fused_model(op, x, **given)


@POOLS
@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ({"kernel_shape": [2], "strides": [2]}, 5),
        ({"kernel_shape": [3], "strides": [3], "ceil_mode": 1}, 4),
        ({"kernel_shape": [4], "pads": [1, 2]}, 10),
        ({"kernel_shape": [10]}, 1),
    ],
)
def test_lines_agree_with_the_body(
    op: fx.Fused, window: dict[str, Any], expected: int, library: fx.HostLibrary
) -> None:
    y = compare(_model(op, **window), library, (2, 10, 3))
    assert y.shape == (2, expected, 3)
    left, right = window.get("pads", (0, 0))
    assert library.last_pads == [0, left, 0, right]


def test_means_of_lines_agree_with_the_body(library: fx.HostLibrary) -> None:
    y = compare(fx.fused_model(fx.GLOBAL_POOL_1D, ["N", "L", 3]), library, (2, 10, 3))
    assert y.shape == (2, 1, 3)


def test_shapes_of_lines(library: fx.HostLibrary) -> None:
    assert inferred(fx.fused_model(fx.GLOBAL_POOL_1D, ["N", "L", 3]), library) == ["N", 1, 3]
    model = _model(fx.MAX_POOL_1D, kernel_shape=[2], strides=[2])
    assert inferred(model, library) == ["N", "floor((L-2)/2)+1", 3]
    model = _model(fx.AVERAGE_POOL_1D, kernel_shape=[3], pads=[1, 1])
    assert inferred(model, library) == ["N", "L", 3]


def test_an_image_is_no_line(library: fx.HostLibrary) -> None:
    model = _model(fx.MAX_POOL_1D, (2, 4, 4, 3), kernel_shape=[2])
    with pytest.raises(Exception, match="expected rank 3"):
        compare(model, library, (2, 4, 4, 3))
