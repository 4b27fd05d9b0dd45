"""Converts operators of older opsets to the opset that the stages work on; onnx.version_converter
would lose sparse initializers and annotations.

A node goes from form to form: by its rule (rules.py) where the next form is another one, as it is
where that only takes more (history.py). Nodes whose forms did not change stay the protos that they
were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from onnx import ModelProto, NodeProto, OperatorSetIdProto, helper

from onnxbolt.errors import LiftError
from onnxbolt.graph.lift.edit import Edit, Obstacle, Scope
from onnxbolt.graph.lift.history import is_wider, next_form
from onnxbolt.graph.lift.rules import RULES
from onnxbolt.graph.scopes import subgraphs

__all__ = ["Lifted", "default_opset", "lifted"]

_DEFAULT = ("", "ai.onnx")


@dataclass(frozen=True)
class Lifted:
    """The nodes of a model's main graph at another opset."""

    nodes: Sequence[NodeProto]
    opset: int
    opset_import: Sequence[OperatorSetIdProto]
    stands_for: dict[str, str]  # the name of the source node, by that of each node that is new
    made: frozenset[str]  # names of tensors that the source does not have


def default_opset(model: ModelProto) -> int | None:
    """The imported version of the default domain."""
    return next((entry.version for entry in model.opset_import if entry.domain in _DEFAULT), None)


def lifted(model: ModelProto, least: int) -> Lifted:
    """The model's nodes at opset `least`, or at the model's own opset if that is newer.

    Raises LiftError where one of them has no equal there, and where the model imports no opset of
    the default domain.
    """
    opset = default_opset(model)
    if opset is None:
        domains = ", ".join(sorted({entry.domain for entry in model.opset_import}))
        raise LiftError(
            f"the model imports only domains other than ONNX's default one ({domains}): it"
            " holds nothing to fuse"
        )
    if opset >= least:
        return Lifted(model.graph.node, opset, model.opset_import, {}, frozenset())
    scope = Scope(model)
    nodes = list(_all_lifted(model.graph.node, opset, least, scope))
    imports = [
        helper.make_opsetid(entry.domain, least if entry.domain in _DEFAULT else entry.version)
        for entry in model.opset_import
    ]
    return Lifted(nodes, least, imports, scope.stands_for, frozenset(scope.made))


def _all_lifted(
    nodes: Iterable[NodeProto], opset: int, target: int, scope: Scope
) -> Iterator[NodeProto]:
    for node in nodes:
        try:
            yield from _lifted(
                _with_lifted_subgraphs(node, opset, target, scope), opset, target, scope
            )
        except Obstacle as reason:
            raise LiftError(
                f"{node.op_type} {node.name or next(iter(node.output), '')!r} of opset"
                f" {opset} cannot be converted to opset {target}: {reason}"
            ) from reason


def _lifted(node: NodeProto, opset: int, target: int, scope: Scope) -> Iterator[NodeProto]:
    following = next_form(node.op_type, opset, target) if node.domain in _DEFAULT else None
    if following is None:
        yield node
    elif rule := RULES.get((node.op_type, following)):
        edit = Edit(node, scope)
        rule(edit)
        for made in edit.nodes:
            yield from _lifted(made, following, target, scope)
    elif is_wider(node.op_type, following):
        yield from _lifted(node, following, target, scope)
    else:
        raise Obstacle(
            f"opset {following} changed the operator, and onnxbolt has no rule to convert it"
        )


def _with_lifted_subgraphs(node: NodeProto, opset: int, target: int, scope: Scope) -> NodeProto:
    if not any(True for attribute in node.attribute for _ in subgraphs(attribute)):
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    for attribute in copy.attribute:
        for graph in subgraphs(attribute):
            nodes = list(_all_lifted(graph.node, opset, target, scope))
            del graph.node[:]
            graph.node.extend(nodes)
    return copy
