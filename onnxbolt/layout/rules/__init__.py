"""How ordinary ops work on stored forms: one rule per group of ops and file.

A module holds `OPS`, the ops it knows, and `rule(node, state) -> Carry | None`; None means that the
node reads and writes tensors as ONNX has them. Nodes of other domains have no rule, but for
recognized activations. `_MODULES` lists the modules, one line each. Epilogue steps, those of
extensions among them, have the rule for elementwise ops.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.domains import INTERNAL
from onnxbolt.layout.assignment import Rule
from onnxbolt.layout.rules import (
    batchnorm,
    concat,
    elementwise,
    flatten,
    pad,
    pool,
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
    pool,
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
    return elementwise.rule if elementwise.takes(node.op) else _RULES.get(node.op)
