"""Layout rules: the forms that ordinary nodes read and write, a file for each group of operators.

A module has `OPS`, its operators, and `rule(node, state) -> Carry | None`; None means that the node
reads and writes tensors as ONNX has them. `_MODULES` lists the modules. Operators of other domains
have no rule, except recognized activations. Epilogue steps, also those of extensions, have the rule
for elementwise operators. A fused op that replaces an ordinary node is tried before the rule for
the node's operator (own.py).
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.domains import INTERNAL
from onnxbolt.layout.assignment import Assignment, Rule
from onnxbolt.layout.carry import Carry
from onnxbolt.layout.rules import (
    batchnorm,
    channels,
    concat,
    elementwise,
    flatten,
    own,
    pad,
    reduce,
    reshape,
    resize,
    shape,
    split,
    transpose,
)

_MODULES = (
    batchnorm,
    channels,
    concat,
    elementwise,
    flatten,
    pad,
    reduce,
    reshape,
    resize,
    shape,
    split,
    transpose,
)
_RULES: dict[str, Rule] = {op: module.rule for module in _MODULES for op in module.OPS}


def rule_for(node: gs.Node) -> Rule | None:
    """The rule for this node's operator; None if there is none."""
    if node.domain not in (None, "", "ai.onnx", INTERNAL):
        return None
    if elementwise.takes(node.op):
        return elementwise.rule
    ordinary = _RULES.get(node.op)
    return _own_first(ordinary) if own.takes(node.op) else ordinary


def _own_first(ordinary: Rule | None) -> Rule:
    """The rule for fused ops, followed by the ordinary one if that returns None."""

    def rule(node: gs.Node, state: Assignment) -> Carry | None:
        carry = own.rule(node, state)
        return carry if carry is not None or ordinary is None else ordinary(node, state)

    return rule
