"""The form of products of two tensors that a GEMM's kernel computes:

    MatMul(a, b)  =  MatMul(a, Transpose(w))    with w [N, K]

Kernels read rows of K values of both operands. So a product is brought to this form where b is one
matrix for all batches of a, and its columns are such rows already, or may be: b is the Transpose of
a tensor, or an image [1, C, H, W] reshaped to [1, C, pixels], whose channels lie last in NHWC.
Correlations of images are such (Teed and Deng 2020), and similarities of embeddings. Where each
batch has a matrix of its own, w is [B, N, K]: Mask2Former multiplies queries by an image's features
(Cheng et al. 2022), which an Einsum writes.

The products of attention stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import add_constant, insert, is_float, producer, prune
from onnxbolt.graph.names import fresh
from onnxbolt.ops.attention import forms

_TURNED, _BATCHES_TURNED = [1, 0], [0, 2, 1]
# operators between a product and the softmax of its scores, or between a softmax and its product
_BETWEEN = frozenset({"Add", "Cast", "Div", "Mul", "Reshape", "Sub", "Transpose", "Where"})
_FARTHEST = 8  # such operators in a row


def turn(graph: gs.Graph) -> int:
    """Bring the products that kernels compute to their form; returns how many."""
    count = 0
    for node in list(graph.nodes):
        rows = _rows(graph, node) if _is_open(node) else None
        if rows is not None:
            _read_rows(graph, node, rows)
            count += 1
    prune(graph)
    return count


def rows_of(node: gs.Node) -> gs.Tensor | None:
    """w [N, K] of a product in this form; None for another node."""
    if node.op != "MatMul" or node.domain or isinstance(node.inputs[1], gs.Constant):
        return None
    transpose = producer(node.inputs[1])
    if transpose is None or not _turns(transpose) or len(node.inputs[1].shape) != 2:
        return None
    rows: gs.Tensor = transpose.inputs[0]
    return None if isinstance(rows, gs.Constant) else rows


def matrices_of(node: gs.Node) -> gs.Tensor | None:
    """w [B, N, K] of a product of batches in this form; None for another node."""
    if node.op != "MatMul" or node.domain or isinstance(node.inputs[1], gs.Constant):
        return None
    transpose = producer(node.inputs[1])
    ranks = {len(tensor.shape or ()) for tensor in node.inputs}
    if transpose is None or not _turns(transpose) or ranks != {3} or attends(node):
        return None
    matrices: gs.Tensor = transpose.inputs[0]
    one = isinstance(matrices, gs.Constant) or matrices.shape[0] == 1
    return None if one else matrices


def turn_back(graph: gs.Graph) -> int:
    """Let products in this form, which no kernel took, read what had to be transposed for it;
    returns how many."""
    count = 0
    for node in graph.nodes:
        matrices, rows = matrices_of(node), rows_of(node)
        squeeze = producer(rows) if rows is not None else None
        if matrices is not None:
            transpose = producer(matrices)
        elif squeeze is not None and squeeze.op == "Squeeze" and not squeeze.domain:
            transpose = producer(squeeze.inputs[0])
        else:
            continue
        if transpose is not None and _turns(transpose):
            node.inputs[1] = transpose.inputs[0]
            count += 1
    prune(graph)
    return count


def _is_open(node: gs.Node) -> bool:
    """True for a product that kernels compute, but for its form."""
    done = rows_of(node) is not None or matrices_of(node) is not None
    return not done and _is_computable(node) and not attends(node)


def _is_computable(node: gs.Node) -> bool:
    """True for a product of two tensors, the second of which is one matrix for all batches of the
    first, or has one for each."""
    if node.op != "MatMul" or node.domain or not all(map(is_float, node.inputs)):
        return False
    a, b = node.inputs
    if any(isinstance(tensor, gs.Constant) or tensor.shape is None for tensor in (a, b)):
        return False
    one = all(size == 1 for size in b.shape[:-2])
    return len(a.shape) >= len(b.shape) >= 2 and (one or len(a.shape) == len(b.shape) == 3)


def _rows(graph: gs.Graph, node: gs.Node) -> gs.Tensor | None:
    """[.., N, K] of the second operand [.., K, N]; None where it would have to be moved in
    memory."""
    b = node.inputs[1]
    maker = producer(b)
    if maker is not None and _turns(maker):
        rows: gs.Tensor = maker.inputs[0]
        return None if isinstance(rows, gs.Constant) else rows
    if not _is_image(b):
        return None
    batch, channels, pixels = b.shape
    turned = gs.Variable(fresh(graph, f"{b.name}_turned"), b.dtype, [batch, pixels, channels])
    insert(graph, "Transpose", [b], [turned], [node], {"perm": [0, 2, 1]}, at=node)
    return turned


def _read_rows(graph: gs.Graph, node: gs.Node, rows: gs.Tensor) -> None:
    """Let a product read the Transpose of `rows`, without their batches where these are 1."""
    *batches, columns, depth = rows.shape
    if any(size != 1 for size in batches):
        turned = gs.Variable(fresh(graph, f"{rows.name}_turned"), rows.dtype)
        turned.shape = [*batches, depth, columns]
        insert(graph, "Transpose", [rows], [turned], [node], {"perm": _BATCHES_TURNED}, at=node)
        node.inputs[1] = turned
        return
    if batches:
        axes = add_constant(graph, f"{rows.name}_axes", np.arange(len(batches)))
        matrix = gs.Variable(fresh(graph, f"{rows.name}_rows"), rows.dtype, [columns, depth])
        insert(graph, "Squeeze", [rows, axes], [matrix], [node], at=node)
        rows = matrix
    turned = gs.Variable(fresh(graph, f"{rows.name}_turned"), rows.dtype, [depth, columns])
    insert(graph, "Transpose", [rows], [turned], [node], {"perm": _TURNED}, at=node)
    node.inputs[1] = turned


def _turns(node: gs.Node) -> bool:
    """True for a Transpose that exchanges the last two axes."""
    rank = len(node.inputs[0].shape or ()) if node.inputs else 0
    if node.op != "Transpose" or node.domain or rank < 2:
        return False
    wanted = [*range(rank - 2), rank - 1, rank - 2]
    return list(node.attrs.get("perm", range(rank)[::-1])) == wanted


def _is_image(tensor: gs.Tensor) -> bool:
    """True for [N, C, pixels] of an image or a volume."""
    maker, shape = producer(tensor), tensor.shape
    if maker is None or maker.op != "Reshape" or maker.domain or len(shape) != 3:
        return False
    image = maker.inputs[0].shape
    joined = image is not None and len(image) in (4, 5) and list(image[:2]) == list(shape[:2])
    return joined and isinstance(shape[1], int)


def attends(node: gs.Node) -> bool:
    """True for the products of attention, of scores and of values."""
    scores = _reached(node.outputs[0], lambda tensor: iter(tensor.outputs), lambda n: n.outputs)
    weights = (_reached(each, lambda t: iter(t.inputs), lambda n: n.inputs) for each in node.inputs)
    return any(map(forms.is_softmax, scores)) or any(
        each.op == "Softmax" for found in weights for each in found
    )


def _reached(
    tensor: gs.Tensor,
    nodes_of: Callable[[gs.Tensor], Iterator[gs.Node]],
    tensors_of: Callable[[gs.Node], list[gs.Tensor]],
) -> Iterator[gs.Node]:
    """The nodes that a tensor reaches through operators that attention has between its parts."""
    seen, pending = set[gs.Node](), [(tensor, 0)]
    while pending:
        current, distance = pending.pop()
        for node in nodes_of(current):
            if node in seen:
                continue
            seen.add(node)
            yield node
            if node.op in _BETWEEN and distance < _FARTHEST:
                pending += [(each, distance + 1) for each in tensors_of(node)]
