"""Scores with a constant factor for each head, as Swin v2 has, become scores with one scale:

    f[h] (q k^T)  =  s ((f[h] / s) q) k^T,   s = the greatest |f[h]|

No factor of a query is above 1, so that no query overflows. Each query is rounded once more, which
changes a score as much as the rounding of the query itself does; a query that becomes too small for
fp16's normal numbers changes it by 2^-25 s |k| at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import (
    add_constant,
    add_variable,
    constant_values,
    insert,
    producer,
    remove,
    sole_use,
)
from onnxbolt.ops.attention import masks
from onnxbolt.ops.attention.products import Product, product
from onnxbolt.ops.attention.scales import factor, scaled
from onnxbolt.ops.base import FusedOp

_TO_SOFTMAX = frozenset({"Add", "Cast", "Div", "Mul", "Reshape", "Where"})


@dataclass(frozen=True, eq=False)
class _Factors:
    """Factors of heads, [.., heads, 1, 1], at a node behind a product and nodes that scale it."""

    values: np.ndarray
    scale: float
    product: Product
    nodes: tuple[gs.Node, ...]  # from the product to the factors


def move(op: FusedOp, graph: gs.Graph, among: Iterable[gs.Node]) -> list[gs.Node]:
    """Multiply the queries of attentions by the factors of their heads; returns the softmaxes,
    `among` the given ones, of these attentions."""
    wanted, moved = set(among), list[gs.Node]()
    for node in list(graph.nodes):
        found = _found(graph, node)
        softmax = None if found is None else _softmax_behind(graph, node.outputs[0])
        if found is not None and softmax in wanted:
            _move(graph, found)
            moved.append(softmax)
    return moved


def _found(graph: gs.Graph, node: gs.Node) -> _Factors | None:
    if node.op not in ("Mul", "Div") or node.domain:
        return None
    sides = [index for index, x in enumerate(node.inputs) if isinstance(x, gs.Constant)]
    if len(sides) != 1 or (node.op == "Div" and sides != [1]):
        return None
    constant, tensor = node.inputs[sides[0]], node.inputs[1 - sides[0]]
    nodes, scale = [node], 1.0
    while (last := producer(tensor)) is not None and sole_use(graph, tensor) is not None:
        nodes.insert(0, last)
        first = product(last)
        if first is not None:
            values = _values(constant, node.op == "Div", first)
            return None if values is None else _Factors(values, scale, first, tuple(nodes))
        if (source := scaled(last)) is None:
            return None
        tensor, scale = source, scale * factor(last)
    return None


def _values(constant: gs.Tensor, divides: bool, first: Product) -> np.ndarray | None:
    """The factors, if each serves all queries and keys of a head and queries have an axis
    for heads."""
    values, q, scores = constant_values(constant), first.node.inputs[0], first.node.outputs[0]
    if values is None or values.ndim < 3 or values.shape[-2:] != (1, 1) or values.size == 1:
        return None
    if first.is_folded or first.axes[0][:2] != first.result[:2]:
        return None
    if not all(masks.broadcasts(constant, tensor) for tensor in (q, scores)):
        return None
    with np.errstate(divide="ignore"):
        found = 1 / values.astype(np.float64) if divides else values.astype(np.float64)
    return found if np.isfinite(found).all() and found.any() else None


def _softmax_behind(graph: gs.Graph, tensor: gs.Tensor) -> gs.Node | None:
    """The softmax that nodes as attention has them lead to."""
    while (node := sole_use(graph, tensor)) is not None and not node.domain:
        if node.op == "Softmax":
            return node
        if node.op not in _TO_SOFTMAX:
            return None
        tensor = node.outputs[0]
    return None


def _move(graph: gs.Graph, found: _Factors) -> None:
    """Put a product of scaled queries, and one scale behind it, in the place of the nodes."""
    first, *_, last = found.nodes
    (q, *others), y = first.inputs, last.outputs[0]
    greatest = float(np.abs(found.values).max())
    factors = add_constant(graph, f"{y.name}_factors", (found.values / greatest).astype(q.dtype))
    scale = add_constant(
        graph, f"{y.name}_scale", np.asarray(greatest * found.scale, dtype=y.dtype)
    )
    queries = add_variable(graph, f"{y.name}_queries", q)
    scores = add_variable(graph, f"{y.name}_scores", first.outputs[0])
    insert(graph, "Mul", [q, factors], [queries], [last], at=first)
    attrs, domain = dict(first.attrs), first.domain
    insert(graph, first.op, [queries, *others], [scores], [first], attrs, domain, at=first)
    insert(graph, "Mul", [scores, scale], [], found.nodes[1:], at=last).outputs = [y]
    remove(graph, found.nodes)
