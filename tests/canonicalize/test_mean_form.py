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


@pytest.mark.parametrize("rank", [3, 5])
def test_means_of_what_convolutions_made_are_poolings_in_any_rank(rank: int) -> None:
    sizes, weight = (5, 6, 7)[: rank - 2], np.ones((3, 4, *(1,) * (rank - 2)), np.float32)
    axes = list(range(-1, 1 - rank, -1))
    nodes = [
        ("Conv", "x w", "a"),
        ("Relu", "a", "b"),
        ("ReduceMean", "b", "y", {"axes": axes, "keepdims": 0}),
    ]
    source = model(nodes, {"x": ("n", 4, *sizes)}, {"y": ("n", 3)}, {"w": weight})
    assert operators(applied(source, run, 1)) == ["Conv", "Relu", "GlobalAveragePool", "Flatten"]


@pytest.mark.parametrize("op", ["Relu", "Transpose"])
def test_means_of_tokens_stay(op: str) -> None:
    """The last axis of [N, tokens, C] is not one of pixels."""
    nodes = [
        ("Conv", "x w", "a"),
        ("Transpose", "a", "b", {"perm": [0, 2, 1]}),
        ("Relu", "b", "c"),
        ("ReduceMean", "c", "y", {"axes": [2], "keepdims": 0}),
    ]
    unchanged(
        model(nodes[2:], {"b": ("n", 4, 4)}, {"y": ("n", 4)})
        if op == "Relu"
        else model(
            nodes, {"x": ("n", 4, 4)}, {"y": ("n", 4)}, {"w": np.ones((4, 4, 1), np.float32)}
        ),
        run,
    )
