"""Activations: single ONNX ops, and those that canonicalization recognized (domain
onnxbolt.internal)."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Link
from onnxbolt.epilogues import EPILOGUES, Step
from onnxbolt.patterns.types import StepPattern

INTERNAL = "onnxbolt.internal"
_DEFAULTS: dict[str, dict[str, float]] = {  # the ONNX operators' default attributes
    "LeakyRelu": {"alpha": 0.01},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
}


def _match(node: gs.Node, tensor: gs.Tensor, anchor: Anchor) -> Link | str | None:
    defaults = _DEFAULTS.get(node.op, {})
    params = tuple(
        float(node.attrs.get(name, defaults.get(name, 0.0))) for name in EPILOGUES[node.op].params
    )
    return Link(Step(node.op, params), None, (node,), node.outputs[0])


_NAMES = (
    "Relu",
    "LeakyRelu",
    "Sigmoid",
    "Tanh",
    "HardSigmoid",
    "Softplus",
    "Elu",
    "GeluErf",
    "GeluTanh",
    "Silu",
    "HardSwish",
    "Mish",
)
STEPS = (StepPattern(_NAMES, _match), StepPattern(_NAMES, _match, INTERNAL))
