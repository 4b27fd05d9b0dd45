"""Axes that a Reshape divides before a Transpose keeps their parts together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from onnxbolt.canonicalize.split_axes import run
from tests.canonicalize.compare import applied, model, operators, unchanged

X, DIVIDED, Y = (2, 3, 20, 8), (2, 3, 4, 5, 8), (2, 4, 5, 24)
ORDER = (0, 2, 3, 1, 4)


def _source(
    x: Sequence[int | str] = X,
    divided: Sequence[int] = DIVIDED,
    order: Sequence[int] = ORDER,
    target: Sequence[int] = Y,
    y: Sequence[int | str] = Y,
    more: Sequence[tuple[Any, ...]] = (),
    outputs: dict[str, Any] | None = None,
) -> onnx.ModelProto:
    nodes = [
        ("Reshape", "x divided", "d"),
        ("Transpose", "d", "t", {"perm": list(order)}),
        ("Reshape", "t target", "y"),
        *more,
    ]
    constants = {"divided": np.array(divided), "target": np.array(target)}
    return model(nodes, {"x": x}, {"y": y} | (outputs or {}), constants)


def test_queries_of_an_image() -> None:
    """The end of SAM's attention."""
    graph = applied(_source(), run, 1)
    assert operators(graph) == ["Transpose", "Reshape"]
    assert graph.nodes[0].attrs["perm"] == [0, 2, 1, 3]
    assert not {"d", "t"} & set(graph.tensors())


@pytest.mark.parametrize(
    ("x", "divided", "order", "merged"),
    [
        ((6, 20), (2, 3, 4, 5), (2, 3, 0, 1), [1, 0]),
        ((2, 12), (2, 1, 12), (1, 2, 0), [1, 0]),
        ((4, 6, 5), (2, 2, 6, 5), (2, 3, 0, 1), [1, 2, 0]),
    ],
    ids=["two axes", "an axis of one", "the first axis"],
)
def test_other_shapes(
    x: tuple[int, ...], divided: tuple[int, ...], order: tuple[int, ...], merged: list[int]
) -> None:
    graph = applied(_source(x, divided, order, (-1,), (int(np.prod(x)),)), run, 1)
    assert graph.nodes[0].attrs["perm"] == merged


def test_a_symbolic_batch() -> None:
    """0 would copy another size once there are fewer axes."""
    source = _source(("batch", *X[1:]), (0, *DIVIDED[1:]), ORDER, (0, *Y[1:]), ("batch", *Y[1:]))
    graph = applied(source, run, 1)
    assert graph.nodes[1].inputs[1].values.tolist() == [-1, *Y[1:]]


@pytest.mark.parametrize(
    ("x", "divided", "order", "target"),
    [
        ((2, 14, 14, 3), (2, 2, 7, 2, 7, 3), (0, 1, 3, 2, 4, 5), (8, 49, 3)),
        ((2, 12), (2, 3, 4), (0, 2, 1), (24,)),
        ((2, 12), (4, 6), (1, 0), (24,)),
        ((2, 3, 4), (2, 3, 4), (1, 2, 0), (24,)),
    ],
    ids=["windows", "exchanged parts", "another division", "nothing divided"],
)
def test_parts_that_do_not_stay_together(
    x: tuple[int, ...], divided: tuple[int, ...], order: tuple[int, ...], target: tuple[int, ...]
) -> None:
    unchanged(_source(x, divided, order, target, target), run)


@pytest.mark.parametrize("name", ["d", "t"])
def test_tensors_that_others_read(name: str) -> None:
    shape = DIVIDED if name == "d" else tuple(DIVIDED[axis] for axis in ORDER)
    more, outputs = [("Neg", name, "z")], {"z": shape}
    unchanged(_source(more=more, outputs=outputs), run)
    unchanged(_source(outputs={name: shape}), run)
