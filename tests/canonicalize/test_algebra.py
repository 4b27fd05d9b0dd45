"""Products as formulas read them."""

from __future__ import annotations

import pytest

from onnxbolt.canonicalize.algebra import product
from onnxbolt.graph.importer import import_model
from tests.support import Net


@pytest.mark.parametrize(("factors", "nodes"), [(3, 3), (1200, 16)])
def test_a_product_of_many_nodes_is_read_in_part(factors: int, nodes: int) -> None:
    net = Net({"x": (4, 8)})
    y = "x"
    for _ in range(factors):
        y = net.node("Mul", y, net.const(2.0))
    graph = import_model(net.model(y))
    found = product(graph, graph.nodes[-1])
    assert len(found.nodes) == nodes
    assert found.coefficient == 2.0**nodes
    assert [tensor.name for tensor in found.factors] == [found.nodes[-1].inputs[0].name]
