"""Reshapes of sums that a normalization reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxbolt.canonicalize.reshaped_sums import run
from tests.canonicalize.compare import applied, model, operators, random
from tests.canonicalize.compare import unchanged as untouched

IMAGES, ROWS = (2, 4, 3, 6), (2, 12, 6)
CONSTANTS = {"gamma": random(6), "rows": np.array(ROWS), "pixels": np.array([2, 4, 3, 6])}
SUM = [("Add", "x r", "s"), ("Reshape", "s rows", "t"), ("LayerNormalization", "t gamma", "y")]


def _source(
    nodes: list[tuple[Any, ...]], outputs: dict[str, Any], second: tuple[str, Any] = ("r", IMAGES)
) -> Any:
    used = {name for node in nodes for name in node[1].split()}
    constants = {name: value for name, value in CONSTANTS.items() if name in used}
    return model(nodes, {"x": IMAGES} | dict([second]), {"y": ROWS} | outputs, constants)


def test_the_terms_are_reshaped() -> None:
    graph = applied(_source([*SUM, ("Neg", "t", "z")], {"z": ROWS}), run, 1)
    assert operators(graph) == ["Reshape", "Reshape", "Add", "LayerNormalization", "Neg"]
    total = graph.nodes[2].outputs[0]
    assert total.name == "t"
    assert [reader.op for reader in total.outputs] == ["LayerNormalization", "Neg"]


def test_a_term_that_was_reshaped_before_is_taken_as_it_was() -> None:
    nodes = [("Neg", "w", "v"), ("Reshape", "v pixels", "r"), *SUM]
    graph = applied(_source(nodes, {}, ("w", ROWS)), run, 1)
    assert [node.op for node in graph.nodes if node.op != "Reshape"] == [
        "Neg",
        "Add",
        "LayerNormalization",
    ]
    assert any(term.name == "v" for node in graph.nodes if node.op == "Add" for term in node.inputs)


@pytest.mark.parametrize(
    "nodes",
    [
        [("Add", "x r", "s"), ("Reshape", "s rows", "t"), ("Softmax", "t", "y")],
        [*SUM, ("Neg", "s", "z")],
        [("Mul", "x r", "s"), *SUM[1:]],
    ],
    ids=["no norm", "a second reader", "no sum"],
)
def test_other_reshapes_stay(nodes: list[tuple[Any, ...]]) -> None:
    untouched(_source(nodes, {"z": IMAGES} if len(nodes) > 3 else {}), run)


def test_a_broadcast_term_stays() -> None:
    untouched(_source(list(SUM), {}, ("r", (2, 1, 3, 6))), run)
