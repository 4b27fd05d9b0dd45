from __future__ import annotations

import pytest

from onnxbolt.canonicalize.split_form import run
from tests.canonicalize.compare import applied, model, unchanged

SHAPES = {"x": ("n", 6, 3)}, {"y": ("n", "c", "l")}


def test_a_concat_reads_what_was_split() -> None:
    nodes = [("Split", "x", "a b", {"axis": 1}), ("Relu", "b", "c"), ("Concat", "c a b c", "y", {"axis": -2})]
    graph = applied(model(nodes, *SHAPES, opset=13), run, 1)
    assert [tensor.name for tensor in graph.nodes[-1].inputs] == ["c", "x", "c"]


@pytest.mark.parametrize(("inputs", "axis"), [("b a", 1), ("a", 1), ("a c b", 1), ("a b", 2), ("c b", 1)])
def test_other_orders_and_axes_stay(inputs: str, axis: int) -> None:
    nodes = [("Split", "x", "a b", {"axis": 1}), ("Relu", "b", "c"), ("Concat", inputs, "y", {"axis": axis})]
    unchanged(model(nodes, *SHAPES, opset=13), run)
