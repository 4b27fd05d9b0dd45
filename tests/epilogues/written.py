"""Formulas written out as ONNX nodes."""

from __future__ import annotations

from typing import Any

from onnxbolt.epilogues.formula import Applied, Argument, Formula, Product, Sum
from tests.support import Net


def write(net: Net, formula: Formula, x: str) -> str:
    """The name of the tensor that is `formula` of `x`; one node for each operation."""
    if isinstance(formula, Argument):
        return x
    if isinstance(formula, Applied):
        inputs = [write(net, formula.argument, x), *map(net.const, formula.constants)]
        attributes: dict[str, Any] = dict(formula.attributes)
        attributes |= {"domain": formula.domain} if formula.domain else {}
        return net.node(formula.op, *inputs, **attributes)
    if isinstance(formula, Sum):
        right = formula.right
        other = write(net, right, x) if isinstance(right, Formula) else net.const(right)
        return net.node("Add", write(net, formula.left, x), other)
    assert isinstance(formula, Product)
    result, *others = [write(net, factor, x) for factor in formula.factors]
    for other in others:
        result = net.node("Mul", result, other)
    if formula.coefficient != 1:
        result = net.node("Mul", result, net.const(formula.coefficient))
    return result
