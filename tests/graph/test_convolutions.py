"""Convolutions that a model leaves to ONNX Runtime."""

from __future__ import annotations

from onnx import helper

from onnxbolt.graph.convolutions import convolutions
from onnxbolt.graph.facts import facts_of


def test_convolutions_of_subgraphs_and_functions_count() -> None:
    conv = helper.make_node("Conv", ["x", "w"], ["y"])
    inner = helper.make_graph([conv], "inner", [], [])
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner),
                helper.make_node("FusedConv", ["x", "w"], ["u"], domain="com.onnxbolt"),
                helper.make_node("FusedConv", ["x", "w"], ["v"], domain="com.microsoft"),
            ],
            "graph",
            [],
            [],
        )
    )
    opset = [helper.make_opsetid("", 17)]
    for domain in ("com.onnxbolt", "others"):
        model.functions.append(
            helper.make_function(domain, "F", ["x", "w"], ["y"], [conv, conv], opset)
        )
    assert len(list(convolutions(model))) == 2 + 1 + 2
    assert facts_of(model)["onnxbolt.convolutions"] == "open"
