"""Transpose of a channels-last tensor: its permutation is composed with that of the layout, and
vanishes if they cancel.

A Transpose from NHWC to NCHW of a tensor stored as ONNX has it also vanishes, if an NHWC consumer
or a mean over the image reads its result. Models from TensorFlow begin with one; others have one
between a LayerNormalization of channels and a convolution.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.dtypes import DType
from onnxbolt.forms import (
    CHANNELS_LAST,
    FIRST_TO_LAST,
    GROUPS_LAST,
    GROUPS_TO_LAST,
    LAST_TO_FIRST,
    PLAIN,
    Form,
)
from onnxbolt.graph.edit import is_mean
from onnxbolt.layout.assignment import Assignment, channels_last
from onnxbolt.layout.carry import Carry, Writer

OPS = ("Transpose",)


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    x = node.inputs[0]
    if "perm" not in node.attrs:
        return None
    if state.form(x) == GROUPS_LAST:
        return Carry((GROUPS_LAST,), (GROUPS_LAST,), _emit_shuffle)
    if not channels_last(x, state):
        return _entry(node, state)
    form = state.form(x)
    if form.channels is not None and list(node.attrs["perm"]) != list(FIRST_TO_LAST[len(x.shape)]):
        return None
    return Carry(
        (form,), (Form(False, form.channels) if form.channels is not None else PLAIN,), _emit
    )


def _entry(node: gs.Node, state: Assignment) -> Carry | None:
    """The carry of a Transpose from NHWC to NCHW that vanishes; None if it cannot, as with channels
    that have to be padded: the layout conversion pads them."""
    x, y = node.inputs[0], node.outputs[0]
    dtype, shape = DType.of(y.dtype), y.shape
    if (
        dtype is None
        or shape is None
        or tuple(node.attrs["perm"]) != LAST_TO_FIRST.get(len(shape))
        or state.form(x) != PLAIN
    ):
        return None
    if not isinstance(shape[1], int) or shape[1] % dtype.alignment:
        return None
    if not any(map(is_mean, y.outputs)) and not state.leads_to_last(y):
        return None
    return Carry((PLAIN,), (CHANNELS_LAST,), _emit_alias)


def _emit_alias(writer: Writer, node: gs.Node, carry: Carry) -> None:
    writer.alias(node, writer.get(node.inputs[0], PLAIN), CHANNELS_LAST)


def _emit_shuffle(writer: Writer, node: gs.Node, carry: Carry) -> None:
    perm = [GROUPS_TO_LAST.index(node.attrs["perm"][axis]) for axis in GROUPS_TO_LAST]
    writer.replace(node, [writer.get(node.inputs[0], GROUPS_LAST)], GROUPS_LAST, {"perm": perm})


def _emit(writer: Writer, node: gs.Node, carry: Carry) -> None:
    rank = len(node.inputs[0].shape)
    perm = [FIRST_TO_LAST[rank].index(p) for p in node.attrs["perm"]]
    if perm == list(range(rank)):
        writer.alias(node, writer.get(node.inputs[0], carry.reads[0]), carry.writes[0])
    else:
        writer.replace(
            node, [writer.get(node.inputs[0], carry.reads[0])], carry.writes[0], {"perm": perm}
        )
