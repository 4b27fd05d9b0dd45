"""Move a Reshape of a sum in front of it, where a normalization of rows reads the result:

    norm(Reshape(x + residual))  =  norm(Reshape(x) + Reshape(residual))

The rows stay as they are. Then the normalization, or a product before, adds the residual; Swin's
blocks have such a Reshape, from windows back to a sequence of pixels.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.domains import INTERNAL
from onnxbolt.graph.edit import insert, producer, remove, sole_use
from onnxbolt.graph.names import fresh

_NORMS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})


def run(graph: gs.Graph) -> int:
    """Move all such Reshapes; returns how many."""
    sums = [node for node in graph.nodes if node.op == "Add" and not node.domain]
    moved = [(node, behind) for node in sums if (behind := _reshape(graph, node)) is not None]
    for node, reshape in moved:
        y = reshape.outputs[0]
        terms = [_reshaped(graph, term, reshape, node) for term in node.inputs]
        reshape.outputs.clear()
        insert(graph, "Add", terms, [y], [node], at=node)
        remove(graph, [node, reshape])
    return len(moved)


def _reshape(graph: gs.Graph, node: gs.Node) -> gs.Node | None:
    """The Reshape that alone reads a sum of two tensors of one shape, keeps its last axis, and is
    read by a normalization; None if there is none."""
    total = node.outputs[0]
    reshape = sole_use(graph, total)
    if reshape is None or reshape.domain or reshape.op != "Reshape":
        return None
    y, shape = reshape.outputs[0], total.shape
    variables = not any(isinstance(term, gs.Constant) for term in node.inputs)
    if not shape or not y.shape or not variables or reshape.inputs[0] is not total:
        return None
    alike = all(list(term.shape or ()) == list(shape) for term in node.inputs)
    kept = isinstance(shape[-1], int) and y.shape[-1] == shape[-1]
    return reshape if alike and kept and any(map(_normalizes, y.outputs)) else None


def _normalizes(node: gs.Node) -> bool:
    return node.op in _NORMS and node.domain in (None, "", "ai.onnx", INTERNAL)


def _reshaped(graph: gs.Graph, term: gs.Tensor, reshape: gs.Node, at: gs.Node) -> gs.Tensor:
    """The term in the Reshape's shape: what it was before a Reshape, if it had that shape."""
    before, y = producer(term), reshape.outputs[0]
    if before is not None and before.op == "Reshape" and not before.domain:
        source = before.inputs[0]
        if source.shape == y.shape and None not in y.shape:
            return source
    rows = gs.Variable(fresh(graph, f"{term.name}_rows"), term.dtype, y.shape)
    insert(graph, "Reshape", [term, reshape.inputs[1]], [rows], [reshape], reshape.attrs, at=at)
    return rows
