"""Repeated layers are found, and only those."""

from __future__ import annotations

from onnxbolt.report.page.folding import Fold, folds


def layers(
    count: int, ops: str = "abcd", shared: bool = False
) -> tuple[list[str], list[list[int]]]:
    """A chain of equal layers behind one node; with `shared`, all of them also read that node."""
    kinds = ["first"]
    inputs: list[list[int]] = [[]]
    for _ in range(count):
        for place, op in enumerate(ops):
            inputs.append([len(kinds) - 1, *([0] if shared and place == 1 else [])])
            kinds.append(op)
    return kinds, inputs


def test_equal_layers_are_one_fold() -> None:
    assert folds(*layers(12)) == [Fold(1, 4, 12)]


def test_layers_may_read_a_node_that_all_of_them_read() -> None:
    assert folds(*layers(5, shared=True)) == [Fold(1, 4, 5)]


def test_layers_that_are_wired_otherwise_are_not_folded() -> None:
    kinds, inputs = layers(3)
    inputs[6] = [2]  # the second layer's second node skips one
    assert folds(kinds, inputs) == []


def test_what_follows_and_precedes_stays() -> None:
    kinds, inputs = layers(6)
    kinds += ["last"]
    inputs += [[len(kinds) - 2]]
    assert folds(["input", *kinds], [[], *([i + 1 for i in read] for read in inputs)]) == [
        Fold(2, 4, 6)
    ]


def test_several_kinds_of_layers_are_several_folds() -> None:
    kinds, inputs = layers(4)
    start = len(kinds)
    for op in "xyz" * 5:
        inputs.append([len(kinds) - 1])
        kinds.append(op)
    assert folds(kinds, inputs) == [Fold(1, 4, 4), Fold(start, 3, 5)]


def test_a_few_nodes_are_not_worth_a_fold() -> None:
    assert folds(*layers(2, "ab")) == []
    assert folds([], []) == []
    assert folds(["a"], [[]]) == []


def test_a_fold_knows_its_nodes() -> None:
    fold = Fold(10, 4, 3)
    assert fold.end == 22
    assert [fold.first(place) for place in (10, 13, 14, 21)] == [10, 13, 10, 13]
    assert list(fold.all_like(11)) == [11, 15, 19]
