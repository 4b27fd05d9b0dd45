"""Split, and Slice with constant ends, if an NHWC consumer reads a result.

Kernels that have the resulting channels as their x read them from the larger tensor
(layout/excerpts.py); for other readers a node of ours copies them. If channels do not begin and end
at whole accesses of 16 bytes, or if height or width are cut, the node stays and works on NHWC.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt import ops
from onnxbolt.dtypes import DType
from onnxbolt.families import only
from onnxbolt.forms import CHANNELS_LAST, FIRST_TO_LAST
from onnxbolt.graph.edit import pinned
from onnxbolt.layout.assignment import Assignment, channels_last
from onnxbolt.layout.carry import Carry, Kernels, Origin, Result, Writer
from onnxbolt.layout.excerpts import cut_axes, excerpts
from onnxbolt.ops.base import Operation, Signature

OPS = ("Slice", "Split")


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    x, axes = node.inputs[0], cut_axes(node)
    if (
        axes is None
        or not channels_last(x, state)
        or not any(state.leads_to_last(tensor) for tensor in node.outputs)
    ):
        return None
    parameters = (None,) * (len(node.inputs) - 1)
    if 1 in axes and excerpts(node):
        return Carry(
            (CHANNELS_LAST, *parameters),
            (CHANNELS_LAST,) * len(node.outputs),
            _emit_channels,
            ours=True,
        )
    # each result for a reader of NCHW would need a layout conversion of its own
    if 1 in axes and not all(state.leads_to_last(tensor) for tensor in node.outputs):
        return None
    form = CHANNELS_LAST if 1 in axes else state.form(x)
    return Carry((form, *parameters), (form,) * len(node.outputs), _emit)


def _emit(writer: Writer, node: gs.Node, carry: Carry) -> None:
    x, order = (
        writer.get(node.inputs[0], carry.reads[0]),
        FIRST_TO_LAST[len(node.inputs[0].shape)],
    )
    axes = [order.index(axis) for axis in cut_axes(node) or ()]
    if node.op == "Split":
        writer.replace(node, [x, *node.inputs[1:]], carry.writes[0], {"axis": axes[0]})
    else:
        # starts, ends and axes of a Slice have the same type
        given = writer.constant(
            node.outputs[0].name + ".axes", np.array(axes, node.inputs[1].dtype)
        )
        writer.replace(node, [x, *node.inputs[1:3], given, *node.inputs[4:]], carry.writes[0])


def _emit_channels(writer: Writer, node: gs.Node, carry: Carry) -> None:
    dtype, configs = (
        DType.of(node.inputs[0].dtype),
        [only(ops.ALONE.name, arch) for arch in writer.archs],
    )
    assert dtype is not None  # `excerpts` has looked
    for tensor, excerpt in zip(list(node.outputs), excerpts(node), strict=True):
        if writer.is_read_in_place(tensor):
            continue
        if tensor.outputs or pinned(writer.graph, tensor):
            read = excerpt.within(writer.get(excerpt.tensor, excerpt.form))
            writer.own(
                Operation(Signature(ops.ALONE, dtype), [read]),
                Result(tensor, carry.writes[0]),
                Origin(f"{node.op} in NHWC", node, (node,)),
                Kernels(configs),
            )
    writer.drop(node)
