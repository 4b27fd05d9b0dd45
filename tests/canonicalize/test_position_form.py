from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from onnxbolt.canonicalize.position_form import run
from tests.canonicalize.compare import applied, model, operators, random, unchanged

ROWS, WIDTH = 12, 8
Nodes = list[tuple[str, ...]]
PROJECTIONS: Nodes = [
    ("Add", "x positions", "moved"),
    ("MatMul", "moved u", "q0"),
    ("Add", "q0 a", "q"),
    ("MatMul", "moved v", "k"),
    ("MatMul", "x w", "values"),
    ("Add", "q k", "sum"),
    ("Add", "sum values", "y"),
]
SHAPE = (1, ROWS, WIDTH)


def layer(
    nodes: Nodes = PROJECTIONS, shape: tuple[int | str, ...] = SHAPE, **changed: np.ndarray
) -> onnx.ModelProto:
    """Projections of x + P and of x."""
    constants = {name: random(WIDTH, WIDTH) for name in "uvw"}
    constants |= {"a": random(WIDTH), "positions": random(ROWS, WIDTH)}
    constants |= changed
    further = (1,) * (constants["a"].ndim - len(shape))  # axes that the bias adds
    outputs = {"y": (*further, *shape[:-1], constants["w"].shape[1])}
    return model(nodes, {"x": shape}, outputs, constants)


@pytest.mark.parametrize("shape", [(ROWS, WIDTH), (1, ROWS, WIDTH)])
def test_positions_become_summands_of_the_products(shape: tuple[int, ...]) -> None:
    graph = applied(layer(positions=random(*shape)), run, 1)
    assert sorted(operators(graph)) == ["Add"] * 4 + ["MatMul"] * 3
    products = [node for node in graph.nodes if node.op == "MatMul"]
    assert {node.inputs[0].name for node in products} == {"x"}
    constants = [t for node in graph.nodes for t in node.inputs if isinstance(t, gs.Constant)]
    assert [list(t.shape) for t in constants if len(t.shape) > 2] == [[1, ROWS, WIDTH]] * 2


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1, 1)])
def test_a_bias_of_any_rank_behind_a_single_column(shape: tuple[int, ...]) -> None:
    """One that the product's rows do not have room for stays behind them."""
    u, v, w = (random(WIDTH, 1) for _ in "uvw")
    source = layer(u=u, v=v, w=w, a=random(*shape))
    graph = applied(source, run, 1)
    assert operators(graph).count("Add") == (4 if shape == (1,) else 5)


def test_a_sum_that_only_products_need_is_left_to_what_computes_x() -> None:
    unchanged(layer([*PROJECTIONS[:4], ("Add", "q k", "y")]), run)


@pytest.mark.parametrize(
    "nodes",
    [
        [*PROJECTIONS[:-1], ("Mul", "moved values", "z"), ("Add", "sum z", "y")],
        [*PROJECTIONS[:3], ("MatMul", "u moved", "k"), *PROJECTIONS[4:]],
    ],
)
def test_a_sum_that_others_read_stays(nodes: Nodes) -> None:
    square = (1, WIDTH, WIDTH)
    unchanged(layer(nodes, square, positions=random(WIDTH, WIDTH)), run)


@pytest.mark.parametrize(
    ("shape", "positions"),
    [
        ((2, ROWS, WIDTH), (ROWS, WIDTH)),
        (("n", ROWS, WIDTH), (ROWS, WIDTH)),
        ((1, ROWS, WIDTH), (1, 1, WIDTH)),
        ((1, ROWS, WIDTH), (ROWS, 1)),
    ],
)
def test_rows_that_several_rows_of_x_share_stay(
    shape: tuple[int | str, ...], positions: tuple[int, ...]
) -> None:
    unchanged(layer(shape=shape, positions=random(*positions)), run)


def test_wide_products_would_read_more_than_the_sum() -> None:
    u, v, w = (random(WIDTH, 3 * WIDTH) for _ in "uvw")
    unchanged(layer(u=u, v=v, w=w, a=random(3 * WIDTH)), run)
