"""Fold BatchNormalization into the Conv or MatMul before it.

    BN(x) = s x + (B - mean s)  with  s = scale / sqrt(var + epsilon)

is affine per channel, see affine.py (ONNX, BatchNormalization, inference). Gemm is MatMul, Add by
then. A BatchNormalization in training mode, with parameters that are no constants, or after a
tensor that has other readers stays.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize import affine
from onnxbolt.graph.edit import unrounded_values


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
    target = affine.channels(graph, x)
    if target is None or found is None:
        return False
    rank, axis, count = target
    if axis == -1 and rank != 2:  # channels of a BatchNormalization are axis 1
        return False
    return len(found[0]) == count and affine.fold(graph, node, x, *found)
