"""Rows of constant tables that indices choose: embeddings."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import producer

_ROWS = (0, -2)  # the axis of a table that indices name, in both ways of counting


def gather_of(term: gs.Tensor) -> gs.Node | None:
    """The Gather from a constant table [V, C] that computes `term`; None for any other tensor."""
    node = producer(term)
    if node is None or node.op != "Gather" or node.domain or node.attrs.get("axis", 0) not in _ROWS:
        return None
    table = node.inputs[0]
    return node if isinstance(table, gs.Constant) and len(table.shape) == 2 else None
