"""Reductions with constant axes and keepdims: the axes are mapped to those of NHWC. Padded or
reordered channels are not reduced. The mean over height and width is a pooling (own.py).

GlobalMaxPool of an image of unknown sizes, which ONNX Runtime has for NCHW alone, is a ReduceMax.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.forms import CHANNELS_LAST, FIRST_TO_LAST
from onnxbolt.graph.edit import reduced_axes
from onnxbolt.layout.assignment import Assignment, channels_last
from onnxbolt.layout.carry import Carry, Writer

_GLOBAL, _AXES_ARE_AN_INPUT = "GlobalMaxPool", 18  # from that opset on
OPS = (
    "ReduceL1",
    "ReduceL2",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    _GLOBAL,
)


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
    rank = len(node.inputs[0].shape)
    axes = range(2, rank) if node.op == _GLOBAL else reduced_axes(node)
    return sorted(a % rank for a in axes) if axes else None


def _emit(writer: Writer, node: gs.Node, carry: Carry) -> None:
    axes = sorted(
        FIRST_TO_LAST[len(node.inputs[0].shape)].index(a) for a in _reduced_axes(node) or ()
    )
    inputs = [writer.get(node.inputs[0], carry.reads[0])]
    changes: dict[str, object] = {"axes": axes}
    given = len(node.inputs) > 1
    if node.op == _GLOBAL:
        node.op, given = "ReduceMax", writer.graph.opset >= _AXES_ARE_AN_INPUT
    if given:
        inputs.append(writer.constant(f"{node.outputs[0].name}.axes", np.array(axes, np.int64)))
        changes = {}
    writer.replace(node, inputs, carry.writes[0], changes)
