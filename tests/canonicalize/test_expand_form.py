from __future__ import annotations

import numpy as np
import pytest

from onnxbolt.canonicalize.expand_form import run
from tests.canonicalize.compare import applied, model, operators, random, unchanged


@pytest.mark.parametrize("op", ["Mul", "Add", "Sub", "Div", "Max"])
@pytest.mark.parametrize("sides", ["x e", "e x"])
def test_what_broadcasts_anyway_reads_the_gate_itself(op: str, sides: str) -> None:
    nodes = [("Shape", "x", "s"), ("Expand", "g s", "e"), (op, sides, "y")]
    source = model(
        nodes, {"x": (2, 4, 5, 6)}, {"y": (2, 4, 5, 6)}, {"g": np.abs(random(1, 4, 1, 1)) + 0.5}
    )
    assert operators(applied(source, run, 1)) == ["Shape", op]


def test_each_reader_decides_for_itself() -> None:
    nodes = [("Expand", "g s", "e"), ("Mul", "x e", "y"), ("Softmax", "e", "z", {"axis": -1})]
    source = model(
        nodes,
        {"x": (2, 4, 5, 6), "g": (2, 4, 1, 1)},
        {"y": (2, 4, 5, 6), "z": (2, 4, 5, 6)},
        {"s": np.array([2, 4, 5, 6])},
    )
    assert operators(applied(source, run, 1)) == ["Expand", "Mul", "Softmax"]


@pytest.mark.parametrize(
    ("x", "g"), [((1, 4, 5, 6), (2, 4, 1, 1)), ((2, 4, 1, 6), (2, 4, 5, 1)), ((6,), (2, 4, 1, 1))]
)
def test_an_expand_that_makes_the_result_larger_stays(
    x: tuple[int, ...], g: tuple[int, ...]
) -> None:
    nodes = [("Expand", "g s", "e"), ("Mul", "x e", "y")]
    unchanged(
        model(nodes, {"x": x, "g": g}, {"y": (2, 4, 5, 6)}, {"s": np.array([2, 4, 5, 6])}), run
    )


def test_an_output_of_the_graph_is_written() -> None:
    nodes = [("Expand", "g s", "e"), ("Mul", "x e", "y")]
    outputs = {"y": (2, 4, 5, 6), "e": (2, 4, 5, 6)}
    source = model(
        nodes, {"x": (2, 4, 5, 6), "g": (2, 4, 1, 1)}, outputs, {"s": np.array([2, 4, 5, 6])}
    )
    assert operators(applied(source, run, 1)) == ["Expand", "Mul"]


def test_elementwise_readers_come_first() -> None:
    """Hugging Face's mask: masked_fill(1 - m, bool(1 - m), lowest)."""
    nodes = [
        ("Expand", "m s", "e"),
        ("Sub", "one e", "d"),
        ("Cast", "d", "b", {"to": 9}),
        ("Where", "b low d", "w"),
        ("Softmax", "w", "y", {"axis": -1}),
    ]
    constants = {
        "s": np.array([2, 1, 5, 6]),
        "one": np.array(1.0, np.float32),
        "low": np.array([-9.0], np.float32),
    }
    source = model(nodes, {"m": (2, 1, 1, 6)}, {"y": (2, 1, 5, 6)}, constants)
    assert operators(applied(source, run, 4)) == ["Sub", "Cast", "Where", "Expand", "Softmax"]


@pytest.mark.parametrize(
    ("op", "inputs"), [("Add", "e v"), ("Add", "e c"), ("CumSum", "e axis"), ("Where", "b e e")]
)
def test_other_readers_stay_behind(op: str, inputs: str) -> None:
    nodes = [("Expand", "m s", "e"), (op, inputs, "y")]
    given = {"m": (2, 1, 1, 6), "v": (5, 1)}
    constants = {
        "s": np.array([2, 1, 5, 6]),
        "c": random(1, 1, 5, 6)[:, :, :, :1],
        "axis": np.array(2),
        "b": random(5, 6) > 0,
    }
    used = {name: shape for name, shape in given.items() if name in f"m {inputs}".split()}
    kept = {name: value for name, value in constants.items() if name in f"s {inputs}".split()}
    unchanged(model(nodes, used, {"y": (2, 1, 5, 6)}, kept), run)
