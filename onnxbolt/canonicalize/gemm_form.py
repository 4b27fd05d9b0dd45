"""Bring Gemm with a constant B to the form MatMul, Add.

    alpha * op(A) op(B) + beta * C  =  op(A) (alpha * op(B)) + beta * C

with op(X) = X or its transpose becomes MatMul(A, W [K, N]) and, where there is a C, an Add: of a
constant vector [N] where C is one (in any of the shapes that broadcast to rows), else of C as it
is, scaled by a Mul unless beta is 1. transA = 1 puts a Transpose before. A constant scaled or
transposed in the same way for several Gemms is made once.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import add_constant, constant_values, derived, insert, is_float, remove
from onnxbolt.graph.names import fresh


def run(graph: gs.Graph) -> int:
    """Rewrite all Gemms with constant weights; returns how many."""
    weights: dict[tuple[str, int, float], gs.Constant] = {}
    gemms = [
        node
        for node in graph.nodes
        if node.op == "Gemm" and not node.domain and _has_constant_weight(node)
    ]
    for node in gemms:
        _rewrite(graph, node, weights)
    return len(gemms)


def _has_constant_weight(node: gs.Node) -> bool:
    return isinstance(node.inputs[1], gs.Constant) and is_float(node.inputs[1])


def _rewrite(
    graph: gs.Graph, node: gs.Node, weights: dict[tuple[str, int, float], gs.Constant]
) -> None:
    x, b, y = node.inputs[0], node.inputs[1], node.outputs[0]
    c = node.inputs[2] if len(node.inputs) > 2 and node.inputs[2].name else None
    alpha, beta = node.attrs.get("alpha", 1.0), node.attrs.get("beta", 1.0)
    key = (b.name, node.attrs.get("transB", 0), alpha)
    if key not in weights:
        weights[key] = _weight(graph, *key, b)
    weight = weights[key]
    node.outputs.clear()
    if node.attrs.get("transA", 0):
        shape = None if x.shape is None else list(x.shape[::-1])
        transposed = gs.Variable(fresh(graph, f"{x.name}_transposed"), x.dtype, shape)
        insert(graph, "Transpose", [x], [transposed], [node], {"perm": [1, 0]}, at=node)
        x = transposed
    if c is None or beta == 0:
        insert(graph, "MatMul", [x, weight], [y], [node], at=node)
    else:
        product = gs.Variable(fresh(graph, f"{y.name}_product"), y.dtype, y.shape)
        insert(graph, "MatMul", [x, weight], [product], [node], at=node)
        insert(
            graph,
            "Add",
            [product, _bias(graph, node, y, c, beta, weight.shape[1])],
            [y],
            [node],
            at=node,
        )
    remove(graph, [node])


def _weight(
    graph: gs.Graph, name: str, transposed: int, alpha: float, b: gs.Constant
) -> gs.Constant:
    if not transposed and alpha == 1:
        return b

    def changed(values: np.ndarray) -> np.ndarray:
        values = values.T if transposed else values
        return values if alpha == 1 else (values.astype(np.float64) * alpha).astype(b.dtype)

    return add_constant(
        graph, f"{name}_KN", derived(b, changed, b.dtype, b.shape[::-1] if transposed else b.shape)
    )


def _bias(
    graph: gs.Graph, node: gs.Node, y: gs.Tensor, c: gs.Tensor, beta: float, n: int
) -> gs.Tensor:
    """beta * C, as a constant vector [N] where possible."""
    values = constant_values(c)
    if values is not None:
        if values.size == 1 or values.shape in ((n,), (1, n)):
            values = np.broadcast_to(values.reshape(-1), (n,))
        if beta != 1:
            values = (values.astype(np.float64) * beta).astype(c.dtype)
        elif values.shape == c.shape:
            return c
        return add_constant(graph, f"{c.name}_N", values)
    if beta == 1:
        return c
    scaled = gs.Variable(fresh(graph, f"{c.name}_scaled"), c.dtype, c.shape)
    factor = add_constant(graph, f"{y.name}_beta", np.array(beta, node.inputs[1].dtype))
    insert(graph, "Mul", [c, factor], [scaled], [node], at=node)
    return scaled
