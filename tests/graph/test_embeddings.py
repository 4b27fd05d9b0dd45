from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from onnxbolt.graph.embeddings import gather_of
from onnxbolt.graph.importer import import_model
from tests.support import Net


def gathered(rank: int = 2, **attributes: int) -> gs.Graph:
    """Gather from a constant table, or from the input where `rank` is 0."""
    net = Net({"x": (3, 4)})
    ids = net.node("ArgMax", "x", axis=1, keepdims=0)
    shape = (4, 5, 2)[:rank]
    y = net.node("Gather", net.normal(*shape) if rank else "x", ids, **attributes)
    return import_model(net.model(y))


@pytest.mark.parametrize("axis", [0, -2])
def test_rows_of_a_constant_table(axis: int) -> None:
    graph = gathered(axis=axis)
    found = gather_of(graph.outputs[0])
    assert found is graph.nodes[-1]
    assert np.shape(found.inputs[0].values) == (4, 5)


@pytest.mark.parametrize(
    "graph", [gathered(axis=1), gathered(rank=0), gathered(rank=3), gathered(rank=1)]
)
def test_others_are_no_embeddings(graph: gs.Graph) -> None:
    assert gather_of(graph.outputs[0]) is None


def test_inputs_and_other_operators_are_none() -> None:
    graph = gathered()
    assert gather_of(graph.inputs[0]) is None
    assert gather_of(graph.nodes[0].outputs[0]) is None
