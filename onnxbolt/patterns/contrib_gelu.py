"""GELU as ONNX Runtime's own optimizer writes it, with or without the bias before it
(com.microsoft: BiasGelu, FastGelu, Gelu)."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Link
from onnxbolt.epilogues import Step
from onnxbolt.graph.contrib import DOMAIN
from onnxbolt.patterns.binary import channel_vector
from onnxbolt.patterns.types import StepPattern

_STEPS = {"BiasGelu": "GeluErf", "FastGelu": "GeluTanh", "Gelu": "GeluErf"}


def _match(node: gs.Node, tensor: gs.Tensor, anchor: Anchor) -> tuple[Link, ...] | str | None:
    y = node.outputs[0]
    gelu = Link(Step(_STEPS[node.op]), None, (node,), y)
    if node.inputs[0] is not tensor:
        return None
    if len(node.inputs) < 2 or not node.inputs[1].name:
        return (gelu,)
    bias = node.inputs[1]
    if not isinstance(bias, gs.Constant):
        return f"a bias that is computed at run time: {bias.name}"
    vector = None if tensor.shape is None else channel_vector(bias, tensor, anchor)
    if vector is None:
        return f"a bias that is no channel vector: {bias.name}"
    return Link(Step("Bias"), gs.Constant(bias.name, vector), (node,), y), gelu


STEPS = (StepPattern(tuple(_STEPS), _match, DOMAIN),)
