from __future__ import annotations

import pytest

from onnxbolt.canonicalize.max_form import run
from tests.canonicalize.compare import applied, model, operators, unchanged


@pytest.mark.parametrize("sizes", [(5,), (5, 6), (3, 5, 6)])
def test_a_global_maximum_is_that_of_a_window(sizes: tuple[int, ...]) -> None:
    ones = (1,) * len(sizes)
    source = model([("GlobalMaxPool", "x", "y")], {"x": ("n", 4, *sizes)}, {"y": ("n", 4, *ones)})
    assert operators(applied(source, run, 1)) == ["MaxPool"]


def test_a_window_of_open_size_stays() -> None:
    shapes = {"x": ("n", 4, 5, "w")}, {"y": ("n", 4, 1, 1)}
    unchanged(model([("GlobalMaxPool", "x", "y")], *shapes), run)
