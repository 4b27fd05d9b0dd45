"""Fold a constant Mul, Div, Add or Sub after a Conv or MatMul into its weight and bias.

    x * c,  x / c,  x + c,  x - c,  c - x

with c a scalar or one number per output channel are affine, see affine.py.

An Add after a MatMul stays: it is the bias of the form MatMul, Add. Two of them become one.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize import affine
from onnxbolt.graph.edit import constant_values, is_float

_AFFINE = {  # (op, whether the constant is on the left) -> (scale, shift)
    ("Mul", False): lambda c: (c, 0 * c),
    ("Mul", True): lambda c: (c, 0 * c),
    ("Div", False): lambda c: (1 / c, 0 * c),
    ("Add", False): lambda c: (np.ones_like(c), c),
    ("Add", True): lambda c: (np.ones_like(c), c),
    ("Sub", False): lambda c: (np.ones_like(c), -c),
    ("Sub", True): lambda c: (-np.ones_like(c), c),
}


def run(graph: gs.Graph) -> int:
    """Fold all constant factors and summands that can be folded; returns how many."""
    nodes = [
        node for node in graph.nodes if node.op in ("Mul", "Div", "Add", "Sub") and not node.domain
    ]
    return sum(_fold(graph, node) for node in nodes)


def _fold(graph: gs.Graph, node: gs.Node) -> bool:
    left = isinstance(node.inputs[0], gs.Constant)
    constant, x = node.inputs[0 if left else 1], node.inputs[1 if left else 0]
    values = constant_values(constant)
    target = affine.channels(graph, x)
    if values is None or target is None or not is_float(constant) or (node.op, left) not in _AFFINE:
        return False
    c = affine.vector(values, *target)
    if c is None or (node.op == "Div" and not c.all()):
        return False
    return affine.fold(graph, node, x, *_AFFINE[node.op, left](c))
