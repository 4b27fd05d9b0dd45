"""Places of a transposed convolution's results (custom_ops/sm90/phase_places.h) on the host."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.custom_ops.host_kernels import compile_kernels


class Case(NamedTuple):
    """Outputs of the convolution, channels of a group, and for both axes phases, and those that are
    cut in front and behind; phases along the depth."""

    outputs: tuple[int, int, int]
    width: int
    groups: int
    phases: tuple[int, int]
    front: tuple[int, int]
    behind: tuple[int, int]
    slices: int = 1


CASES = (
    Case((1, 1, 1), 8, 1, (2, 2), (0, 0), (0, 0)),
    Case((2, 5, 7), 24, 1, (2, 2), (1, 1), (1, 1)),
    Case((3, 4, 9), 8, 2, (3, 5), (2, 4), (0, 3)),
    Case((2, 1, 77), 40, 1, (1, 8), (0, 4), (0, 4)),
    Case((1, 6, 5), 16, 4, (4, 1), (3, 0), (2, 0)),
    Case((6, 5, 7), 16, 1, (2, 2), (0, 0), (0, 0), 2),
    Case((2, 4, 9), 8, 2, (3, 2), (1, 1), (1, 0), 3),
    Case((3, 5, 2), 24, 1, (1, 1), (0, 0), (0, 0), 4),
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path: Path = compile_kernels("phase_places.cc", (), tmp_path_factory.mktemp("places"))
    return ctypes.CDLL(str(path))


@pytest.mark.parametrize("case", CASES)
def test_each_pixel_has_one_row_and_column(host: ctypes.CDLL, case: Case) -> None:
    (n, p, q), width, groups, (f, g), (top, left), (bottom, right), e = case
    columns = width * groups * e * f * g
    height, across = p * f - top - bottom, q * g - left - right
    extents = (ctypes.c_int * 12)(n, p, q, columns, groups, f, g, top, left, height, across, e)
    place = np.zeros((n * p * q, columns), np.int64)
    channel = np.zeros(place.shape, np.int32)
    host.host_places(extents, ctypes.c_void_p(place.ctypes.data), _at(channel))
    # numpy moves the numbers of results to their pixels
    numbers = np.arange(place.size).reshape(n, p, q, groups, e, f, g, width)
    whole = numbers.transpose(0, 4, 1, 5, 2, 6, 3, 7).reshape(n * e, p * f, q * g, -1)
    pixels = whole[:, top : top + height, left : left + across].reshape(-1, groups * width)
    inside = place >= 0
    assert inside.sum() == pixels.size == n * e * height * across * groups * width
    found = np.full(pixels.shape, -1)
    found[place[inside], channel[inside]] = np.flatnonzero(inside)
    assert np.array_equal(found, pixels)


@pytest.mark.parametrize("width", [8, 24, 40, 64, 256])
@pytest.mark.parametrize(
    ("taps", "phases", "zeros"),
    [((2, 2), (2, 2), (1, 1)), ((2, 3), (3, 4), (2, 0)), ((1, 2), (1, 8), (0, 5)), ((1, 1),) * 3],
)
@pytest.mark.parametrize(("channels", "groups"), [(8, 1), (24, 1), (64, 1), (64, 2)])
@pytest.mark.parametrize("slices", [1, 2])
def test_tiles_skip_taps_at_which_all_phases_meet_zeros(
    host: ctypes.CDLL,
    width: int,
    taps: tuple[int, int],
    phases: tuple[int, int],
    zeros: tuple[int, int],
    channels: int,
    groups: int,
    slices: int,
) -> None:
    of_group = channels * math.prod(phases) * slices
    if groups > 1 and of_group % width:
        pytest.skip("a tile's columns are of one group")
    extents = (ctypes.c_int * 9)(*taps, of_group * groups, groups, *phases, *zeros, slices)
    found = np.full((-(-of_group * groups // width), 2), -1, np.int32)
    host.host_first_taps(extents, width, _at(found))
    # which taps of each column have weights that are not zeros
    meets = np.ones((*phases, *taps), bool)
    meets[phases[0] - zeros[0] :, :, 0] &= taps[0] == 1
    meets[:, phases[1] - zeros[1] :, :, 0] &= taps[1] == 1
    of_phases = np.tile(meets.reshape(-1, *taps), (slices, 1, 1))
    columns = np.tile(np.repeat(of_phases, channels, 0), (groups, 1, 1))
    for first, start in zip(found, range(0, len(columns), width), strict=True):
        tile = np.any(columns[start : start + width], axis=0)
        assert list(first) == [int(not tile[0].any()), int(not tile[:, 0].any())]


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
