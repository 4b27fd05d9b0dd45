"""Recursions over a graph that end soon."""

from __future__ import annotations

from collections.abc import Callable

import onnx_graphsurgeon as gs
import pytest

from onnxbolt.graph.tracing import DEEPEST, traced, unknown

X = gs.Variable("x")


def test_each_argument_is_asked_once_and_only_within_a_call() -> None:
    asked = list[int]()

    @traced(unknown)
    def sums(tensor: gs.Tensor, depth: int) -> int:
        asked.append(depth)
        return sums(tensor, depth - 1) + sums(tensor, depth - 1) if depth else 1

    assert sums(X, 20) == 2**20
    assert asked == list(range(20, -1, -1))
    assert sums(X, 1) == 2
    assert asked[21:] == [1, 0]


@pytest.mark.parametrize(("depth", "answer"), [(DEEPEST - 1, "end"), (DEEPEST, "beyond")])
def test_calls_beyond_the_deepest_are_not_made(depth: int, answer: str) -> None:
    beyond: Callable[[gs.Tensor, int], str] = lambda tensor, depth: "beyond"  # noqa: E731

    @traced(beyond)
    def follow(tensor: gs.Tensor, depth: int) -> str:
        return follow(tensor, depth - 1) if depth else "end"

    assert follow(X, depth) == answer


def test_an_error_leaves_nothing_behind() -> None:
    @traced(unknown)
    def follow(tensor: gs.Tensor, fails: bool) -> int:
        if fails:
            raise ValueError("it fails")
        return 1

    with pytest.raises(ValueError, match="it fails"):
        follow(X, True)
    assert follow(X, False) == 1
