"""Transposes that ONNX Runtime leaves where they are, in models with codes of fp8.

ONNX Runtime moves a Transpose across operators to where another one takes it back: across
QuantizeLinear, too. What else reads those codes then needs a Transpose of codes, which it does not
have for fp8, so that it refuses the model. It moves none across a Reshape that changes the number
of axes. So a Transpose is fenced: one axis of size 1 is added in front of it, and dropped behind.
Kernels are not concerned, and a Reshape costs nothing.
"""

from __future__ import annotations

from collections.abc import MutableMapping

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import FunctionProto, NodeProto, helper

from onnxbolt.dtypes import DType
from onnxbolt.graph.edit import Node, add_constant, insert
from onnxbolt.graph.names import fresh
from onnxbolt.ops.base import Signature


def fence(graph: gs.Graph, functions: MutableMapping[Signature, FunctionProto]) -> None:
    """Fence the Transposes that stages have added to `graph`, and those of its nodes' bodies in
    `functions`, where it has tensors of fp8."""
    if not any(
        DType.stored(tensor.dtype) is DType.E4M3
        for node in graph.nodes
        for tensor in (*node.inputs, *node.outputs)
    ):
        return
    for node in list(graph.nodes):
        if node.op == "Transpose" and not node.domain and getattr(node, "origin", None) is None:
            _fence_node(graph, node)
    for key, function in functions.items():
        functions[key] = _fenced(function)


def _fence_node(graph: gs.Graph, node: Node) -> None:
    (x,), (y,), perm = node.inputs, node.outputs, node.attrs["perm"]
    before, behind = (
        gs.Variable(fresh(graph, f"{tensor.name}__fenced"), tensor.dtype) for tensor in (x, y)
    )
    wide, narrow = (add_constant(graph, f"{x.name}.shape", s) for s in _shapes(len(perm)))
    place = next(i for i, other in enumerate(graph.nodes) if other is node)
    insert(graph, "Reshape", [x, wide], [before], [node], at=node)
    behind_it = graph.nodes[place + 2] if place + 2 < len(graph.nodes) else None
    node.inputs[0] = before
    node.outputs[0] = behind
    node.attrs = {"perm": [*perm, len(perm)]}
    insert(graph, "Reshape", [behind, narrow], [y], [node], at=behind_it)


def _fenced(function: FunctionProto) -> FunctionProto:
    """The function with its Transposes fenced."""
    result = FunctionProto()
    result.CopyFrom(function)
    del result.node[:]
    for node in function.node:
        result.node.extend(_three(node) if node.op_type == "Transpose" else [node])
    return result


def _three(node: NodeProto) -> list[NodeProto]:
    """The nodes of a fenced Transpose."""
    (y,) = node.output
    (perm,) = (list(attribute.ints) for attribute in node.attribute)
    shapes = [
        helper.make_node("Constant", [], [f"{y}_{name}"], value=onnx.numpy_helper.from_array(shape))
        for name, shape in zip(("wide", "narrow"), _shapes(len(perm)), strict=True)
    ]
    return [
        *shapes,
        helper.make_node("Reshape", [node.input[0], f"{y}_wide"], [f"{y}_before"]),
        helper.make_node("Transpose", [f"{y}_before"], [f"{y}_behind"], perm=[*perm, len(perm)]),
        helper.make_node("Reshape", [f"{y}_behind", f"{y}_narrow"], [y]),
    ]


def _shapes(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """The shape with one more axis of size 1, and that without it, for Reshape."""
    same = np.zeros(rank, np.int64)
    return np.append(same, np.int64(1)), same
