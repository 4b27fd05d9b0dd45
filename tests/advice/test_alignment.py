"""Axes of two shapes that belong together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from onnxbolt.advice.alignment import Size, aligned


@pytest.mark.parametrize(
    ("before", "behind", "groups"),
    [
        ([2, 5, 12], [2, 5, 3, 4], [([0], [0]), ([1], [1]), ([2], [2, 3])]),
        (["n", "s", 12], ["n", "s", 3, 4], [([0], [0]), ([1], [1]), ([2], [2, 3])]),
        (["n", 3, 4], ["n", 12], [([0], [0]), ([1, 2], [1])]),
        ([2, 8, 1, 1], [2, 8], [([0], [0]), ([1], [1]), ([2], []), ([3], [])]),
        ([2, 8], [1, 2, 8], [([], [0]), ([0], [1]), ([1], [2])]),
        ([None, 6, 8], [None, 2, 3, 8], [([1], [1, 2]), ([2], [3])]),
        ([4, None, 8], [4, None, 8], [([0], [0]), ([2], [2])]),
        (["n", 6], ["m", 6], [([1], [1])]),
        ([4, 6], [8, 3], [([0, 1], [0, 1])]),
        ([6], [6], [([0], [0])]),
    ],
)
def test_axes_of_equal_products_are_grouped(
    before: Sequence[Size], behind: Sequence[Size], groups: list[tuple[list[int], list[int]]]
) -> None:
    found = [(list(a), list(b)) for a, b in aligned(before, behind)]
    assert [group for group in found if any(group)] == groups
