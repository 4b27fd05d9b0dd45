"""Pad, both halves of whose `pads` are reordered to NHWC. Channels are padded in NHWC only if the
result's channels are whole accesses of 16 bytes, and by constants.

Pads that are computed bring an image to the size of another one, which is the U-Net's way.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.dtypes import DType
from onnxbolt.forms import CHANNELS_LAST, FIRST_TO_LAST
from onnxbolt.graph.computed_sizes import size_at
from onnxbolt.graph.edit import constant_integers
from onnxbolt.layout.assignment import Assignment, channels_last
from onnxbolt.layout.carry import Carry, Writer

OPS = ("Pad",)


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    x = node.inputs[0]
    if not channels_last(x, state) or len(node.inputs) not in (2, 3):
        return None
    pads = constant_integers(node, 1) or _of_image(node)
    if pads is None or len(pads) != 2 * len(x.shape):
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


def _of_image(node: gs.Node) -> list[int] | None:
    """Zeros in the place of computed pads that are none of channels; None for others."""
    rank = len(node.inputs[0].shape)
    channels = [size_at(node.inputs[1], place) for place in (1, 1 + rank)]
    return [0] * 2 * rank if channels == [0, 0] else None


def _emit(writer: Writer, node: gs.Node, carry: Carry) -> None:
    form, y, given = carry.writes[0], node.outputs[0], node.inputs[1]
    rank = len(node.inputs[0].shape)
    order = np.arange(2 * rank).reshape(2, rank)[:, FIRST_TO_LAST[rank]].reshape(-1)
    if isinstance(given, gs.Constant):
        pads: gs.Tensor = writer.constant(given.name, given.values.reshape(-1)[order])
    else:
        pads = writer.scratch(y, np.int64)
        places = writer.constant(f"{given.name}.order", order)
        writer.add("Gather", [given, places], [pads], {}, y, node)
    writer.replace(node, [writer.get(node.inputs[0], form), pads, *node.inputs[2:]], form)
