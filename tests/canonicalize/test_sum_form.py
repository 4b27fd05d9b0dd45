from __future__ import annotations

from onnxbolt.canonicalize.sum_form import run
from tests.canonicalize.compare import applied, model, operators, random, unchanged


def test_a_sum_of_two_is_an_add() -> None:
    source = model([("Sum", "x c", "y")], {"x": ("n", 4)}, {"y": ("n", 4)}, {"c": random(4)})
    assert operators(applied(source, run, 1)) == ["Add"]


def test_sums_of_more_stay() -> None:
    unchanged(
        model([("Sum", "x c x", "y")], {"x": ("n", 4)}, {"y": ("n", 4)}, {"c": random(4)}), run
    )
