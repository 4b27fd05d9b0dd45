"""Write a convolution whose window is the whole image as a matrix product:

    Conv(x, W) + b  =  R(R(x) W' + b),   spatial sizes of W = those of x, no pads

with R(x) [N, C R S] and W' = W as [C R S, K]. The vision towers of Qwen2-VL and of what followed it
embed patches so: each is an image, or a volume of two, of its own. An image that a layer of the
model has computed is stored with its channels last, and stays with its convolution.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import (
    add_constant,
    auto_pad,
    conv_attributes,
    derived,
    insert,
    is_float,
    producer,
    remove,
    stand_alone,
)
from onnxbolt.graph.names import fresh


def run(graph: gs.Graph) -> int:
    """Rewrite all; returns how many."""
    found = [node for node in graph.nodes if _covers(node)]
    for node in found:
        _rewrite(graph, node)
    return len(found)


def _covers(node: gs.Node) -> bool:
    """True for a convolution whose window of several pixels is all of a given image."""
    if node.op != "Conv" or node.domain:
        return False
    x, weight, *bias = node.inputs
    if not isinstance(weight, gs.Constant) or not is_float(weight) or x.shape is None:
        return False
    if any(tensor.name and not isinstance(tensor, gs.Constant) for tensor in bias):
        return False
    attributes = conv_attributes(node)
    padded = attributes["pads"] not in ([], [0] * (2 * len(x.shape) - 4))
    if auto_pad(node) not in ("NOTSET", "VALID") or padded or attributes["group"] != 1:
        return False
    window = list(weight.shape[1:])
    return list(x.shape[1:]) == window and math.prod(window[1:]) > 1 and _is_given(x)


def _is_given(x: gs.Tensor) -> bool:
    """True for a graph input, and for a tensor that a Reshape makes an image."""
    node = producer(x)
    return node is None or (node.op == "Reshape" and not node.domain)


def _rewrite(graph: gs.Graph, conv: gs.Node) -> None:
    (x, weight, *bias), y = conv.inputs, conv.outputs[0]
    images, columns, depth = x.shape[0], weight.shape[0], math.prod(weight.shape[1:])

    def add(op: str, inputs: list[gs.Tensor], size: int) -> gs.Tensor:
        result = gs.Variable(fresh(graph, f"{y.name}_{op.lower()}"), x.dtype, [images, size])
        insert(graph, op, inputs, [result], [conv], at=conv)
        return result

    def sizes(*values: int) -> gs.Constant:
        return add_constant(graph, f"{y.name}_sizes", np.array(values, np.int64))

    matrix = derived(
        weight, lambda values: values.reshape(columns, -1).T, weight.dtype, (depth, columns)
    )
    rows = add("Reshape", [x, sizes(-1, depth)], depth)
    result = add("MatMul", [rows, add_constant(graph, f"{weight.name}_KN", matrix)], columns)
    given = [tensor for tensor in bias if tensor.name]
    if given:
        result = add("Add", [result, *given], columns)
    stand_alone(result)  # its values are the convolution's, in another shape
    ones = [1] * (len(weight.shape) - 2)
    back = insert(graph, "Reshape", [result, sizes(-1, columns, *ones)], [], [conv], at=conv)
    remove(graph, [conv])
    back.outputs = [y]
