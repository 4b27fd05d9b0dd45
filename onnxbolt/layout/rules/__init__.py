"""How ordinary ops work on stored forms: one rule per group of ops and file.

A module holds `OPS`, the ops it knows, and `rule(node, state) -> Carry | None`; None means that the
node reads and writes tensors as ONNX has them. Nodes of other domains have no rule, but for
recognized activations. `_MODULES` lists the modules, one line each. Epilogue steps, those of
extensions among them, have the rule for elementwise ops. Fused ops that take the place of ordinary
nodes go before the rule for their operator (own.py).
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.domains import INTERNAL
from onnxbolt.layout.assignment import Assignment, Rule
from onnxbolt.layout.carry import Carry
from onnxbolt.layout.rules import (
    batchnorm,
    concat,
    elementwise,
    flatten,
    own,
    pad,
    reduce,
    reshape,
    resize,
    split,
    transpose,
)

_MODULES = (
    batchnorm,
    concat,
    elementwise,
    flatten,
    pad,
    reduce,
    reshape,
    resize,
    split,
    transpose,
)
_RULES: dict[str, Rule] = {op: module.rule for module in _MODULES for op in module.OPS}


def rule_for(node: gs.Node) -> Rule | None:
    """The rule for this node's op, None where there is none."""
    if node.domain not in (None, "", "ai.onnx", INTERNAL):
        return None
    if elementwise.takes(node.op):
        return elementwise.rule
    ordinary = _RULES.get(node.op)
    return _own_first(ordinary) if own.takes(node.op) else ordinary


def _own_first(ordinary: Rule | None) -> Rule:
    """The rule for nodes of ours, and where it answers None that for ordinary ones."""

    def rule(node: gs.Node, state: Assignment) -> Carry | None:
        carry = own.rule(node, state)
        return carry if carry is not None or ordinary is None else ordinary(node, state)

    return rule
