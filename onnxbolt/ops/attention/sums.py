"""Several masks that no kernel reads apart become one that is added:

    scores + a + b              =   scores + (a + b)
    Where(c, scores + a, low)   =   scores + Where(c, a, low)

That is T5's bias of positions, the same for all batches, and the padding of each batch. The sum has
the scores' type, and is computed once for all layers that have the same masks. Where one mask is 0
for a key and the others have any number, the sum is exact; low absorbs what is added to it, and a
score behind it. Otherwise a score may differ by the rounding of two sums.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import add_constant, insert, remove
from onnxbolt.graph.names import fresh
from onnxbolt.ops.attention import decomposed, masks
from onnxbolt.ops.attention.masks import ABSORBS, Operand


def join(graph: gs.Graph) -> int:
    """Join the masks of all attentions that have several; returns of how many."""
    sums = dict[tuple[object, ...], gs.Tensor]()
    count = 0
    for softmax in list(graph.nodes):
        operands = decomposed.several_masks(softmax) if softmax.op == "Softmax" else ()
        if operands and _can_join(operands):
            _join(graph, operands, sums)
            count += 1
    return count


def _can_join(operands: Sequence[Operand]) -> bool:
    """True if nothing stands between the masks, and the numbers that are added are of the scores'
    type."""
    scores, between = operands[0].scores, itertools.pairwise(operands)
    if scores.shape is None or len(scores.shape) != 4:
        return False
    return all(before.node.outputs[0] is after.scores for before, after in between) and all(
        masks.broadcasts(each.tensor, scores)
        and (each.tensor.dtype == scores.dtype if each.puts is None else _absorbs(each))
        for each in operands
    )


def _absorbs(mask: Operand) -> bool:
    """True if the number that a Where puts is the same with any score added to it."""
    return mask.puts is not None and mask.puts <= ABSORBS and mask.scores.dtype == np.float32


def _join(
    graph: gs.Graph, operands: Sequence[Operand], sums: dict[tuple[object, ...], gs.Tensor]
) -> None:
    """Replace the masks' nodes by one Add."""
    scores, nodes = operands[0].scores, [each.node for each in operands]
    last, y = nodes[-1], nodes[-1].outputs[0]
    key = (scores.dtype, *((each.tensor.name, each.puts, each.keeps) for each in operands))
    if key not in sums:
        total: gs.Tensor | None = None
        for each in operands:
            total = _with(graph, total, each, last)
        assert total is not None  # there are operands
        sums[key] = total
    insert(graph, "Add", [scores, sums[key]], [], nodes, at=last).outputs = [y]
    remove(graph, nodes)


def _with(graph: gs.Graph, total: gs.Tensor | None, mask: Operand, at: gs.Node) -> gs.Tensor:
    """`total` with a further mask."""
    if total is None and mask.puts is None:
        return mask.tensor
    y = mask.node.outputs[0]
    result = gs.Variable(fresh(graph, f"{y.name}_mask"), y.dtype)
    inputs = [total, mask.tensor]
    if mask.puts is not None:
        constant = partial(add_constant, graph, f"{y.name}_number")
        low, zero = (constant(np.array(number, y.dtype)) for number in (mask.puts, 0.0))
        kept = zero if total is None else total
        inputs = [mask.tensor, kept, low] if mask.keeps else [mask.tensor, low, kept]
    insert(graph, mask.node.op, inputs, [result], [mask.node], at=at)
    return result
