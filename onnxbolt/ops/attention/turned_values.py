"""Values that are multiplied by transposed probabilities, as YOLOv10 and its successors do:

    v T(p)  =  T(p T(v)),   T exchanges the last two axes

A Transpose that brings the result to other axes reads p T(v) instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import insert, rearranged, remove, sole_use
from onnxbolt.ops.attention.scales import before
from onnxbolt.ops.base import FusedOp


def weighs(graph: gs.Graph, node: gs.Node) -> bool:
    """True for a softmax whose transposed probabilities weigh values."""
    return node.op == "Softmax" and not node.domain and _found(graph, node) is not None


def turn(op: FusedOp, graph: gs.Graph, among: Iterable[gs.Node]) -> list[gs.Node]:
    """Multiply the probabilities of the softmaxes `among` by values; returns those that it
    changed."""
    turned = list[gs.Node]()
    for softmax in among:
        found = _found(graph, softmax)
        if found is not None:
            _turn(graph, *found)
            turned.append(softmax)
    return turned


def _found(graph: gs.Graph, softmax: gs.Node) -> tuple[gs.Node, gs.Node] | None:
    """The Transpose of the probabilities and the product by them."""
    node = sole_use(graph, softmax.outputs[0])
    while node is not None and node.op == "Cast" and before(node) is not None:
        node = sole_use(graph, node.outputs[0])
    if node is None or node.op != "Transpose" or node.domain:
        return None
    rank = len(node.inputs[0].shape or ())
    if rank < 3 or list(node.attrs.get("perm", ())) != _exchanged(rank):
        return None
    product = sole_use(graph, node.outputs[0])
    if product is None or product.op != "MatMul" or product.domain:
        return None
    values, weights = product.inputs
    known = values is not weights and values.shape is not None and len(values.shape) == rank
    return (node, product) if known and weights is node.outputs[0] else None


def _exchanged(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def _turn(graph: gs.Graph, transpose: gs.Node, product: gs.Node) -> None:
    """Put the product by values in the place of both nodes."""
    p, v, y = transpose.inputs[0], product.inputs[0], product.outputs[0]
    exchanged = _exchanged(len(v.shape))

    def turned(tensor: gs.Tensor) -> list[Any]:
        return [tensor.shape[axis] for axis in exchanged]

    values = rearranged(graph, "Transpose", [v], y, turned(v), product, perm=exchanged)
    result = rearranged(graph, "MatMul", [p, values], y, turned(y), product)
    reader, last, perm = sole_use(graph, y), product, exchanged
    if reader is not None and reader.op == "Transpose" and not reader.domain:
        last, perm = reader, [exchanged[axis] for axis in reader.attrs["perm"]]
    behind = insert(graph, "Transpose", [result], [], [last], {"perm": perm}, at=last)
    y = last.outputs[0]
    remove(graph, {transpose, product, last})
    behind.outputs = [y]
