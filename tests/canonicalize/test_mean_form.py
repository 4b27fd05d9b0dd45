from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxbolt.canonicalize.mean_form import run
from tests.canonicalize.compare import applied, model, operators, unchanged


@pytest.mark.parametrize("axes", [[2, 3], [-1, 2]])
def test_a_mean_without_height_and_width_is_a_pooling(axes: list[int]) -> None:
    shapes = {"x": ("n", 4, 5, "w")}, {"y": ("n", 4)}
    old = model([("ReduceMean", "x", "y", {"axes": axes, "keepdims": 0})], *shapes)
    new = model(
        [("ReduceMean", "x axes", "y", {"keepdims": 0})],
        *shapes,
        {"axes": np.array(axes)},
        opset=18,
    )
    for source in (old, new):
        assert operators(applied(source, run, 1)) == ["GlobalAveragePool", "Flatten"]


@pytest.mark.parametrize(
    ("axes", "keep", "shape"),
    [
        ([2, 3], 1, ("n", 4, 1, 1)),
        ([1, 2], 0, ("n", 6)),
        ([1, 2, 3], 0, ("n",)),
        ([3], 0, ("n", 4, 5)),
        (None, 0, ()),
    ],
)
def test_other_means_stay(axes: list[int] | None, keep: int, shape: tuple[int | str, ...]) -> None:
    attributes: dict[str, Any] = {"keepdims": keep} | ({"axes": axes} if axes else {})
    unchanged(
        model([("ReduceMean", "x", "y", attributes)], {"x": ("n", 4, 5, 6)}, {"y": shape}), run
    )
