from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import helper

from onnxbolt.graph.edit import (
    Node,
    held_by,
    insert,
    pinned,
    prune,
    remove,
    replace_uses,
    scalar,
    sole_use,
    stand_alone,
    stand_in,
    together,
)
from onnxbolt.graph.exporter import export_model
from onnxbolt.graph.importer import import_model
from tests.graph.planted import everything, model, value


def diamond() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Abs", ["a"], ["c"]),
        helper.make_node("Add", ["b", "c"], ["y"]),
        helper.make_node("Exp", ["c"], ["dead"]),
    ]
    return model(nodes, [value("x")], [value("y")])


def test_readers() -> None:
    graph = import_model(diamond())
    relu, neg, absolute, add, _ = graph.nodes
    assert sole_use(graph, relu.outputs[0]) is None
    assert sole_use(graph, neg.outputs[0]) is graph.nodes[3]
    assert sole_use(graph, add.outputs[0]) is None
    assert pinned(graph, add.outputs[0])
    replace_uses(absolute.outputs[0], neg.outputs[0])
    assert [t.name for t in add.inputs] == ["b", "b"]
    assert sole_use(graph, neg.outputs[0]) is None


def test_captured_tensors_are_pinned() -> None:
    graph = import_model(everything())
    product = next(node for node in graph.nodes if node.op == "MatMul").outputs[0]
    assert pinned(graph, product)


def test_prune_follows_what_dies() -> None:
    graph = import_model(diamond())
    add = graph.nodes[3]
    add.inputs[1] = add.inputs[0]
    assert prune(graph) == 2
    assert [node.op for node in graph.nodes] == ["Relu", "Neg", "Add"]
    assert prune(graph) == 0


def test_insert_records_what_it_stands_for(capfd: pytest.CaptureFixture[str]) -> None:
    graph = import_model(diamond())
    neg, absolute = graph.nodes[1:3]
    y = graph.nodes[3].outputs[0]
    remove(graph, [graph.nodes[3]])
    made = insert(
        graph, "Mul", [neg.outputs[0], absolute.outputs[0]], [y], [neg, absolute], at=graph.nodes[3]
    )
    assert made.provenance == ("b", "c")
    assert [node.op for node in graph.nodes] == ["Relu", "Neg", "Abs", "Mul", "Exp"]
    assert capfd.readouterr() == ("", "")  # graphsurgeon logs attributes that it does not know
    onnx.checker.check_model(export_model(graph))


def test_changes_together_are_those_one_by_one() -> None:
    """Also before a node that is new, and before one that is removed."""
    graph = import_model(diamond())
    *_, add, dead = graph.nodes
    before, (b, c), y = list(graph.nodes), add.inputs, add.outputs[0]
    doubled, halved = gs.Variable("doubled"), gs.Variable("halved")
    with together(graph):
        remove(graph, [add, dead])
        product = insert(graph, "Mul", [doubled, halved], [y], [add], at=add)
        insert(graph, "Div", [c, c], [halved], [add], at=product)
        insert(graph, "Add", [b, b], [doubled], [add], at=product)
        insert(graph, "Sin", [y], [gs.Variable("behind")], [add])
        assert graph.nodes == before
    assert [node.op for node in graph.nodes] == ["Relu", "Neg", "Abs", "Div", "Add", "Mul", "Sin"]
    remove(graph, graph.nodes[-1:])
    assert [node.op for node in graph.nodes] == ["Relu", "Neg", "Abs", "Div", "Add", "Mul"]


def test_unnamed_twins_are_two_nodes() -> None:
    twins = [Node("Relu"), Node("Relu")]
    assert twins[0] != twins[1]
    graph = gs.Graph(nodes=list(twins))
    remove(graph, [twins[0]])
    assert graph.nodes[0] is twins[1]


def test_scalars() -> None:
    assert scalar(gs.Constant("c", np.array([[2.0]]))) == 2.0
    assert scalar(gs.Constant("c", np.array([2.0, 2.0]))) is None
    assert scalar(gs.Variable("v")) is None
    assert scalar(import_model(everything()).constants["three"]) == 3.0


def test_what_follows_from_a_tensor_that_stands_alone_holds_none_of_the_source() -> None:
    inner, plain = gs.Variable("inner"), gs.Variable("plain")
    stand_alone(inner)
    copy, joined = gs.Variable("copy"), gs.Variable("joined")
    stand_in(copy, inner)
    joined.joined = (plain, inner)
    assert [held_by(tensor) for tensor in (plain, inner, copy, joined)] == [("plain",), (), (), ()]
