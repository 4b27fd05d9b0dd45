"""Concat: along channels the inputs' maps of channels are joined; along another axis all inputs
have the same form."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.forms import CHANNELS_LAST, FIRST_TO_LAST, Form, concatenated
from onnxbolt.layout.assignment import Assignment, channels_last
from onnxbolt.layout.carry import Carry, Writer
from onnxbolt.layout.rules.elementwise import stored_constant

OPS = ("Concat",)


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    out = node.outputs[0]
    data = [t for t in node.inputs if not isinstance(t, gs.Constant)]
    here = [t for t in data if channels_last(t, state)]
    if not here or (2 * len(here) < len(data) and not state.reads_last(out)):
        return None
    rank = len(here[0].shape)
    if any(
        t.shape is None or len(t.shape) != rank or not isinstance(t.shape[1], int)
        for t in node.inputs
    ):
        return None
    axis = node.attrs["axis"] % rank
    if axis == 1:
        forms = [Form(True, state.form(t).channels if t in here else None) for t in node.inputs]
        writes = Form(
            True,
            concatenated(
                [(f.channels, int(t.shape[1])) for f, t in zip(forms, node.inputs, strict=True)]
            ),
        )
    else:
        writes = state.form(here[0])
        forms = [writes] * len(node.inputs)
    reads = tuple(
        None if isinstance(t, gs.Constant) else f for t, f in zip(node.inputs, forms, strict=True)
    )
    return Carry(reads, (writes,), _emit)


def _emit(writer: Writer, node: gs.Node, carry: Carry) -> None:
    rank = len(node.outputs[0].shape)
    axis = node.attrs["axis"] % rank
    form = CHANNELS_LAST if axis == 1 else carry.writes[0]
    inputs = [
        stored_constant(writer, t, rank, form, 0.0) if read is None else writer.get(t, read)
        for t, read in zip(node.inputs, carry.reads, strict=True)
    ]
    writer.replace(node, inputs, carry.writes[0], {"axis": FIRST_TO_LAST[rank].index(axis)})
