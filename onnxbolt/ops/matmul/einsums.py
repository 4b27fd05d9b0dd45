"""Products of batches that an Einsum writes, as MatMul:

    Einsum("bqc, bchw -> bqhw", a, b)  =  Reshape(MatMul(a, Reshape(b, [B, C, -1])), [B, Q, H, W])

Mask2Former makes masks so (Cheng et al. 2022).
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import add_constant, insert, is_float, prune, stand_alone
from onnxbolt.graph.names import fresh
from onnxbolt.ops.matmul.form import attends

_BATCH_AND_ROWS = 2  # the axes in front of those that the second factor alone has


def multiply(graph: gs.Graph) -> int:
    """Write such Einsums as MatMul; returns how many."""
    count = 0
    for node in list(graph.nodes):
        if _is_product(node) and not attends(node):
            _multiply(graph, node)
            count += 1
    prune(graph)
    return count


def _is_product(node: gs.Node) -> bool:
    """True for a product of [B, M, K] by [B, K, ..] with the same K, whose further sizes are known,
    or one. An Einsum repeats a factor whose K is 1; a MatMul does not."""
    if node.op != "Einsum" or node.domain or len(node.inputs) != 2:
        return False
    if any(isinstance(t, gs.Constant) or not is_float(t) for t in node.inputs):
        return False
    factors, arrow, result = str(node.attrs["equation"]).replace(" ", "").partition("->")
    first, _, second = factors.partition(",")
    if not arrow or len(first) != 3 or len(second) < 3 or len({*first, *second}) != len(second) + 1:
        return False
    batch, rows, depth = tuple(first)
    of_rows, shape = (tensor.shape for tensor in node.inputs)
    if of_rows is None or shape is None or None in (of_rows[2], shape[1]):
        return False
    known = len(second) == 3 or all(isinstance(size, int) and size > 0 for size in shape[2:])
    same = second[:2] == batch + depth and result == batch + rows + second[2:]
    return known and same and of_rows[2] == shape[1]


def _multiply(graph: gs.Graph, node: gs.Node) -> None:
    a, b = node.inputs
    (y,) = node.outputs
    node.inputs.clear()
    node.outputs.clear()
    further = list(b.shape[2:])
    if len(further) < 2:
        insert(graph, "MatMul", [a, b], [y], [node], at=node)
        return
    pixels = int(np.prod(further))
    matrices = gs.Variable(fresh(graph, f"{b.name}_matrices"), b.dtype, [*b.shape[:2], pixels])
    product = gs.Variable(fresh(graph, f"{y.name}_product"), y.dtype)
    stand_alone(product)
    product.shape = [*(y.shape or [None] * len(b.shape))[:_BATCH_AND_ROWS], pixels]
    joined = add_constant(graph, f"{b.name}_joined", np.array([0, 0, pixels]))
    apart = add_constant(graph, f"{y.name}_apart", np.array([0, 0, *further]))
    insert(graph, "Reshape", [b, joined], [matrices], [node], at=node)
    insert(graph, "MatMul", [a, matrices], [product], [node], at=node)
    insert(graph, "Reshape", [product, apart], [y], [node], at=node)
