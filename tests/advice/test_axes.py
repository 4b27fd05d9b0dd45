"""Changes of axes: grown, joined, divided, and as products of several axes."""

from __future__ import annotations

import numpy as np
import pytest

from onnxbolt.advice.axes import NEW, divided, grown, joined, merged, split, unchanged


def test_an_axis_grows_at_its_end_or_at_the_end_of_each_part() -> None:
    assert grown(3, 5) == (0, 1, 2, NEW, NEW)
    assert grown(4, 6, parts=2) == (0, 1, NEW, 2, 3, NEW)
    assert grown(6, 4, parts=2) == (0, 1, 3, 4)


def test_parts_side_by_side() -> None:
    whole = joined([(0, NEW), (0, 1)], [1, 2])
    assert whole == (0, NEW, 1, 2)
    assert divided(whole, [1, 2]) == [(0, NEW), (0, 1)]
    assert divided((2, 0, 1), [1, 2]) is None  # a position in front of its part


def test_a_product_of_axes_changes_with_one_of_them() -> None:
    heads, size = 2, 3
    whole = merged([unchanged(heads), grown(size, 4)], [heads, size])
    assert whole == (0, 1, 2, NEW, 3, 4, 5, NEW)
    assert split(whole, [heads, size]) == [unchanged(heads), grown(size, 4)]
    assert split(grown(6, 9), [heads, size]) == [grown(heads, 3), unchanged(size)]
    assert split(grown(6, 8), [heads, size]) is None  # added at the end of the second head alone


@pytest.mark.parametrize("sizes", [[2, 3], [3, 2, 4]])
def test_split_undoes_merged(sizes: list[int]) -> None:
    for axis, each in enumerate(sizes):
        parts = [unchanged(size) for size in sizes]
        parts[axis] = grown(each, each + 2)
        assert split(merged(parts, sizes), sizes) == parts


def test_positions_are_those_that_numpy_takes() -> None:
    values = np.arange(12).reshape(3, 4)
    whole = merged([grown(3, 2), unchanged(4)], [3, 4])
    assert values.reshape(-1)[list(whole)].tolist() == values[:2].reshape(-1).tolist()
