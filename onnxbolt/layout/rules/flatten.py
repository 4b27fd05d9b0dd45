"""Flatten and Reshape of [N, C, H, W] to [N, C*H*W], and Squeeze of height or width; likewise of
lines and volumes.

Flattening keeps NHWC in two cases: behind a global pooling (H = W = 1), where the order of elements
is the same; and in front of fused GEMMs alone, whose weights are permuted to the order of NHWC.
Otherwise x is converted to NCHW. A Squeeze of height or width keeps the channels last; text
recognizers have it for images of one row of pixels.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.forms import FIRST_TO_LAST, Form
from onnxbolt.graph.edit import constant_integers
from onnxbolt.layout.assignment import Assignment, channels_last
from onnxbolt.layout.carry import Carry, Writer

OPS = ("Flatten", "Squeeze")  # and, by reshape.py, Reshape


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    x, y = node.inputs[0], node.outputs[0]
    if not channels_last(x, state) or y.shape is None:
        return None
    if node.op == "Squeeze" and _removes_side(node) and follow(y, state):
        return Carry(
            (state.form(x), *(None for _ in node.inputs[1:])), (state.form(x),), _emit_squeeze
        )
    if len(y.shape) != 2:
        return None
    if (
        any(not isinstance(d, int) for d in x.shape[1:])
        or y.shape[0] != x.shape[0]
        or y.shape[1] != int(np.prod(x.shape[1:]))
    ):
        return None
    form = state.form(x)
    channels, spatial = int(x.shape[1]), math.prod(int(size) for size in x.shape[2:])
    if spatial == 1:
        writes = Form(False, form.channels)
    elif state.only_gemms_read(y):
        writes = Form(False, _flattened(form, channels, spatial))
    else:
        return None
    return Carry((form, *(None for _ in node.inputs[1:])), (writes,), _emit)


def _flattened(form: Form, channels: int, spatial: int) -> tuple[int, ...]:
    """The index in [C, spatial] for each position of [spatial, stored channels]."""
    stored = form.channels if form.channels is not None else tuple(range(channels))
    return tuple(c * spatial + s if c >= 0 else -1 for s in range(spatial) for c in stored)


def _emit(writer: Writer, node: gs.Node, carry: Carry) -> None:
    y, form = node.outputs[0], carry.writes[0]
    # instead of -1, which is undefined for an empty batch
    columns = len(form.channels) if form.channels is not None else int(y.shape[1])
    shape = writer.constant(y.name + ".shape", np.array([0, columns], np.int64))
    writer.add(
        "Reshape",
        [writer.get(node.inputs[0], carry.reads[0]), shape],
        [writer.produce(y, form)],
        {},
        y,
        node,
    )
    writer.drop(node)


def follow(y: gs.Tensor, state: Assignment) -> bool:
    """True if the result `y` reaches an NHWC consumer, or Transposes alone read it."""
    return state.leads_to_last(y) or (
        bool(y.outputs) and all(node.op == "Transpose" for node in y.outputs)
    )


def _removes_side(node: gs.Node) -> bool:
    """True for a Squeeze of the height or width of an image."""
    return len(node.inputs[0].shape) == 4 and _squeezed(node) in (2, 3)


def _squeezed(node: gs.Node) -> int | None:
    """The axis that a Squeeze removes of four; None if it is unknown, or there are several."""
    axes = node.attrs.get("axes") or constant_integers(node, 1)
    return int(axes[0]) % 4 if axes and len(axes) == 1 else None


def _emit_squeeze(writer: Writer, node: gs.Node, carry: Carry) -> None:
    axis = _squeezed(node)
    assert axis is not None  # the rule has looked
    axes = [FIRST_TO_LAST[4].index(axis)]
    x, form = writer.get(node.inputs[0], carry.reads[0]), carry.writes[0]
    if len(node.inputs) > 1:
        writer.replace(
            node, [x, writer.constant(node.inputs[1].name, np.array(axes, np.int64))], form
        )
    else:
        writer.replace(node, [x], form, {"axes": axes})
