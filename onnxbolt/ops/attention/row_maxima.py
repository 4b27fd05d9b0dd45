"""Scores of which a row's maximum is subtracted before the softmax, which subtracts it anyway:

    softmax(a (x - max(x)))  =  softmax(a x),   a > 0

CogView (Ding et al. 2021) and LayoutLMv3 do so in fp16, with x = scores / a. A row of -inf is NaN
on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import (
    add_variable,
    constant_integers,
    insert,
    producer,
    prune,
    reduced_axes,
    remove,
    sole_use,
)
from onnxbolt.ops.attention.scales import factor, scaled
from onnxbolt.ops.base import FusedOp


@dataclass(frozen=True, eq=False)
class _Shifted:
    """A Sub of x and its rows' maxima, with the nodes that scale the difference."""

    x: gs.Tensor
    sub: gs.Node
    scales: tuple[gs.Node, ...]


def drop(op: FusedOp, graph: gs.Graph, among: Iterable[gs.Node]) -> list[gs.Node]:
    """Subtract no maxima in front of the softmaxes `among`; returns those that had them."""
    dropped = list[gs.Node]()
    for softmax in among:
        found = _found(graph, softmax)
        if found is not None:
            _drop(graph, softmax, found)
            dropped.append(softmax)
    if dropped:
        prune(graph)  # the maxima
    return dropped


def _found(graph: gs.Graph, softmax: gs.Node) -> _Shifted | None:
    tensor, scales = softmax.inputs[0], list[gs.Node]()
    last = len(tensor.shape or ()) - 1
    if softmax.attrs.get("axis", -1) not in (-1, last):
        return None
    while (node := producer(tensor)) is not None and sole_use(graph, tensor) is not None:
        if node.op == "Sub" and not node.domain:
            x, subtracted = node.inputs
            return _Shifted(x, node, tuple(scales)) if _are_maxima(subtracted, x) else None
        if (source := scaled(node)) is None or not factor(node) > 0:
            return None
        scales.insert(0, node)
        tensor = source
    return None


def _are_maxima(tensor: gs.Tensor, x: gs.Tensor) -> bool:
    """True if `tensor` is the maxima of the rows of `x`, with an axis of one element for them."""
    lasts = [-1], [len(x.shape or ()) - 1]
    node, keeps = producer(tensor), True
    if node is not None and node.op == "Unsqueeze" and not node.domain:
        if constant_integers(node, 1) not in lasts:
            return False
        node, keeps = producer(node.inputs[0]), False
    if node is None or node.op != "ReduceMax" or node.domain or node.inputs[0] is not x:
        return False
    return reduced_axes(node) in lasts and bool(node.attrs.get("keepdims", 1)) == keeps


def _drop(graph: gs.Graph, softmax: gs.Node, found: _Shifted) -> None:
    """Scale x instead of the difference; tensors between have other values and names."""
    tensor = found.x
    for node in found.scales:
        inputs = [tensor if scaled(node) is each else each for each in node.inputs]
        tensor = add_variable(graph, f"{node.outputs[0].name}_raised", node.outputs[0])
        insert(graph, node.op, inputs, [tensor], [node, found.sub], node.attrs, at=softmax)
    softmax.inputs[0], softmax.origin = tensor, None
    remove(graph, [*found.scales, found.sub])
