"""Flatten and Reshape of [N, C, H, W] to [N, C*H*W].

Behind a global pooling (H = W = 1) the order of elements is the same. In front of fused GEMMs alone the order does not matter:
their weights are permuted offline. Else the tensor goes back to channels first.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.layout.assign import Assignment, Carry
from onnxbolt.layout.form import Form
from onnxbolt.layout.rules import channels_last

if TYPE_CHECKING:
    from onnxbolt.rewrite import Rewriter

OPS = ("Flatten", "Reshape", "Squeeze")


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    x, y = node.inputs[0], node.outputs[0]
    if not channels_last(x, state) or len(x.shape) != 4 or y.shape is None or len(y.shape) != 2:
        return None
    if any(not isinstance(d, int) for d in x.shape[1:]) or y.shape[0] != x.shape[0] or y.shape[1] != int(np.prod(x.shape[1:])):
        return None
    form = state.form(x)
    channels, spatial = int(x.shape[1]), int(x.shape[2]) * int(x.shape[3])
    if spatial == 1:
        writes = Form(False, form.channels)
    elif state.only_gemms_read(y):
        writes = Form(False, _flattened(form, channels, spatial))
    else:
        return None
    return Carry((form, *(None for _ in node.inputs[1:])), (writes,), _emit)


def _flattened(form: Form, channels: int, spatial: int) -> tuple[int, ...]:
    """For each place of [H*W, stored channels] the index in [C, H*W]."""
    stored = form.channels if form.channels is not None else tuple(range(channels))
    return tuple(c * spatial + s if c >= 0 else -1 for s in range(spatial) for c in stored)


def _emit(rewriter: Rewriter, node: gs.Node, carry: Carry) -> None:
    y, form = node.outputs[0], carry.writes[0]
    columns = len(form.channels) if form.channels is not None else int(y.shape[1])  # not -1, which an empty batch leaves undefined
    shape = rewriter.constant(y.name + ".shape", np.array([0, columns], np.int64))
    rewriter.add("Reshape", [rewriter.get(node.inputs[0], carry.reads[0]), shape], [rewriter.produce(y, form)], {}, y, node)
    rewriter.drop(node)


