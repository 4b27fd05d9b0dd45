"""Resize by nearest neighbour with constant scales or sizes.

Linear and cubic interpolation stay channels first: ONNX Runtime's CUDA kernels for them want the spatial axes last.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.layout.assign import Assignment, Carry
from onnxbolt.layout.form import FIRST_TO_LAST
from onnxbolt.layout.rules import channels_last, constant_values

if TYPE_CHECKING:
    from onnxbolt.rewrite import Rewriter

OPS = ("Resize",)


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    x = node.inputs[0]
    if not channels_last(x, state) or len(x.shape) != 4 or node.attrs.get("mode", "nearest") != "nearest":
        return None
    if "axes" in node.attrs or node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        return None
    factors = _factors(node)
    if factors is None:
        return None
    unchanged = x.shape[1] if factors == 3 else 1
    values = constant_values(node, factors)
    if values is None or values[1] != unchanged:
        return None
    form = state.form(x)
    return Carry((form, *(None for _ in node.inputs[1:])), (form,), _emit)


def _factors(node: gs.Node) -> int | None:
    """Which input holds the scales (2) or the sizes (3), as four constants."""
    return next((i for i in (2, 3) if len(constant_values(node, i) or ()) == 4), None)


def _emit(rewriter: Rewriter, node: gs.Node, carry: Carry) -> None:
    form = carry.writes[0]
    index = _factors(node)
    assert index is not None  # the rule has looked
    values = node.inputs[index].values.reshape(-1)[list(FIRST_TO_LAST[4])]
    if index == 3 and form.channels is not None:
        values[-1] = len(form.channels)
    inputs = list(node.inputs)  # those that say nothing stay: at opset 11 and 12 they may be empty tensors, but not omitted
    inputs[0] = rewriter.get(node.inputs[0], form)
    inputs[index] = rewriter.constant(node.inputs[index].name, np.ascontiguousarray(values))
    rewriter.replace(node, inputs, form)
