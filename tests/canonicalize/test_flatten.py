from __future__ import annotations

import numpy as np
import pytest

from onnxbolt.canonicalize.flatten import run
from tests.canonicalize.compare import applied, model, operators, random, unchanged

ROWS = {
    "narrow": np.array([-1, 4]),
    "wide": np.array([-1, 5, 6]),
    "w": random(4, 6),
    "b": random(6),
}

TO_PRODUCT = [("Reshape", "x t", "h"), ("MatMul", "h w", "y")]


@pytest.mark.parametrize("batch", [2, "n"])
@pytest.mark.parametrize(
    "steps",
    [
        [("MatMul", "r w", "p")],
        [("MatMul", "r w", "m"), ("Add", "b m", "p")],
        [("MatMul", "r w", "m"), ("Add", "m b", "a"), ("Relu", "a", "p")],
    ],
)
def test_products_over_rows(batch: int | str, steps: list[tuple[str, str, str]]) -> None:
    source = model(
        [("Reshape", "x narrow", "r"), *steps, ("Reshape", "p wide", "y")],
        {"x": (batch, 5, 4)},
        {"y": (batch, 5, 6)},
        ROWS,
    )
    graph = applied(source, run, 1)
    assert operators(graph) == [op for op, *_ in steps]
    assert graph.nodes[0].inputs[0].name == "x"
    assert not {t.name for node in graph.nodes for t in node.outputs} & {"p", "m", "a"}


@pytest.mark.parametrize(
    ("wide", "shape"),
    [([5, -1, 6], (5, "n", 6)), ([-1, 3], ("n", 3)), ([-1, 5, 2, 3], ("n", 5, 2, 3))],
)
def test_rows_arranged_otherwise_stay(wide: list[int], shape: tuple[int | str, ...]) -> None:
    source = model(
        [("Reshape", "x narrow", "r"), ("MatMul", "r w", "p"), ("Reshape", "p wide", "y")],
        {"x": ("n", 5, 4)},
        {"y": shape},
        ROWS | {"wide": np.array(wide)},
    )
    unchanged(source, run)


def test_steps_that_know_rows_stay() -> None:
    nodes = [
        ("Reshape", "x narrow", "r"),
        ("MatMul", "r w", "m"),
        ("Softmax", "m", "p", {"axis": 0}),
        ("Reshape", "p wide", "y"),
    ]
    unchanged(model(nodes, {"x": (2, 5, 4)}, {"y": (2, 5, 6)}, ROWS), run)
    column = [
        ("Reshape", "x narrow", "r"),
        ("MatMul", "r w", "m"),
        ("Add", "m c", "p"),
        ("Reshape", "p wide", "y"),
    ]
    unchanged(model(column, {"x": (2, 5, 4)}, {"y": (2, 5, 6)}, ROWS | {"c": random(10, 1)}), run)


def test_inner_tensors_with_other_readers_stay() -> None:
    nodes = [
        ("Reshape", "x narrow", "r"),
        ("MatMul", "r w", "p"),
        ("Reshape", "p wide", "y"),
        ("Relu", "p", "z"),
    ]
    unchanged(model(nodes, {"x": ("n", 5, 4)}, {"y": ("n", 5, 6), "z": ("m", 6)}, ROWS), run)


@pytest.mark.parametrize("target", [[-1, 12], [0, 12], [0, -1]])
def test_reshape_before_a_product_is_flatten(target: list[int]) -> None:
    source = model(
        TO_PRODUCT,
        {"x": ("n", 3, 2, 2)},
        {"y": ("n", 5)},
        {"t": np.array(target), "w": random(12, 5)},
    )
    graph = applied(source, run, 1)
    assert operators(graph) == ["Flatten", "MatMul"]
    assert graph.nodes[0].attrs == {"axis": 1}


def test_other_reshapes_stay() -> None:
    unchanged(
        model(
            TO_PRODUCT, {"x": (2, 3, 4)}, {"y": (4, 5)}, {"t": np.array([4, 6]), "w": random(6, 5)}
        ),
        run,
    )
    unchanged(
        model(
            [("Reshape", "x t", "h"), ("Relu", "h", "y")],
            {"x": (2, 3, 4)},
            {"y": (2, 12)},
            {"t": np.array([2, 12])},
        ),
        run,
    )


def test_computed_shapes_become_constants() -> None:
    nodes = [
        ("Shape", "x", "s"),
        ("Gather", "s zero", "n"),
        ("Concat", "n rest", "t", {"axis": 0}),
        ("Reshape", "x t", "y"),
    ]
    constants = {"zero": np.array([0]), "rest": np.array([2, 6])}
    graph = applied(model(nodes, {"x": ("n", 3, 4)}, {"y": ("n", 2, 6)}, constants), run, 1)
    assert graph.nodes[-1].inputs[1].values.tolist() == [0, 2, 6]


def test_one_unknown_dimension_is_inferred_two_are_not() -> None:
    constants = {
        "zero": np.array([0]),
        "one": np.array([1]),
        "two": np.array([2]),
        "half": np.array([2]),
    }
    start = [("Shape", "x", "s"), ("Gather", "s zero", "n"), ("Gather", "s one", "m")]
    merged = [
        *start,
        ("Mul", "n m", "nm"),
        ("Concat", "nm two half", "t", {"axis": 0}),
        ("Reshape", "x t", "y"),
    ]
    graph = applied(model(merged, {"x": ("n", "m", 4)}, {"y": ("k", 2, 2)}, constants), run, 1)
    assert graph.nodes[-1].inputs[1].values.tolist() == [-1, 2, 2]
    swapped = [*start, ("Concat", "m n two half", "t", {"axis": 0}), ("Reshape", "x t", "y")]
    unchanged(model(swapped, {"x": ("n", "m", 4)}, {"y": ("m", "n", 2, 2)}, constants), run)
