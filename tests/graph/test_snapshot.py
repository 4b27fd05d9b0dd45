"""Changes of a graph that are taken back."""

from __future__ import annotations

from onnxbolt.graph.edit import add_variable, insert, remove
from onnxbolt.graph.exporter import export_model
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.names import fresh
from onnxbolt.graph.snapshot import Snapshot
from tests.support import Net


def test_a_graph_is_as_it_was() -> None:
    net = Net({"x": (2, 3)})
    y = net.node("Relu", net.node("Add", "x", net.node("Tanh", "x")))
    graph = import_model(net.model(y))
    fresh(graph, "given before")
    exported = export_model(graph).SerializeToString()
    names = [node.name for node in graph.nodes]
    snapshot = Snapshot(graph)
    first, add, last = graph.nodes
    result = add_variable(graph, "result", add.outputs[0])
    insert(graph, "Mul", add.inputs, [result], [add], at=add)
    last.inputs[0], last.origin = result, None
    remove(graph, [add])
    first.outputs[0].outputs.clear()
    snapshot.restore(graph)
    assert [node.name for node in graph.nodes] == names
    assert export_model(graph).SerializeToString() == exported
    assert add.outputs[0].outputs == [last]
    assert fresh(graph, "result") == "result"
