"""Transpose of a channels-last tensor: the permutation is composed with the stored one, and vanishes where they cancel."""
from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_graphsurgeon as gs

from onnxbolt.layout.assign import Assignment, Carry
from onnxbolt.layout.form import FIRST_TO_LAST, PLAIN, Form
from onnxbolt.layout.rules import channels_last

if TYPE_CHECKING:
    from onnxbolt.rewrite import Rewriter

OPS = ("Transpose",)


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    x = node.inputs[0]
    if not channels_last(x, state) or "perm" not in node.attrs:
        return None
    form = state.form(x)
    if form.channels is not None and list(node.attrs["perm"]) != list(FIRST_TO_LAST[len(x.shape)]):
        return None
    return Carry((form,), (Form(False, form.channels) if form.channels is not None else PLAIN,), _emit)


def _emit(rewriter: Rewriter, node: gs.Node, carry: Carry) -> None:
    rank = len(node.inputs[0].shape)
    perm = [FIRST_TO_LAST[rank].index(p) for p in node.attrs["perm"]]
    if perm == list(range(rank)):
        rewriter.alias(node, rewriter.get(node.inputs[0], carry.reads[0]), carry.writes[0])
    else:
        rewriter.replace(node, [rewriter.get(node.inputs[0], carry.reads[0])], carry.writes[0], {"perm": perm})
