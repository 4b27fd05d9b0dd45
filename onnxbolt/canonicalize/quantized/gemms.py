"""Bring Gemm whose B is constant codes to the form MatMul, Add:

    op(A) op(DQ(w)) + C  =  MatMul(op(A), op(DQ(w))) + C

with op(X) = X or its transpose, as `gemm_form` does with values. DequantizeLinear then moves behind
the Transpose of w, which is computed. Factors alpha and beta other than 1 stay in Gemm. The bias is
added behind the products, where a kernel of floats for Gemm may begin with it.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.canonicalize.quantized.scaling import is_dequantize, new_tensor, scaling_of
from onnxbolt.graph.edit import insert, optional, producer, remove, together


def run(graph: gs.Graph) -> int:
    """Rewrite all such Gemms; returns how many."""
    gemms = [node for node in graph.nodes if node.op == "Gemm" and _fits(node)]
    with together(graph):
        for node in gemms:
            _rewrite(graph, node)
    return len(gemms)


def _fits(node: gs.Node) -> bool:
    weight = producer(node.inputs[1])
    if node.domain or weight is None or not is_dequantize(weight) or scaling_of(weight) is None:
        return False
    if not isinstance(weight.inputs[0], gs.Constant):
        return False
    summand = optional(node.inputs, 2) is not None
    return node.attrs.get("alpha", 1.0) == 1 and (node.attrs.get("beta", 1.0) == 1 or not summand)


def _rewrite(graph: gs.Graph, node: gs.Node) -> None:
    (a, b), c, (y,) = node.inputs[:2], optional(node.inputs, 2), node.outputs
    a, b = (
        _transposed(graph, tensor, node) if node.attrs.get(name, 0) else tensor
        for tensor, name in ((a, "transA"), (b, "transB"))
    )
    product = y if c is None else new_tensor(graph, f"{y.name}_product", y.dtype, y.shape)
    insert(graph, "MatMul", [a, b], [product], [node], at=node)
    if c is not None:
        insert(graph, "Add", [product, c], [y], [node], at=node)
    remove(graph, [node])


def _transposed(graph: gs.Graph, tensor: gs.Tensor, at: gs.Node) -> gs.Variable:
    shape = None if tensor.shape is None else list(tensor.shape[::-1])
    turned = new_tensor(graph, f"{tensor.name}_transposed", tensor.dtype, shape)
    insert(graph, "Transpose", [tensor], [turned], [at], {"perm": [1, 0]}, at=at)
    return turned
