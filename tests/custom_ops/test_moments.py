"""Statistics of rows (custom_ops/sm90/moments.h) on the host, against float64."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from onnxbolt.problems.gemm_moments import PART
from tests.custom_ops.host_kernels import compile_kernels

EPSILON = 1e-5


class HostMoments:
    """The compiled functions."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))

    def written(self, values: np.ndarray) -> np.ndarray:
        """Statistics [parts, rows, 2] of `values` [rows, columns], as warpgroups write them."""
        rows, columns = values.shape
        found = np.full((columns // PART, rows, 2), np.nan, np.float32)
        for part, place in enumerate(found):
            own = np.ascontiguousarray(values[:, part * PART : (part + 1) * PART])
            for first in range(0, rows, 64):
                self._library.host_write_moments(_at(own), first, rows, _at(place))
        return found

    def scales(self, parts: np.ndarray, blocks: int, centered: bool) -> np.ndarray:
        """The mean and the scale of each row, as they are combined for warpgroups of 64 `blocks`
        rows."""
        count, rows, _ = parts.shape
        found = []
        for first in range(0, rows, 64 * blocks):
            of_group = np.full((64 * blocks, 2), np.nan, np.float32)
            self._library.host_scales(
                *(_at(parts), count, rows, first, blocks),
                *(ctypes.c_bool(centered), ctypes.c_float(EPSILON), _at(of_group)),
            )
            assert np.isfinite(of_group).all()
            found.append(of_group)
        return np.concatenate(found)[:rows]


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> HostMoments:
    return HostMoments(compile_kernels("moments.cc", (), tmp_path_factory.mktemp("moments")))


def _values(rows: int, columns: int, mean: float) -> np.ndarray:
    """Rows whose means differ, and are up to `mean` times as large as their deviations."""
    rng = np.random.default_rng(columns)
    means, deviations = rng.uniform(-mean, mean, (rows, 1)), rng.uniform(0.5, 2, (rows, 1))
    return ((rng.normal(0, 1, (rows, columns)) + means) * deviations).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 15, 64, 65, 150])
@pytest.mark.parametrize("mean", [0.0, 1000.0])
def test_parts_have_the_mean_and_the_squares_around_it(
    host: HostMoments, rows: int, mean: float
) -> None:
    values = _values(rows, 2 * PART, mean)
    parts = values.astype(np.float64).reshape(rows, 2, PART).transpose(1, 0, 2)
    found = host.written(values).astype(np.float64)
    means = parts.mean(-1)
    squares = ((parts - means[..., None]) ** 2).sum(-1)
    assert np.allclose(found[..., 0], means, rtol=1e-6, atol=1e-6)
    assert np.allclose(found[..., 1], squares, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 12, 16, 17, 64])
@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("centered", [True, False])
def test_parts_are_combined_to_what_the_norm_does_to_a_row(
    host: HostMoments, count: int, blocks: int, centered: bool
) -> None:
    values = _values(150, count * PART, 100.0)
    found = host.scales(host.written(values), blocks, centered).astype(np.float64)
    exact = values.astype(np.float64)
    means = exact.mean(-1)
    around = exact - means[:, None] if centered else exact
    scales = 1 / np.sqrt((around * around).mean(-1) + EPSILON)
    assert np.allclose(found[:, 0], means, rtol=1e-6, atol=1e-6)
    assert np.allclose(found[:, 1], scales, rtol=1e-5)


def test_a_row_of_equal_values_has_the_deviation_that_epsilon_gives(host: HostMoments) -> None:
    values = np.full((64, 2 * PART), 1234.0, np.float32)
    found = host.scales(host.written(values), 1, True)
    assert np.array_equal(found[:, 0], np.full(64, 1234.0, np.float32))
    assert np.allclose(found[:, 1], EPSILON**-0.5)


def test_a_row_s_statistics_do_not_depend_on_the_others(host: HostMoments) -> None:
    values = _values(150, 3 * PART, 10.0)
    whole = host.scales(host.written(values), 2, True)
    alone = host.scales(host.written(np.ascontiguousarray(values[70:71])), 1, True)
    assert np.array_equal(whole[70:71], alone)
