"""Fused nodes carry what runtime, inspection and verification read; weights are stored once."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from onnxbolt.families import config_from, named
from onnxbolt.families.row import WIDTH
from onnxbolt.plan.choose import plan
from onnxbolt.plan.cuts import cover
from onnxbolt.rewrite import rewrite
from tests.support import Net, assert_same, fused, prepare


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def test_a_fused_node_carries_format_configuration_and_provenance() -> None:
    net = Net({"x": (1, 8, 6, 6)})
    conv = net.conv("x", 8, 16, 3)
    output = net.node("Clip", conv, net.const(0.0), net.const(6.0))
    (node,) = [
        n for n in assert_same(net.model(output)).graph.node if n.op_type.startswith("Fused")
    ]
    found = attributes(node)
    assert found["format"] == 1
    assert found["epilogue_params"] == [0.0, 6.0]
    assert found["strides"] == [1, 1]
    assert found["tensor"].decode() == output
    assert found["layout"] == b"NHWC"
    assert found["source_nodes"] == [b"conv2", b"clip3"] or found["source_nodes"] == [
        conv.encode(),
        output.encode(),
    ]
    row = config_from(found["configs"])
    assert len(found["configs"]) == WIDTH
    assert (row.arch, row.family) == (80, named("conv_2x"))


def test_weights_are_stored_once_unless_a_node_that_stays_shares_them() -> None:
    net = Net({"x": (4, 16), "other": (16, 16)})
    weight = net.normal(16, 16)
    y = net.node("Relu", net.node("MatMul", "x", weight))
    alone = fused(net.model(y))
    assert [list(t.dims) for t in alone.graph.initializer] == [[16, 16]]
    shared = fused(net.model(y, net.node("Sub", "other", weight)))
    assert sum(list(t.dims) == [16, 16] for t in shared.graph.initializer) == 2


def test_one_weight_used_by_two_fused_nodes_is_packed_once() -> None:
    net = Net({"x": (4, 16)})
    weight = net.normal(16, 16)
    y = net.node("MatMul", net.node("Relu", net.node("MatMul", "x", weight)), weight)
    assert sum(list(t.dims) == [16, 16] for t in assert_same(net.model(y)).graph.initializer) == 1


def test_vectors_are_float32_whatever_the_precision() -> None:
    net = Net({"x": (4, 16)})
    model = fused(net.model(net.linear("x", 16, 8)), "fp16")
    types = {t.name: t.data_type for t in model.graph.initializer}
    (node,) = [n for n in model.graph.node if n.domain == "com.onnxbolt"]
    assert types[node.input[1]] == onnx.TensorProto.FLOAT16
    assert types[node.input[2]] == onnx.TensorProto.FLOAT


def test_the_same_input_gives_the_same_bytes() -> None:
    net = Net({"x": (2, 3, 12, 12)})
    y = net.node("Flatten", net.node("Relu", net.conv("x", 3, 8, 3)))
    model = net.model(net.linear(y, 800, 4))
    first, second = (fused(model, "fp16").SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_an_output_in_the_middle_exists_under_its_name_as_onnx_has_it() -> None:
    net = Net({"x": (2, 8, 6, 6)})
    y = net.node("Relu", net.conv("x", 8, 8))
    optimized = assert_same(net.model(y, net.conv(y, 8, 8)))
    assert next(o.name for o in optimized.graph.output) == y


def test_what_a_subgraph_reads_is_still_produced() -> None:
    net = Net({"x": (2, 8, 6, 6)})
    y = net.node("Relu", net.conv("x", 8, 8))
    branch = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", [y], ["inner"])],
        "then",
        [],
        [onnx.helper.make_tensor_value_info("inner", onnx.TensorProto.FLOAT, [2, 8, 6, 6])],
    )
    condition = net.const(np.array(True), np.bool_)
    net.node("If", condition, then_branch=branch, else_branch=branch)
    z = net.nodes[-1].output[0]
    assert_same(net.model(net.conv(y, 8, 8), z))


def test_small_equal_constants_are_one_initializer() -> None:
    """Equal constants have the same type and shape; equal bytes alone may be another tensor."""
    net = Net({"x": (2, 8)})
    graph = prepare(net.model(net.node("Relu", net.linear("x", 8, 8))))
    chosen = plan(graph, cover(graph, [80])[0], [80], "all")
    rewriter = rewrite(graph, chosen.assignment, chosen.configs, [80])
    first = rewriter.constant("c", np.zeros((2, 3), np.float32))
    assert rewriter.constant("c", np.zeros((2, 3), np.float32)) is first
    for other in (
        np.zeros((3, 2), np.float32),
        np.zeros((2, 3), np.int32),
        np.ones((2, 3), np.float32),
    ):
        assert rewriter.constant("c", other) is not first
