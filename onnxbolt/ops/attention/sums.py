"""Several masks that no kernel reads apart become one that is added:

    scores + a + b              =   scores + (a + b)
    Where(c, scores + a, low)   =   scores + Where(c, a, low)

A Reshape of the scores between masks, from one axis for batch and heads to two, comes before them,
and a mask in front of it is reshaped likewise (BLOOM, DeBERTa).

That is T5's bias of positions, the same for all batches, and the padding of each batch. The sum has
the scores' type, and is computed once for all layers that have the same masks. Where one mask is 0
for a key and the others have any number, the sum is exact; low absorbs what is added to it, and a
score behind it. Otherwise a score may differ by the rounding of two sums.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import add_constant, add_variable, insert, producer, remove, sole_use
from onnxbolt.graph.names import fresh
from onnxbolt.ops.attention import decomposed, folds, masks
from onnxbolt.ops.attention.lengths import sizes
from onnxbolt.ops.attention.masks import ABSORBS, Operand
from onnxbolt.ops.base import FusedOp


def join(op: FusedOp, graph: gs.Graph, among: Iterable[gs.Node]) -> list[gs.Node]:
    """Join the masks of attentions that have several; returns the softmaxes, `among` the given
    ones, of these attentions."""
    sums, joined = dict[tuple[object, ...], gs.Tensor](), list[gs.Node]()
    for softmax in among:
        operands = decomposed.several_masks(softmax)
        if operands and _can_join(graph, operands):
            _join(graph, operands, sums)
            joined.append(softmax)
    return joined


def _can_join(graph: gs.Graph, operands: Sequence[Operand]) -> bool:
    """True if nothing but a Reshape that divides batch and heads stands between the masks, nobody
    else reads the scores there, and the numbers that are added are of the scores' type."""
    pairs = list(itertools.pairwise(operands))
    last = operands[-1].scores
    if last.shape is None or len(last.shape) != 4:
        return False
    between = [tensor for a, b in pairs for tensor in (a.node.outputs[0], b.scores)]
    if any(sole_use(graph, tensor) is None for tensor in between):
        return False
    return all(
        before.node.outputs[0] is after.scores or _division(before, after) is not None
        for before, after in pairs
    ) and all(
        masks.broadcasts(each.tensor, each.scores)
        and (each.tensor.dtype == last.dtype if each.puts is None else _absorbs(each))
        for each in operands
    )


def _division(before: Operand, after: Operand) -> gs.Node | None:
    """The Reshape from [batch x heads, queries, keys] to [batch, heads, queries, keys] between two
    masks, if the number of heads is known."""
    node, x, y = producer(after.scores), before.node.outputs[0], after.scores
    if node is None or node.op != "Reshape" or node.domain or node.inputs[0] is not x:
        return None
    ranks = len(x.shape or ()), len(y.shape or ())
    if ranks != (3, 4) or sizes(x)[-2:] != sizes(y)[-2:]:
        return None
    return node if isinstance(y.shape[1], int) else None


def _absorbs(mask: Operand) -> bool:
    """True if the number that a Where puts is the same with any score added to it."""
    return mask.puts is not None and mask.puts <= ABSORBS and mask.scores.dtype == np.float32


def _join(
    graph: gs.Graph, operands: Sequence[Operand], sums: dict[tuple[object, ...], gs.Tensor]
) -> None:
    """Replace the masks' nodes by one Add."""
    scores, nodes = operands[0].scores, [each.node for each in operands]
    last, y = nodes[-1], nodes[-1].outputs[0]
    divisions = [_division(*pair) for pair in itertools.pairwise(operands)]
    division = next((node for node in divisions if node is not None), None)
    heads = 0 if division is None else int(division.outputs[0].shape[1])
    key = (scores.dtype, heads)
    key += tuple((each.tensor.name, each.puts, each.keeps) for each in operands)
    if key not in sums:
        total: gs.Tensor | None = None
        for each in operands:
            total = _with(graph, total, each, heads, last)
        assert total is not None  # there are operands
        sums[key] = total
    if division is not None:
        divided = add_variable(graph, f"{y.name}_scores", division.outputs[0])
        inputs = [scores, division.inputs[1]]
        insert(graph, "Reshape", inputs, [divided], [division], division.attrs, at=last)
        scores, nodes = divided, [*nodes, division]
    insert(graph, "Add", [scores, sums[key]], [], nodes, at=last).outputs = [y]
    remove(graph, nodes)


def _with(
    graph: gs.Graph, total: gs.Tensor | None, mask: Operand, heads: int, at: gs.Node
) -> gs.Tensor:
    """`total` with a further mask, whose batch and heads are divided if its scores have one axis
    for both."""
    tensor = mask.tensor
    if len(mask.scores.shape) == 3 and len(tensor.shape) == 3:
        tensor = folds.divided(graph, tensor, heads, mask.node)
    if total is None and mask.puts is None:
        return tensor
    y = mask.node.outputs[0]
    inputs = [total, tensor]
    if mask.puts is not None:
        constant = partial(add_constant, graph, f"{y.name}_number")
        low, zero = (constant(np.array(number, y.dtype)) for number in (mask.puts, 0.0))
        kept = zero if total is None else total
        inputs = [tensor, kept, low] if mask.keeps else [tensor, low, kept]
    result = gs.Variable(fresh(graph, f"{y.name}_mask"), y.dtype, _broadcast(inputs))
    insert(graph, mask.node.op, inputs, [result], [mask.node], at=at)
    return result


def _broadcast(tensors: Sequence[gs.Tensor]) -> list[int | str | None]:
    """The shape of tensors that are broadcast to each other: on each axis the size that is not 1,
    a number where one is known."""
    axes = itertools.zip_longest(*(reversed(tensor.shape) for tensor in tensors), fillvalue=1)
    found = [
        sorted((n for n in axis if n != 1), key=lambda n: not isinstance(n, int)) for axis in axes
    ]
    return [sizes[0] if sizes else 1 for sizes in reversed(found)]
