"""Shapes that are computed are followed in models of opset 11 to 13, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxbolt.graph.importer import import_model
from onnxbolt.graph.newer import newer
from onnxbolt.graph.shapes import infer
from tests.support import Net, assert_same, ops


def viewed(opset: int) -> tuple[Net, str]:
    """x.view(x.size(0), 64) behind a pooling, as PyTorch exported it, and two linear layers."""
    net = Net({"x": ("n", 64, 7, 7)}, opset=opset)
    pooled = net.node("GlobalAveragePool", "x")
    size = net.node("Gather", net.node("Shape", "x"), net.const(0, np.int64), axis=0)
    axes = (
        net.node("Unsqueeze", size, axes=[0])
        if opset < 13
        else net.node("Unsqueeze", size, net.const([0], np.int64))
    )
    shape = net.node("Concat", axes, net.const([64], np.int64), axis=0)
    return net, net.node("Reshape", pooled, shape)


@pytest.mark.parametrize("opset", [11, 12, 13, 17])
def test_sizes_pass_through_newer_operators(opset: int) -> None:
    net, y = viewed(opset)
    graph = import_model(net.model(y))
    infer(graph)
    assert graph.outputs[0].shape == ["n", 64]
    assert graph.opset == max(opset, 13)


@pytest.mark.parametrize("opset", [11, 13])
def test_a_product_behind_a_newer_operator_is_fused(opset: int) -> None:
    net, y = viewed(opset)
    model = net.model(net.node("Relu", net.linear(y, 64, 32)))
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info(model.graph.output[0].name, TensorProto.FLOAT, ["n", 32])
    )
    optimized = assert_same(model)
    assert any(op.startswith("FusedGemm") for op in ops(optimized))


@pytest.mark.parametrize("opset", [11, 12])
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Squeeze", {"axes": [1]}),
        ("Unsqueeze", {"axes": [0]}),
        ("ReduceSum", {"axes": [2]}),
        ("ReduceSum", {}),
        ("Squeeze", {}),
        ("Split", {"axis": 2, "split": [2, 4]}),
    ],
)
def test_attributes_that_are_inputs_today(op: str, attributes: dict[str, Any], opset: int) -> None:
    net = Net({"x": (3, 1, 6)}, opset=opset)
    names = (
        net.several(op, "x", outputs=2, **attributes)
        if op == "Split"
        else [net.node(op, "x", **attributes)]
    )
    model = net.model(*names)
    before, graph = model.SerializeToString(), import_model(model)
    infer(graph)
    expected = {
        "Squeeze": [[3, 6]],
        "Unsqueeze": [[1, 3, 1, 6]],
        "ReduceSum": [[3, 1, 1]] if attributes else [[1, 1, 1]],
        "Split": [[3, 1, 2], [3, 1, 4]],
    }[op]
    assert [tensor.shape for tensor in graph.outputs] == expected
    assert model.SerializeToString() == before


@pytest.mark.parametrize("opset", [10, 14, 17])
def test_other_opsets_are_inferred_as_they_are(opset: int) -> None:
    model = Net({"x": (3, 4)}, opset=opset)
    y = model.node("Relu", "x")
    proto = model.model(y)
    assert newer(proto) is proto
