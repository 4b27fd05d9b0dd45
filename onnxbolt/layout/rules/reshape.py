"""Reshape of tensors with their channels last: to [N, C*H*W] (flatten.py), between images and
sequences, and in a channel shuffle.

A Reshape from [N, C, H, W] to [N, C, L] or back becomes one from [N, H, W, C] to [N, L, C] or back;
the Transpose beside it, which vision transformers have, vanishes (transpose.py). A channel shuffle
keeps its Transpose, of the last two axes of [N, H, W, g, C/g].
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.forms import CHANNELS_LAST, GROUPS_LAST
from onnxbolt.layout.assignment import Assignment, channels_last
from onnxbolt.layout.carry import Carry, Writer
from onnxbolt.layout.pixels import joins_or_splits_pixels, shuffled
from onnxbolt.layout.rules import flatten

OPS = ("Reshape",)


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    if state.form(node.inputs[0]) == GROUPS_LAST:
        return Carry((GROUPS_LAST, None), (CHANNELS_LAST,), _emit_joined)
    return flatten.rule(node, state) or _pixels(node, state) or _shuffle(node, state)


def _pixels(node: gs.Node, state: Assignment) -> Carry | None:
    x, y = node.inputs[0], node.outputs[0]
    if (
        not channels_last(x, state)
        or not joins_or_splits_pixels(node)
        or not flatten.follow(y, state)
    ):
        return None
    form = state.form(x)
    # a Reshape infers one symbolic size, not two
    if sum(not isinstance(size, int) for size in y.shape[2:]) > 1:
        return None
    # without an NHWC consumer, the layout conversion of x also removes the padding
    if form.channels is not None and not state.leads_to_last(y):
        return None
    return Carry((form, None), (form,), _emit_pixels)


def _emit_pixels(writer: Writer, node: gs.Node, carry: Carry) -> None:
    y, form = node.outputs[0], carry.writes[0]
    sizes = [size if isinstance(size, int) else -1 for size in y.shape[2:]]
    _emit(
        writer,
        node,
        carry,
        [0, *sizes, len(form.channels) if form.channels is not None else y.shape[1]],
    )


def _shuffle(node: gs.Node, state: Assignment) -> Carry | None:
    result = shuffled(node) if state.form(node.inputs[0]) == CHANNELS_LAST else None
    return (
        Carry((CHANNELS_LAST, None), (GROUPS_LAST,), _emit_groups)
        if result is not None and state.leads_to_last(result)
        else None
    )


def _emit_groups(writer: Writer, node: gs.Node, carry: Carry) -> None:
    _emit(writer, node, carry, [0, 0, 0, *node.outputs[0].shape[1:3]])


def _emit_joined(writer: Writer, node: gs.Node, carry: Carry) -> None:
    _emit(writer, node, carry, [0, 0, 0, node.outputs[0].shape[1]])


def _emit(writer: Writer, node: gs.Node, carry: Carry, shape: list[int]) -> None:
    """Write a Reshape to `shape`, as stored; 0 keeps a dimension."""
    y = node.outputs[0]
    given = writer.constant(y.name + ".shape", np.array(shape, np.int64))
    writer.add(
        "Reshape",
        [writer.get(node.inputs[0], carry.reads[0]), given],
        [writer.produce(y, carry.writes[0])],
        {},
        y,
        node,
    )
    writer.drop(node)
