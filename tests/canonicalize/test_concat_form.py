from __future__ import annotations

import pytest

from onnxbolt.canonicalize.concat_form import run
from tests.canonicalize.compare import applied, model, unchanged

SHAPES = {"x": ("n", 6, 3)}, {"y": ("n", "c", "l")}


def test_a_concat_reads_what_was_split() -> None:
    nodes = [
        ("Split", "x", "a b", {"axis": 1}),
        ("Relu", "b", "c"),
        ("Concat", "c a b c", "y", {"axis": -2}),
    ]
    graph = applied(model(nodes, *SHAPES, opset=13), run, 1)
    assert [tensor.name for tensor in graph.nodes[-1].inputs] == ["c", "x", "c"]


@pytest.mark.parametrize(
    ("inputs", "axis"), [("b a", 1), ("a", 1), ("a c b", 1), ("a b", 2), ("c b", 1)]
)
def test_other_orders_and_axes_stay(inputs: str, axis: int) -> None:
    nodes = [
        ("Split", "x", "a b", {"axis": 1}),
        ("Relu", "b", "c"),
        ("Concat", inputs, "y", {"axis": axis}),
    ]
    unchanged(model(nodes, *SHAPES, opset=13), run)


def test_concats_of_concats_are_one() -> None:
    nodes = [
        ("Relu", "x", "a"),
        ("Concat", "x a", "b", {"axis": 1}),
        ("Tanh", "b", "c"),
        ("Concat", "c b x", "y", {"axis": -2}),
    ]
    graph = applied(model(nodes, *SHAPES), run, 1)
    assert [tensor.name for tensor in graph.nodes[-1].inputs] == ["c", "x", "a", "x"]


def test_concats_along_other_axes_stay() -> None:
    nodes = [("Concat", "x x", "b", {"axis": 2}), ("Concat", "b b", "y", {"axis": 1})]
    unchanged(model(nodes, *SHAPES), run)


def test_sizes_stay() -> None:
    nodes = [
        ("Shape", "x", "s"),
        ("Concat", "s s", "t", {"axis": 0}),
        ("Concat", "t s", "u", {"axis": 0}),
        ("Cast", "u", "y", {"to": 1}),
    ]
    unchanged(model(nodes, {"x": ("n", 6, 3)}, {"y": (9,)}), run)


def test_long_concats_are_flattened_once() -> None:
    """In a chain of Concats, only the last one is read in the end."""
    nodes = [
        ("Concat", f"{'x' if i == 0 else f'y{i - 1}'} x", f"y{i}", {"axis": 1}) for i in range(20)
    ]
    graph = applied(model(nodes, {"x": ("n", 2)}, {"y19": ("n", 42)}), run, 1)
    assert sorted(len(node.inputs) for node in graph.nodes) == [2] * 19 + [21]
