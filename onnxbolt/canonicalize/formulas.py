"""Compares a part of a graph with a formula (onnxbolt/epilogues/formula.py).

An inner tensor belongs to a formula only if it has one reader (algebra.py).
"""

from __future__ import annotations

import itertools
from functools import cache

import onnx
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize.algebra import Product as Found
from onnxbolt.canonicalize.algebra import applied, close, plus, product, product_of
from onnxbolt.domains import CONTRIB
from onnxbolt.epilogues.formula import Applied, Argument, Formula, Product, Sum
from onnxbolt.graph.edit import scalar

# defaults of ONNX Runtime's own operators (its docs/ContribOperators.md)
_CONTRIB = {("QuickGelu", "alpha"): 1.702}
Match = tuple[gs.Tensor, list[gs.Node]]  # x, and the nodes that compute the formula of it


def roots(formula: Formula) -> tuple[tuple[str, str], ...]:
    """The operators that a formula may end in, by domain and name."""
    if isinstance(formula, Applied):
        return ((formula.domain, formula.op),)
    return (("", "Mul"), ("", "Div"))


class Matcher:
    """Compares formulas with what `node` computes."""

    def __init__(self, graph: gs.Graph, node: gs.Node) -> None:
        self._graph, self._node = graph, node
        self._like = node.outputs[0]  # its type is that of the constants
        self._product = product(graph, node) if node.op in ("Mul", "Div") else None

    def match(self, formula: Formula) -> Match | None:
        """x and the nodes that compute `formula` of x, `node` among them; None if `node` computes
        something else."""
        if isinstance(formula, Applied):
            return self._applied(formula, self._node, None)
        if isinstance(formula, Product) and self._product is not None:
            return self._factors(formula, self._product, None)
        return None

    def _tensor(self, formula: Formula, tensor: gs.Tensor, x: gs.Tensor | None) -> Match | None:
        """Match `formula` with `tensor`; `x` is the variable if an earlier match has fixed it."""
        if isinstance(formula, Argument):
            return (tensor, []) if x is None or x is tensor else None
        if isinstance(formula, Product):
            return self._factors(formula, product_of(self._graph, tensor), x)
        if isinstance(formula, Sum):
            return self._sum(formula, tensor, x)
        assert isinstance(formula, Applied)
        node = applied(self._graph, tensor, formula.op)
        return None if node is None else self._applied(formula, node, x)

    def _factors(self, formula: Product, found: Found, x: gs.Tensor | None) -> Match | None:
        """Match a product, whose factors may be in any order."""
        if len(found.factors) != len(formula.factors) or not close(
            found.coefficient, formula.coefficient, self._like
        ):
            return None
        for order in itertools.permutations(found.factors):
            match = self._all(formula.factors, order, x, found.nodes)
            if match is not None:
                return match
        return None

    def _sum(self, formula: Sum, tensor: gs.Tensor, x: gs.Tensor | None) -> Match | None:
        if not isinstance(formula.right, Formula):
            one = plus(self._graph, tensor, formula.right)
            return None if one is None else self._all((formula.left,), (one[0],), x, [one[1]])
        node = applied(self._graph, tensor, "Add")
        if node is None:
            return None
        for order in (node.inputs, node.inputs[::-1]):
            match = self._all((formula.left, formula.right), tuple(order), x, [node])
            if match is not None:
                return match
        return None

    def _applied(self, formula: Applied, node: gs.Node, x: gs.Tensor | None) -> Match | None:
        constants = node.inputs[1 : 1 + len(formula.constants)]
        if len(constants) < len(formula.constants):
            return None
        given = zip(map(scalar, constants), formula.constants, strict=True)
        named = (
            (node.attrs.get(name, _default(node.domain or "", node.op, name)), value)
            for name, value in formula.attributes
        )
        if not all(self._same(value, expected) for value, expected in (*given, *named)):
            return None
        return self._all((formula.argument,), (node.inputs[0],), x, [node])

    def _all(
        self,
        formulas: tuple[Formula, ...],
        tensors: tuple[gs.Tensor, ...],
        x: gs.Tensor | None,
        nodes: list[gs.Node],
    ) -> Match | None:
        """Match each formula with the tensor in its place, all for the same x; `nodes` are appended
        to the result."""
        covered = list(nodes)
        for formula, tensor in zip(formulas, tensors, strict=True):
            found = self._tensor(formula, tensor, x)
            if found is None:
                return None
            x = found[0]
            covered += found[1]
        return None if x is None else (x, covered)

    def _same(self, value: object, expected: float | str) -> bool:
        """True if two constants are equal. Whole numbers must be equal exactly, others up to
        rounding."""
        if isinstance(expected, str) or not isinstance(value, float | int):
            return value == expected
        whole = float(expected).is_integer()
        return value == expected if whole else close(value, expected, self._like)


@cache
def _default(domain: str, op: str, attribute: str) -> object:
    """The default of an attribute that a node leaves out."""
    if domain or not onnx.defs.has(op):
        return _CONTRIB.get((op, attribute)) if domain == CONTRIB else None
    schema = onnx.defs.get_schema(op).attributes.get(attribute)
    value = None if schema is None else onnx.helper.get_attribute_value(schema.default_value)
    return value.decode() if isinstance(value, bytes) else value
