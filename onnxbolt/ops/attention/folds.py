"""Masks with one axis for batch and heads, as tensors with two."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import add_constant, insert
from onnxbolt.graph.names import fresh


def divided(graph: gs.Graph, mask: gs.Tensor, heads: int, at: gs.Node) -> gs.Tensor:
    """A mask [batch x heads, queries, keys] as [batch, heads, queries, keys], made in front of
    `at`; one that is the same for all batches and heads as [1, 1, queries, keys]. Its sizes may be
    symbolic: the last two are copied."""
    axis = add_constant(graph, f"{mask.name}_axis", np.array([0], np.int64))
    shape = [1, *mask.shape]
    lifted = gs.Variable(fresh(graph, f"{mask.name}_lifted"), mask.dtype, shape)
    insert(graph, "Unsqueeze", [mask, axis], [lifted], [], at=at)
    if mask.shape[0] == 1:
        return lifted
    wanted = add_constant(graph, f"{mask.name}_heads", np.array([-1, heads, 0, 0], np.int64))
    first = mask.shape[0] // heads if isinstance(mask.shape[0], int) else None
    batch = first if first is not None else fresh(graph, f"{mask.name}_batch")
    result = gs.Variable(
        fresh(graph, f"{mask.name}_divided"), mask.dtype, [batch, heads, *mask.shape[1:]]
    )
    insert(graph, "Reshape", [lifted, wanted], [result], [], at=at)
    return result
