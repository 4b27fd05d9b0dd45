"""Operators along the channels, which lie last: Softmax, LogSoftmax, ArgMax and ArgMin. Padded or
reordered channels are no part of them.

Where a Softmax's result is needed in NCHW, its conversion replaces that of x. It works in NHWC
there, too: along any axis but the last one, ONNX Runtime transposes x before a Softmax, and the
result behind it.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.forms import CHANNELS_LAST, FIRST_TO_LAST, PLAIN
from onnxbolt.layout.assignment import Assignment, channels_last
from onnxbolt.layout.carry import Carry, Writer

_CHOICES = ("ArgMax", "ArgMin")
OPS = ("Softmax", "LogSoftmax", *_CHOICES)


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    x, y = node.inputs[0], node.outputs[0]
    if not channels_last(x, state) or state.form(x) != CHANNELS_LAST or y.shape is None:
        return None
    if node.attrs.get("axis", 0 if node.op in _CHOICES else -1) % len(x.shape) != 1:
        return None
    chosen = node.op in _CHOICES
    # without the axis of the channels, pixels lie as ONNX has them
    writes = PLAIN if chosen and not node.attrs.get("keepdims", 1) else CHANNELS_LAST
    return Carry((CHANNELS_LAST,), (writes,), _emit)


def _emit(writer: Writer, node: gs.Node, carry: Carry) -> None:
    (form,), rank = carry.writes, len(node.inputs[0].shape)
    axis = FIRST_TO_LAST[rank].index(1)
    writer.replace(node, [writer.get(node.inputs[0], CHANNELS_LAST)], form, {"axis": axis})
