"""Clip with constant bounds, ReLU6 among them (ONNX Clip, opset 11 and later)."""

from __future__ import annotations

import math

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Link
from onnxbolt.epilogues import Step
from onnxbolt.graph.edit import scalar
from onnxbolt.patterns.types import StepPattern


def _match(node: gs.Node, tensor: gs.Tensor, anchor: Anchor) -> Link | str | None:
    if node.inputs[0] is not tensor:
        return None
    bounds = [-math.inf, math.inf]
    for i, bound in enumerate(node.inputs[1:3]):
        if not bound.name:
            continue
        if not isinstance(bound, gs.Constant):
            return f"a bound is computed at run time: {bound.name}"
        value = scalar(bound)  # of shape [1], too: ONNX Runtime takes it
        if value is None:
            return f"a bound is no single number: {bound.name} {list(bound.shape)}"
        bounds[i] = value
    return Link(Step("Clip", (bounds[0], bounds[1])), None, (node,), node.outputs[0])


STEPS = (StepPattern(("Clip",), _match),)
