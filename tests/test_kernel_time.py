"""Formulas that all predicted times share."""

from __future__ import annotations

import pytest

from onnxbolt.archs import get
from onnxbolt.kernel_time import EFFICIENCY, TileTime, bandwidth, overlapped, sm_us


def test_a_copy_reaches_a_part_of_the_bandwidth() -> None:
    assert bandwidth(get(80)) == get(80).bandwidth * EFFICIENCY


def test_the_shorter_of_computing_and_memory_is_partly_hidden() -> None:
    assert overlapped(10.0, 4.0, 0.5) == overlapped(4.0, 10.0, 0.5) == 12.0
    assert overlapped(10.0, 0.0) == 10.0


@pytest.mark.parametrize(("tiles", "resident", "us"), [(1, 2, 5.0), (4, 1, 20.0), (4, 2, 18.0)])
def test_resident_tiles_hide_epilogues(tiles: int, resident: float, us: float) -> None:
    """Tiles of 4 us and 1 us."""
    assert sm_us(tiles, resident, TileTime(4.0, 1.0)) == us
