"""Pad with constant `pads`, both halves of which are reordered to NHWC. Channels are padded in NHWC
only if the result's channels are whole accesses of 16 bytes."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.dtypes import DType
from onnxbolt.forms import CHANNELS_LAST, FIRST_TO_LAST
from onnxbolt.graph.edit import constant_integers
from onnxbolt.layout.assignment import Assignment, channels_last
from onnxbolt.layout.carry import Carry, Writer

OPS = ("Pad",)


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    x = node.inputs[0]
    pads = constant_integers(node, 1)
    if (
        not channels_last(x, state)
        or pads is None
        or len(node.inputs) > 3
        or len(pads) != 2 * len(x.shape)
    ):
        return None
    form, dtype, fill = state.form(x), DType.of(x.dtype), constant_integers(node, 2)
    more = pads[1] + pads[1 + len(x.shape)]
    if (pads[1] or more) and (
        form != CHANNELS_LAST or dtype is None or (int(x.shape[1]) + more) % dtype.alignment
    ):
        return None
    if form.padded and fill and not np.isfinite(fill[0]):
        return None  # infinite values in padded channels times zero weights are NaN
    reads = (form, *(None for _ in node.inputs[1:]))
    return Carry(reads, (form,), _emit)


def _emit(writer: Writer, node: gs.Node, carry: Carry) -> None:
    form = carry.writes[0]
    rank = len(node.inputs[0].shape)
    pads = node.inputs[1].values.reshape(2, rank)[:, FIRST_TO_LAST[rank]].reshape(-1)
    inputs = [
        writer.get(node.inputs[0], form),
        writer.constant(node.inputs[1].name, np.ascontiguousarray(pads)),
        *node.inputs[2:],
    ]
    writer.replace(node, inputs, form)
