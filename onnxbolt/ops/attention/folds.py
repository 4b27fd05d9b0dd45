"""Masks with one axis for batch and heads, as tensors with two:

    scores + m   =   scores + Reshape(Reshape(m, [batch, heads, ..]), [batch x heads, ..])

Kernels read the tensor between both Reshapes. torch.nn.MultiheadAttention's 3-D masks are such.
With a single head the scores get an axis for it, too:

    scores + m   =   Squeeze(Unsqueeze(scores, 1) + Unsqueeze(m, 1), 1)
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import add_constant, insert, rearranged, remove
from onnxbolt.graph.names import fresh
from onnxbolt.ops.attention import decomposed
from onnxbolt.ops.attention.masks import Operand
from onnxbolt.ops.base import FusedOp


def divide(op: FusedOp, graph: gs.Graph, among: Iterable[gs.Node]) -> list[gs.Node]:
    """Divide the masks of attentions of `op` that need it; returns the softmaxes, `among` the
    given ones, of these attentions."""
    made, changed = dict[tuple[str, int], gs.Tensor](), list[gs.Node]()
    for softmax in among:
        found, heads = decomposed.folded_masks(op, softmax)
        folded = [each for each in found if len(each.tensor.shape) == len(each.scores.shape) == 3]
        if not folded or any(_indivisible(each.tensor, heads) for each in folded):
            continue
        for each in folded:
            key = each.tensor.name, heads
            if key not in made:
                mask = divided(graph, each.tensor, heads, each.node)
                made[key] = mask if heads == 1 else _folded(graph, mask, each)
            if heads == 1:
                _lift(graph, each, made[key])
            else:
                each.node.inputs[each.node.inputs.index(each.tensor)] = made[key]
                each.node.origin = None
        changed.append(softmax)
    return changed


def _indivisible(mask: gs.Tensor, heads: int) -> bool:
    size = mask.shape[0]
    return isinstance(size, int) and size != 1 and size % heads != 0


def _folded(graph: gs.Graph, mask: gs.Tensor, found: Operand) -> gs.Tensor:
    """The divided mask behind a Reshape to the shape that it had."""
    node, tensor = found.node, found.tensor
    shape = gs.Variable(fresh(graph, f"{tensor.name}_shape"), np.int64, [3])
    result = gs.Variable(fresh(graph, f"{tensor.name}_folded"), mask.dtype, tensor.shape)
    insert(graph, "Shape", [tensor], [shape], [], at=node)
    insert(graph, "Reshape", [mask, shape], [result], [], at=node)
    return result


def _lift(graph: gs.Graph, found: Operand, mask: gs.Tensor) -> None:
    """Let a node read the divided mask and scores with an axis for the only head."""
    node, y = found.node, found.node.outputs[0]
    batch, *others = y.shape
    axis = add_constant(graph, f"{y.name}_axis", np.array([1], np.int64))
    scores, masked = (
        gs.Variable(fresh(graph, f"{y.name}_{word}"), y.dtype, [batch, 1, *others])
        for word in ("scores", "lifted")
    )
    insert(graph, "Unsqueeze", [found.scores, axis], [scores], [node], at=node)
    lifted = {found.scores.name: scores, found.tensor.name: mask}
    inputs = [lifted.get(tensor.name, tensor) for tensor in node.inputs]
    insert(graph, node.op, inputs, [masked], [node], node.attrs, at=node)
    insert(graph, "Squeeze", [masked, axis], [], [node], at=node).outputs = [y]
    remove(graph, [node])


def _wanted(graph: gs.Graph, mask: gs.Tensor, heads: int, at: gs.Node) -> gs.Tensor:
    """The sizes [batch, heads, queries, keys] of a mask whose first axis has any size; of one that
    is the same for all batches and heads, which a run alone tells, [1, 1, queries, keys]."""
    base, integers = f"{mask.name}_heads", gs.Variable(mask.name, np.dtype(np.int64))
    if isinstance(mask.shape[0], int):
        return add_constant(graph, base, np.array([-1, heads, 0, 0], np.int64))
    most, first, last, copied = (
        add_constant(graph, base, np.array(values, np.int64))
        for values in ([heads], [0], [-1], [0, 0])
    )
    shape = rearranged(graph, "Shape", [mask], integers, [3], at)
    rows = rearranged(graph, "Gather", [shape, first], integers, [1], at, axis=0)
    own = rearranged(graph, "Min", [rows, most], integers, [1], at)
    return rearranged(graph, "Concat", [last, own, copied], integers, [4], at, axis=0)


def divided(graph: gs.Graph, mask: gs.Tensor, heads: int, at: gs.Node) -> gs.Tensor:
    """A mask [batch x heads, queries, keys] as [batch, heads, queries, keys], made in front of
    `at`; one that is the same for all batches and heads as [1, 1, queries, keys]. Its sizes may be
    symbolic: the last two are copied."""
    place, shape = int(heads == 1), list(mask.shape)
    if isinstance(mask, gs.Constant):
        apart = (heads if mask.shape[0] != 1 else 1, *mask.shape[1:])
        return add_constant(graph, f"{mask.name}_divided", mask.values.reshape(-1, *apart))
    axis = add_constant(graph, f"{mask.name}_axis", np.array([place], np.int64))
    shape.insert(place, 1)
    lifted = gs.Variable(fresh(graph, f"{mask.name}_lifted"), mask.dtype, shape)
    insert(graph, "Unsqueeze", [mask, axis], [lifted], [], at=at)
    if mask.shape[0] == 1 or heads == 1:
        return lifted
    wanted = _wanted(graph, mask, heads, at)
    first = mask.shape[0] // heads if isinstance(mask.shape[0], int) else None
    batch = first if first is not None else fresh(graph, f"{mask.name}_batch")
    result = gs.Variable(
        fresh(graph, f"{mask.name}_divided"), mask.dtype, [batch, heads, *mask.shape[1:]]
    )
    insert(graph, "Reshape", [lifted, wanted], [result], [], at=at)
    return result
