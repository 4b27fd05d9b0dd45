"""Reductions with constant axes and keepdims: the axes are mapped to those of NHWC. Padded or
reordered channels are not reduced. The mean over height and width is a pooling (own.py).
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.forms import CHANNELS_LAST, FIRST_TO_LAST
from onnxbolt.graph.edit import reduced_axes
from onnxbolt.layout.assignment import Assignment, channels_last
from onnxbolt.layout.carry import Carry, Writer

OPS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2")


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    x = node.inputs[0]
    if not channels_last(x, state) or not node.attrs.get("keepdims", 1):
        return None
    axes = _reduced_axes(node)
    if node.op == "ReduceMean" and axes == [2, 3] and len(x.shape) == 4:
        return None  # a pooling (own.py), of a type that it has no kernel for
    form = state.form(x)
    if not axes or (1 in axes and form.channels is not None):
        return None
    writes = CHANNELS_LAST if 1 in axes else form
    return Carry((form, *(None for _ in node.inputs[1:])), (writes,), _emit)


def _reduced_axes(node: gs.Node) -> list[int] | None:
    """The axes of a reduction, sorted and non-negative; None if they are unknown."""
    axes = reduced_axes(node)
    return sorted(a % len(node.inputs[0].shape) for a in axes) if axes else None


def _emit(writer: Writer, node: gs.Node, carry: Carry) -> None:
    axes = sorted(
        FIRST_TO_LAST[len(node.inputs[0].shape)].index(a) for a in _reduced_axes(node) or ()
    )
    inputs = [writer.get(node.inputs[0], carry.reads[0])]
    changes: dict[str, object] = {"axes": axes}
    if len(node.inputs) > 1:
        inputs.append(writer.constant(node.inputs[1].name, np.array(axes, np.int64)))
        changes = {}
    writer.replace(node, inputs, carry.writes[0], changes)
