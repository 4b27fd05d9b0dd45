"""Masks with one axis for batch and heads, as tensors with two:

    scores + m   =   scores + Reshape(Reshape(m, [batch, heads, ..]), [batch x heads, ..])

Kernels read the tensor between both Reshapes. torch.nn.MultiheadAttention's 3-D masks are such.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import add_constant, insert
from onnxbolt.graph.names import fresh
from onnxbolt.ops.attention import decomposed
from onnxbolt.ops.base import FusedOp


def divide(op: FusedOp, graph: gs.Graph) -> int:
    """Divide the masks of all attentions of `op` that need it; returns of how many."""
    made = dict[tuple[str, int], gs.Tensor]()
    count = 0
    for softmax in list(graph.nodes):
        if softmax.op != "Softmax":
            continue
        found, heads = decomposed.folded_masks(op, softmax)
        folded = [each for each in found if len(each.tensor.shape) == len(each.scores.shape) == 3]
        if not folded or any(_indivisible(each.tensor, heads) for each in folded):
            continue
        for each in folded:
            key = each.tensor.name, heads
            if key not in made:
                made[key] = _and_back(graph, each.tensor, heads, each.node)
            place = each.node.inputs.index(each.tensor)
            each.node.inputs[place] = made[key]
            each.node.origin = None
        count += 1
    return count


def _indivisible(mask: gs.Tensor, heads: int) -> bool:
    size = mask.shape[0]
    return isinstance(size, int) and size != 1 and size % heads != 0


def _and_back(graph: gs.Graph, mask: gs.Tensor, heads: int, at: gs.Node) -> gs.Tensor:
    """The mask behind both Reshapes."""
    shape = gs.Variable(fresh(graph, f"{mask.name}_shape"), np.int64, [3])
    result = gs.Variable(fresh(graph, f"{mask.name}_folded"), mask.dtype, mask.shape)
    insert(graph, "Shape", [mask], [shape], [], at=at)
    insert(graph, "Reshape", [divided(graph, mask, heads, at), shape], [result], [], at=at)
    return result


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
