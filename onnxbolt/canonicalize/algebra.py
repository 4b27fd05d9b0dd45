"""Reads a decomposed activation as a formula of products and sums, in whatever order and
association they are written.

A tensor is replaced by the factors or summands that it is computed from only if it has a single
reader. The argument x of an activation is read more than once, or by a node that is not a product,
so this stops at x without further rules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import is_float, producer, scalar, sole_use

# relative: a formula's constants are recognized after rounding to the model's type, and constants
# in other formulas differ by more
_TOLERANCES = {np.dtype(ml_dtypes.bfloat16): 8e-3}
_TOLERANCE = 1e-3
_LONGEST = 16  # nodes of one product; a formula has fewer


def close(value: float, expected: float, like: gs.Tensor) -> bool:
    """True if the constant equals the expected one after rounding to the type of `like`."""
    return math.isclose(value, expected, rel_tol=_TOLERANCES.get(like.dtype, _TOLERANCE))


@dataclass
class Product:
    """coefficient * factors[0] * factors[1] * .., and the nodes that compute it."""

    coefficient: float = 1.0
    factors: list[gs.Tensor] = field(default_factory=list)
    nodes: list[gs.Node] = field(default_factory=list)

    def scale(self, factor: float, power: float) -> None:
        self.coefficient *= factor**power if factor or power > 0 else math.nan

    def others(self, x: gs.Tensor, power: int = 1) -> list[gs.Tensor] | None:
        """The factors other than x, if x occurs exactly `power` times."""
        rest = [tensor for tensor in self.factors if tensor is not x]
        return rest if len(self.factors) - len(rest) == power else None


def product(graph: gs.Graph, node: gs.Node) -> Product:
    """The product that `node` computes; the output is the only factor if `node` is not a Mul, Div
    or Pow."""
    result = Product()
    if not _is_product(node):
        result.factors.append(node.outputs[0])
    else:
        _expand(graph, node, result)
    return result


def product_of(graph: gs.Graph, tensor: gs.Tensor) -> Product:
    """The product that computes `tensor`; the tensor itself is the only factor if it has several
    readers."""
    node = producer(tensor)
    if node is None or sole_use(graph, tensor) is None:
        return Product(factors=[tensor])
    return product(graph, node)


def _is_product(node: gs.Node) -> bool:
    if node.domain:
        return False
    if node.op == "Div":
        return scalar(node.inputs[1]) is not None
    if node.op == "Pow":
        return scalar(node.inputs[1]) in (2.0, 3.0)
    return bool(node.op == "Mul")


def _expand(graph: gs.Graph, node: gs.Node, result: Product) -> None:
    result.nodes.append(node)
    if node.op == "Pow":
        result.factors += [node.inputs[0]] * int(scalar(node.inputs[1]) or 0)
        return
    for index, tensor in enumerate(node.inputs):
        value = scalar(tensor) if is_float(tensor) else None
        if value is not None:
            result.scale(value, -1 if node.op == "Div" else 1)
            continue
        maker = producer(tensor) if index == 0 or node.op == "Mul" else None
        short = len(result.nodes) < _LONGEST
        if short and maker is not None and _is_product(maker) and sole_use(graph, tensor) is node:
            _expand(graph, maker, result)
        else:
            result.factors.append(tensor)


def plus(graph: gs.Graph, tensor: gs.Tensor, constant: float) -> tuple[gs.Tensor, gs.Node] | None:
    """(z, the node) if `tensor` is z + constant and has one reader."""
    node = producer(tensor)
    if (
        node is None
        or node.op not in ("Add", "Sub")
        or node.domain
        or sole_use(graph, tensor) is None
    ):
        return None
    a, b = node.inputs
    for kept, other in ((a, b), (b, a)) if node.op == "Add" else ((a, b),):
        value = scalar(other)
        if value is not None and close(value if node.op == "Add" else -value, constant, tensor):
            return kept, node
    return None


def applied(graph: gs.Graph, tensor: gs.Tensor, op: str) -> gs.Node | None:
    """The node of type `op` that computes `tensor`, if the tensor has one reader."""
    node = producer(tensor)
    return (
        node if node is not None and node.op == op and sole_use(graph, tensor) is not None else None
    )
