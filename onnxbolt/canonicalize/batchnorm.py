"""Fold BatchNormalization into the Conv or MatMul before it.

    BN(x) = s x + (B - mean s)  with  s = scale / sqrt(var + epsilon)      (ONNX, BatchNormalization, inference)

is affine per channel, see affine.py. Gemm is MatMul, Add by then. A BatchNormalization in training mode, with parameters that
are no constants, or after a tensor that has other readers stays.
"""
from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize import affine
from onnxbolt.graph.edit import constant_values


def run(graph: gs.Graph) -> int:
    """Fold all that can be folded; returns how many."""
    nodes = [node for node in graph.nodes if node.op == "BatchNormalization" and not node.domain]
    return sum(_fold(graph, node) for node in nodes)


def _fold(graph: gs.Graph, node: gs.Node) -> bool:
    if node.attrs.get("training_mode", 0) or len([t for t in node.outputs if t.name]) != 1:
        return False
    x = node.inputs[0]
    target = affine.channels(graph, x)
    parameters = [constant_values(tensor) for tensor in node.inputs[1:]]
    if target is None or any(values is None for values in parameters):
        return False
    rank, axis, count = target
    if axis == -1 and rank != 2:  # channels of a BatchNormalization are axis 1
        return False
    gamma, beta, mean, variance = (values.astype(np.float64) for values in parameters if values is not None)
    if len(gamma) != count:
        return False
    scale = gamma / np.sqrt(variance + node.attrs.get("epsilon", 1e-5))
    return affine.fold(graph, node, x, scale, beta - mean * scale)
