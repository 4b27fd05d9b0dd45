"""Numbers of shapes and positions, and the bands that comparisons of positions are."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.ops.attention.found import Band
from onnxbolt.ops.attention.lengths import number, numbers
from onnxbolt.ops.attention.positions import Frame, by_value, compared, leaves_a_key, linear
from tests.support import Net

ROWS, KEYS = "rows", "keys"
FRAME = Frame(ROWS, KEYS)


class Positions(Net):
    """A model with an input of symbolic sizes, whose shape the nodes read."""

    def __init__(self) -> None:
        super().__init__({"x": (2, ROWS, KEYS, 8)})

    def ints(self, *values: int) -> str:
        return self.const(values, np.int64)

    def size(self, axis: int) -> str:
        return self.node("Gather", self.node("Shape", "x"), self.const(axis, np.int64))

    def range(self, axis: int, start: int = 0, step: int = 1) -> str:
        return self.node(
            "Range", self.const(start, "int64"), self.size(axis), self.const(step, "int64")
        )

    def tensor(self, name: str) -> gs.Tensor:
        graph = import_model(self.model(self.node("Identity", name)))
        infer(graph)
        return graph.nodes[-1].inputs[0]


def test_numbers_of_shapes() -> None:
    net = Positions()
    one = net.node("Unsqueeze", net.size(1), net.ints(0))
    target = net.node("Concat", net.ints(-1), one, net.ints(3), axis=0)
    copies = net.node("Equal", target, net.ints(-1, -1, -1))
    chosen = net.node("Where", copies, net.ints(1, 1, 1), target)
    assert numbers(net.tensor(target)) == [-1, ROWS, 3]
    assert numbers(net.tensor(chosen)) == [1, ROWS, 3]
    assert numbers(net.tensor("x")) is None


@pytest.mark.parametrize(
    ("op", "expected"), [("Sub", 0), ("Add", None), ("Mul", None), ("Equal", 1), ("Div", None)]
)
def test_what_is_known_of_two_equal_sizes(op: str, expected: int | None) -> None:
    net = Positions()
    assert number(net.tensor(net.node(op, net.size(1), net.size(1)))) == expected


def test_positions_are_linear() -> None:
    net = Positions()
    rows = net.node("Unsqueeze", net.range(1), net.ints(0, 1, 3))
    shifted = net.node("Add", net.node("Mul", rows, net.const(2, "int64")), net.const(5, "int64"))
    found = linear(net.tensor(shifted))
    assert found is not None
    assert (found.offset, dict(found.factors), dict(found.sizes)) == (5, {-2: 2}, {-2: ROWS})
    turned = linear(net.tensor(net.node("Transpose", rows, perm=[0, 1, 3, 2])))
    assert turned is not None
    assert dict(turned.factors) == {-1: 1}


@pytest.mark.parametrize("start", [0, 1])
def test_positions_that_are_not_certain_are_none(start: int) -> None:
    """A range of a symbolic length counts from 0, by 1."""
    net = Positions()
    assert linear(net.tensor(net.range(1, start, 2 - start))) is None


@pytest.mark.parametrize(
    ("op", "offset", "band"),
    [
        ("LessOrEqual", 0, Band(last=0)),
        ("Less", 0, Band(last=-1)),
        ("GreaterOrEqual", 0, Band(first=0)),
        ("Greater", -3, Band(first=-2)),
        ("LessOrEqual", 2, Band(last=2)),
    ],
)
def test_comparisons_of_positions_are_bands(op: str, offset: int, band: Band) -> None:
    net = Positions()
    rows = net.node("Unsqueeze", net.range(1), net.ints(1))
    rows = net.node("Add", rows, net.const(offset, "int64"))
    node = net.node(op, net.node("Unsqueeze", net.range(2), net.ints(0)), rows)
    left, right = net.tensor(node).inputs[0].inputs
    assert compared(op, left, right, FRAME) == band
    assert compared(op, left, right, Frame(ROWS, "others")) is None


def distance(queries: int, keys: int) -> np.ndarray:
    return np.arange(keys) - np.arange(queries)[:, None]


@pytest.mark.parametrize(
    ("values", "band"),
    [
        (distance(4, 6) <= 2, Band(last=2)),
        ((distance(4, 6) >= -1) & (distance(4, 6) <= 1), Band(-1, 1)),
        (distance(4, 6) >= -9, Band()),
        (distance(4, 6) != 0, None),
        (distance(4, 6) > 9, None),
        (distance(3, 6) <= 0, None),
        (np.stack([distance(4, 6) <= 0, distance(4, 6) <= 1]), None),
    ],
)
def test_constants_are_bands_by_value(values: np.ndarray, band: Band | None) -> None:
    assert by_value(values, Frame(4, 6)) == band


@pytest.mark.parametrize(
    ("band", "frame", "expected"),
    [
        (Band(last=0), Frame(9, 4), True),
        (Band(last=-1), Frame(4, 4), False),
        (Band(-2, 2), Frame("n", "n"), True),
        (Band(-2, 2), Frame(9, 4), False),
        (Band(first=1), Frame(4, 4), False),
    ],
)
def test_every_query_has_a_key(band: Band, frame: Frame, expected: bool) -> None:
    assert leaves_a_key(band, frame) is expected
