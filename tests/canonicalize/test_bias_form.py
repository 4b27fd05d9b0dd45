"""Biases of ONNX Runtime's own activations become Adds."""

from __future__ import annotations

import pytest

from onnxbolt.canonicalize.bias_form import run
from onnxbolt.domains import CONTRIB
from onnxbolt.graph.importer import import_model
from tests.support import Net


def operators(net: Net, y: str) -> list[tuple[str, int]]:
    """Operators with their numbers of inputs, after the pass."""
    graph = import_model(net.model(y))
    before = [node.op for node in graph.nodes]
    assert bool(run(graph)) == (before != [node.op for node in graph.nodes])
    return [(node.op, len(node.inputs)) for node in graph.nodes]


@pytest.mark.parametrize(("op", "without"), [("BiasGelu", "Gelu"), ("FastGelu", "FastGelu")])
def test_a_constant_bias_is_added_in_front(op: str, without: str) -> None:
    net = Net({"x": (4, 8)})
    y = net.node(op, "x", net.normal(8), domain=CONTRIB)
    assert operators(net, y) == [("Add", 2), (without, 1)]


def test_others_stay() -> None:
    net = Net({"x": (4, 8), "b": (8,)})
    y = net.node("BiasGelu", "x", "b", domain=CONTRIB)
    y = net.node("FastGelu", y, domain=CONTRIB)
    y = net.node("BiasGelu", y, net.normal(8), domain="com.example")
    assert operators(net, y) == [("BiasGelu", 2), ("FastGelu", 1), ("BiasGelu", 2)]
