"""Fold BatchNormalization into the Conv or MatMul before it.

    BN(x) = s x + (B - mean s)  with  s = scale / sqrt(var + epsilon)

is affine per channel, see affine.py (ONNX, BatchNormalization, inference). Gemm is MatMul, Add by
then. Between MatMul and BatchNormalization a Reshape may have made one sequence of all rows, as
channels are axis 1 in ONNX (LeViT, Graham et al. 2021):

    BN(Reshape(x W))  =  Reshape(s x W + (B - mean s))

A BatchNormalization in training mode, with parameters that are no constants, or after a tensor that
has other readers stays.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize import affine
from onnxbolt.graph.edit import (
    add_variable,
    insert,
    producer,
    remove,
    sole_use,
    stand_alone,
    unrounded_values,
)


def run(graph: gs.Graph) -> int:
    """Fold all BatchNormalizations that can be folded; returns how many."""
    nodes = [node for node in graph.nodes if node.op == "BatchNormalization" and not node.domain]
    return sum(_fold(graph, node) for node in nodes)


def scale_and_shift(node: gs.Node) -> tuple[np.ndarray, np.ndarray] | None:
    """A BatchNormalization as s x + shift, both float64 [channels]; None in training mode and if a
    parameter is not constant."""
    if node.attrs.get("training_mode", 0) or len([t for t in node.outputs if t.name]) != 1:
        return None
    parameters = [unrounded_values(tensor) for tensor in node.inputs[1:]]
    if any(values is None for values in parameters):
        return None
    gamma, beta, mean, variance = (
        values.astype(np.float64) for values in parameters if values is not None
    )
    scale = gamma / np.sqrt(variance + node.attrs.get("epsilon", 1e-5))
    return scale, beta - mean * scale


def _fold(graph: gs.Graph, node: gs.Node) -> bool:
    x, found = node.inputs[0], scale_and_shift(node)
    if found is None:
        return False
    target = affine.channels(graph, x)
    if target is None:
        return _fold_in_front(graph, node, *found)
    rank, axis, count = target
    if axis == -1 and rank != 2:  # channels of a BatchNormalization are axis 1
        return False
    return len(found[0]) == count and affine.fold(graph, node, x, *found)


def _fold_in_front(graph: gs.Graph, node: gs.Node, scale: np.ndarray, shift: np.ndarray) -> bool:
    """Fold a BatchNormalization of rows into the product whose result a Reshape or Flatten turned
    into these rows."""
    x, y = node.inputs[0], node.outputs[0]
    rows = producer(x)
    if rows is None or rows.domain or rows.op not in ("Flatten", "Reshape"):
        return False
    product = rows.inputs[0]
    target, used_once = affine.channels(graph, product), sole_use(graph, x) is node
    if target is None or target[1] != -1 or not used_once:
        return False
    if not x.shape or len(x.shape) != 2 or target[2] != len(scale):  # else other rows
        return False
    normalized = add_variable(graph, f"{product.name}_normalized", product)
    inputs = [product, *node.inputs[1:]]
    front = insert(graph, node.op, inputs, [normalized], [node], node.attrs, at=rows)
    rows.inputs[0] = normalized
    if not affine.fold(graph, front, product, scale, shift):
        rows.inputs[0] = product
        remove(graph, [front])
        return False
    stand_alone(normalized)
    remove(graph, [node])
    rows.outputs = [y]
    return True
