"""Recursions over a graph that end soon."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onnxbolt.graph.tracing import DEEPEST, traced, unknown


def test_each_argument_is_asked_once_and_only_within_a_call() -> None:
    asked = list[int]()

    @traced(unknown)
    def sums(tensor: int, depth: int) -> int:
        asked.append(depth)
        return sums(tensor, depth - 1) + sums(tensor, depth - 1) if depth else 1

    assert sums(0, 20) == 2**20
    assert asked == list(range(20, -1, -1))
    assert sums(0, 1) == 2
    assert asked[21:] == [1, 0]


@pytest.mark.parametrize(("depth", "answer"), [(DEEPEST - 1, "end"), (DEEPEST, "beyond")])
def test_calls_beyond_the_deepest_are_not_made(depth: int, answer: str) -> None:
    beyond: Callable[[int, int], str] = lambda tensor, depth: "beyond"  # noqa: E731

    @traced(beyond)
    def follow(tensor: int, depth: int) -> str:
        return follow(tensor, depth - 1) if depth else "end"

    assert follow(0, depth) == answer


def test_an_error_leaves_nothing_behind() -> None:
    @traced(unknown)
    def follow(tensor: int, fails: bool) -> int:
        if fails:
            raise ValueError("it fails")
        return tensor

    with pytest.raises(ValueError, match="it fails"):
        follow(1, True)
    assert follow(1, False) == 1
