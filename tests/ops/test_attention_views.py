"""Rearranged tensors are followed back to places in memory; whatever is not certain is refused."""

from __future__ import annotations

from typing import Any

import pytest

from onnxbolt.ops.attention.lengths import Size
from onnxbolt.ops.attention.scales import factor, scaled
from onnxbolt.ops.attention.views import Atom, Axis, Layout, Stride, merged, of, regrouped
from onnxbolt.ops.attention.views import through as behind
from tests.support import Net, prepare


def atom(size: Size, factor: int, *symbols: str) -> Atom:
    return Atom(size, Stride(factor, symbols))


ROWS = (atom("batch", 480), atom(5, 96), atom(96, 1))  # [batch, 5, 96]


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        (("batch", 5, 96), tuple((each,) for each in ROWS)),
        (("batch", 5, 3, 32), ((ROWS[0],), (ROWS[1],), (atom(3, 32),), (atom(32, 1),))),
        # one unknown size is what remains
        (("other", 5, 96), tuple((each,) for each in ROWS)),
        (("other", 96), ((ROWS[0], ROWS[1]), (ROWS[2],))),
        (("batch", 1, 480), ((ROWS[0],), (), (ROWS[1], ROWS[2]))),
        # two are not certain
        (("other", 5, "heads", 32), None),
        (("batch", 7, 96), None),
        (("batch", 5, 95), None),
        (("batch", 5), None),
    ],
)
def test_sizes_are_regrouped_if_that_is_certain(
    shape: tuple[Size, ...], axes: tuple[Axis, ...] | None
) -> None:
    assert regrouped(ROWS, shape) == axes


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        ((), atom(1, 0)),
        ((atom(5, 96), atom(96, 1)), atom(480, 1)),
        ((atom(5, 97), atom(96, 1)), None),
        ((atom("batch", 96), atom(96, 1)), None),
    ],
)
def test_an_axis_that_lies_evenly_is_one_atom(axis: Axis, expected: Atom | None) -> None:
    assert merged(axis) == expected


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "expected"),
    [
        ("Transpose", (), {"perm": [1, 2, 0]}, Layout(((atom(6, 4),), (atom(4, 1),), ()))),
        ("Slice", ([2], [5], [1]), {}, Layout(((), (atom(3, 4),), (atom(4, 1),)), 8)),
        ("Slice", ([-2], [6], [1]), {}, Layout(((), (atom(2, 4),), (atom(4, 1),)), 16)),
        ("Slice", ([5], [-7], [1], [-1]), {}, None),
        ("Gather", (2,), {"axis": 1}, Layout(((), (atom(4, 1),)), 8)),
        ("Gather", ([2],), {"axis": 1}, None),
        ("Squeeze", ([0],), {}, Layout(((atom(6, 4),), (atom(4, 1),)))),
        ("Unsqueeze", ([1],), {}, Layout(((), (), (atom(6, 4),), (atom(4, 1),)))),
        ("Relu", (), {}, None),
    ],
)
def test_nodes_that_rearrange(
    op: str, inputs: tuple[object, ...], attributes: dict[str, Any], expected: Layout | None
) -> None:
    net = Net({"x": (1, 6, 4)})
    constants = [net.const(value, "int64") for value in inputs]
    y = net.node(op, "x", *constants, **attributes)
    graph = prepare(net.model(net.node("Sigmoid", y)))
    node = graph.nodes[0]
    layout = of(node.inputs[0])
    assert layout is not None
    assert behind(node, layout, node.outputs[0]) == expected


def test_parts_of_a_split_have_places() -> None:
    net = Net({"x": ("batch", 6, 12)})
    parts = net.several("Split", "x", net.const([4, 8], "int64"), outputs=2, axis=2)
    graph = prepare(net.model(*(net.node("Sigmoid", part) for part in parts)))
    node = graph.nodes[0]
    layout = of(node.inputs[0])
    assert layout is not None
    found = behind(node, layout, node.outputs[1])
    assert found == Layout(((atom("batch", 72),), (atom(6, 12),), (atom(8, 1),)), 4)


@pytest.mark.parametrize(
    ("op", "number", "expected"), [("Mul", 0.5, 0.5), ("Div", 4.0, 0.25), ("Div", 0.0, None)]
)
def test_a_scale_is_a_number(op: str, number: float, expected: float | None) -> None:
    net = Net({"x": (2, 3)})
    node = prepare(net.model(net.node("Relu", net.node(op, "x", net.const(number))))).nodes[0]
    assert (scaled(node) is None) == (expected is None)
    assert factor(node) == (1.0 if expected is None else expected)
