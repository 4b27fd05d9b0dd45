"""Trees are evaluated as they were trained, and files cannot make them endless."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxbolt.learned.trees import Trees

# x0 <= 1 ? 10 : (x1 <= 2 ? 20 : 30), and a tree that is a leaf
HELD: dict[str, list[Any]] = {
    "roots": [0, 5],
    "feature": [0, 0, 1, 0, 0, 0],
    "threshold": [1.0, 0.0, 2.0, 0.0, 0.0, 0.0],
    "left": [1, 1, 3, 3, 4, 5],
    "right": [2, 1, 4, 3, 4, 5],
    "value": [0.0, 10.0, 0.0, 20.0, 30.0, 0.5],
}


def test_each_row_gets_the_sum_of_its_leaves() -> None:
    rows = np.array([[1.0, 9.0], [1.5, 2.0], [2.0, 2.5]], np.float32)
    trees = Trees.of(HELD, 2)
    assert trees.depth == 2
    assert trees.sums(rows).tolist() == [10.5, 20.5, 30.5]
    assert Trees.of({name: [] for name in HELD}, 2).sums(rows).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("part", "values", "what"),
    [
        ("right", [2, 1, 0, 3, 4, 5], "node 2 leads backwards"),
        ("left", [1, 1, 3, 3, 4, 9], "none of"),
        ("feature", [0, 0, 2, 0, 0, 0], "none of"),
        ("roots", [6], "none of"),
        ("value", [0.0, 10.0], "different numbers"),
        ("value", [0.0, float("nan"), 0.0, 0.0, 0.0, 0.0], "value: a finite number"),
        ("value", [0.0, 10.0, 0.0, 1e308, 0.0, 0.0], "a leaf has a value beyond"),
        ("threshold", [True, 0.0, 2.0, 0.0, 0.0, 0.0], "threshold: a finite number"),
        ("left", [1.0, 1, 3, 3, 4, 5], "left"),
        ("left", "no list", "left: a list"),
    ],
)
def test_trees_that_would_not_end_are_refused(part: str, values: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        Trees.of({**HELD, part: values}, 2)
