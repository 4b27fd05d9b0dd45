"""Nodes of a file, each behind what it reads."""

from __future__ import annotations

import pytest
from onnx import NodeProto, TensorProto, helper

from onnxbolt.graph.order import protos_in_order
from onnxbolt.graph.skeleton import inferred_types


def node(output: str, *inputs: str) -> NodeProto:
    return helper.make_node("Sum", list(inputs), [output], output)


def names(*nodes: NodeProto) -> str:
    return "".join(proto.name for proto in protos_in_order(nodes))


def test_an_order_that_is_right_is_kept() -> None:
    assert names(node("a", "x"), node("b", "x"), node("c", "b", "a")) == "abc"


def test_nodes_are_sorted_behind_what_they_read() -> None:
    assert names(node("c", "b", "a"), node("b", "a"), node("a", "x"), node("d", "x")) == "abcd"


def test_what_subgraphs_read_counts() -> None:
    branch = helper.make_graph(
        [node("o", "a")], "b", [], [helper.make_empty_tensor_value_info("o")]
    )
    choice = helper.make_node("If", ["x"], ["i"], "i", then_branch=branch, else_branch=branch)
    assert names(choice, node("a", "x")) == "ai"


def test_a_cycle() -> None:
    with pytest.raises(ValueError, match="there is a cycle"):
        protos_in_order([node("a", "b"), node("b", "a")])


def test_types_are_inferred_in_any_order() -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["h"], ["y"]),
            helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        ],
        "unsorted",
        [value("x", TensorProto.FLOAT, [2])],
        [value("y", TensorProto.FLOAT16, [2])],
    )
    assert (
        inferred_types(helper.make_model(graph))["y"].tensor_type.elem_type == TensorProto.FLOAT16
    )
