"""Scores that are scaled behind a mask become a sum of both, scaled:

    s (scores + m)  =  s scores + s m

The Conformers of NeMo, ESPnet and WeNet add the product of queries and relative positions to the
scores and divide the sum (Gulati et al. 2020), as Transformer-XL does. A mask that several layers
have is scaled once. Masks that only exclude keys are scaled when they are read (masks.py).
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import (
    add_constant,
    add_variable,
    constant_values,
    insert,
    remove,
    sole_use,
)
from onnxbolt.ops.attention import decomposed
from onnxbolt.ops.attention.masks import Operand
from onnxbolt.ops.attention.scales import factor, scaled
from onnxbolt.ops.base import FusedOp


def move(op: FusedOp, graph: gs.Graph, among: Iterable[gs.Node]) -> list[gs.Node]:
    """Scale masks and scores instead of their sum; returns the softmaxes, `among` the given ones,
    of the attentions that it changed."""
    made, moved = dict[tuple[str, float], gs.Tensor](), list[gs.Node]()
    for softmax in among:
        changes = 0
        for mask in reversed(decomposed.scaled_masks(softmax)):
            while (scale := _scale_behind(graph, mask.node)) is not None:
                mask = _move(graph, mask, scale, made)
                changes += 1
        moved += [softmax] if changes else []
    return moved


def _scale_behind(graph: gs.Graph, node: gs.Node) -> gs.Node | None:
    """The node that scales a sum and alone reads it."""
    reader = sole_use(graph, node.outputs[0])
    return reader if reader is not None and scaled(reader) is not None else None


def _move(
    graph: gs.Graph, mask: Operand, scale: gs.Node, made: dict[tuple[str, float], gs.Tensor]
) -> Operand:
    """Put a sum of scaled tensors in the place of a mask and the scale behind it."""
    y = scale.outputs[0]
    scores = _scaled(graph, mask.scores, scale, mask.node)
    key = mask.tensor.name, factor(scale)
    if key not in made:
        values = constant_values(mask.tensor)
        if values is None:
            made[key] = _scaled(graph, mask.tensor, scale, mask.node)
        else:
            product = (values * factor(scale)).astype(values.dtype)
            made[key] = add_constant(graph, f"{mask.tensor.name}_scaled", product)
    total = insert(graph, "Add", [scores, made[key]], [], [mask.node, scale], at=scale)
    remove(graph, [mask.node, scale])
    total.outputs = [y]
    return Operand(total, scores, made[key])


def _scaled(graph: gs.Graph, tensor: gs.Tensor, scale: gs.Node, at: gs.Node) -> gs.Variable:
    """A tensor scaled as `scale` does it."""
    result = add_variable(graph, f"{tensor.name}_scaled", tensor)
    inputs = [tensor if scaled(scale) is each else each for each in scale.inputs]
    insert(graph, scale.op, inputs, [result], [scale], scale.attrs, at=at)
    return result
