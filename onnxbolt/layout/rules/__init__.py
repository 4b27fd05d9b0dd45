"""How ordinary ops work on stored forms: one rule per group of ops and file, collected by
themselves.

A module holds `OPS`, the ops it knows, and `rule(node, state) -> Carry | None`; None means that the
node reads and writes tensors as ONNX has them. Nodes of other domains have no rule, but for
recognized activations.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

import onnx_graphsurgeon as gs

from onnxbolt.layout.assign import Assignment, Carry
from onnxbolt.patterns.activation import INTERNAL

Rule = Callable[[gs.Node, Assignment], Carry | None]


def rule_for(node: gs.Node) -> Rule | None:
    """The rule for this node's op, None where there is none."""
    return _rules().get(node.op) if node.domain in (None, "", "ai.onnx", INTERNAL) else None


@cache
def _rules() -> dict[str, Rule]:
    found: dict[str, Rule] = {}
    for name in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        module = importlib.import_module(f"{__name__}.{name}")
        found.update(dict.fromkeys(module.OPS, module.rule))
    return found


def channels_last(tensor: gs.Tensor, state: Assignment) -> bool:
    """Whether `tensor` lies with its channels last, with a known rank and channel count."""
    return (
        state.form(tensor).last
        and tensor.shape is not None
        and len(tensor.shape) in (3, 4)
        and isinstance(tensor.shape[1], int)
    )


def constant_values(node: gs.Node, index: int) -> list[int] | None:
    """Input `index` as a list of numbers where it is a constant, else None."""
    if index >= len(node.inputs) or not isinstance(node.inputs[index], gs.Constant):
        return None
    values: list[int] = node.inputs[index].values.reshape(-1).tolist()
    return values
