"""Inference BatchNormalization in channels last: y = x * scale + shift along the last axis."""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.layout.assign import Assignment, Carry
from onnxbolt.layout.form import take
from onnxbolt.layout.rules import channels_last

if TYPE_CHECKING:
    from onnxbolt.rewrite import Rewriter

OPS = ("BatchNormalization",)


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    x = node.inputs[0]
    if not channels_last(x, state) or len(node.outputs) != 1 or node.attrs.get("training_mode", 0):
        return None
    if not all(isinstance(t, gs.Constant) for t in node.inputs[1:]):
        return None
    form = state.form(x)
    return Carry((form, None, None, None, None), (form,), _emit)


def _emit(rewriter: Rewriter, node: gs.Node, carry: Carry) -> None:
    form = carry.writes[0]
    x, y = node.inputs[0], node.outputs[0]
    gamma, beta, mean, variance = (t.values.astype(np.float64) for t in node.inputs[1:])
    scale = gamma / np.sqrt(variance + node.attrs.get("epsilon", 1e-5))
    vectors = [rewriter.constant(f"{y.name}.{name}", take(v, form.channels, 0).astype(x.dtype))
               for name, v in (("scale", scale), ("shift", beta - mean * scale))]
    scaled = rewriter.variable(y, form)
    rewriter.add("Mul", [rewriter.get(x, form), vectors[0]], [scaled], {}, y, node)
    rewriter.add("Add", [scaled, vectors[1]], [rewriter.produce(y, form)], {}, y, node)
    rewriter.drop(node)
