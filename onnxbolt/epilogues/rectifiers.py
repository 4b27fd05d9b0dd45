"""Piecewise linear activations."""

from __future__ import annotations

import math

import numpy as np

from onnxbolt.epilogues.formula import X, apply
from onnxbolt.epilogues.patterns import Unary
from onnxbolt.epilogues.step import (
    FUNCTION,
    Accuracy,
    Emit,
    EpilogueStep,
    InOrt,
    Parameter,
    unary,
)

RELU = EpilogueStep(
    "Relu",
    body=unary("Relu"),
    reference=lambda x, _: np.maximum(x, 0),
    functor="Relu",
    cost=1,
    patterns=(Unary("Relu"),),
    accuracy=Accuracy(exact=True),
)

LEAKY_RELU = EpilogueStep(
    "LeakyRelu",
    body=unary("LeakyRelu", "alpha"),
    reference=lambda x, _, alpha: np.where(x > 0, x, alpha * x),
    functor="LeakyRelu",
    cost=2,
    params=(Parameter("alpha", default=0.01, typical=0.1),),
    patterns=(Unary("LeakyRelu"),),
    accuracy=Accuracy(slope=lambda alpha: max(1.0, abs(alpha)), rounded_factor=True),
    in_ort=InOrt(all_types=False),
)


def _clip(emit: Emit, opset: int, x: str, operand: str, params: tuple[float, ...]) -> str:
    return emit("Clip", [x, emit("Const", params[0]), emit("Const", params[1])])


# ReLU6 is one of these
CLIP = EpilogueStep(
    "Clip",
    body=_clip,
    reference=lambda x, _, low, high: np.clip(x, low, high),
    functor="Clip",
    cost=2,
    params=(
        Parameter("min", default=-math.inf, typical=0.0),
        Parameter("max", default=math.inf, typical=6.0),
    ),
    patterns=(Unary("Clip", scalars=True),),
    accuracy=Accuracy(exact=True),
    in_ort=InOrt(all_types=False),
)

HARD_SIGMOID = EpilogueStep(
    "HardSigmoid",
    body=unary("HardSigmoid", "alpha", "beta"),
    reference=lambda x, _, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    functor="HardSigmoid",
    cost=3,
    params=(
        Parameter("alpha", default=0.2, typical=0.2),
        Parameter("beta", default=0.5, typical=0.5),
    ),
    patterns=(Unary("HardSigmoid"),),
    accuracy=Accuracy(slope=lambda alpha, beta: abs(alpha), own=FUNCTION),
    in_ort=InOrt(all_types=False),
    bounding=True,
)


def _hard_swish(emit: Emit, opset: int, x: str, operand: str, params: tuple[float, ...]) -> str:
    return emit("Mul", [x, emit("HardSigmoid", [x], alpha=1.0 / 6.0, beta=0.5)])


HARD_SWISH = EpilogueStep(
    "HardSwish",
    body=_hard_swish,
    reference=lambda x, _: x * np.clip(x / 6 + 0.5, 0, 1),
    functor="HardSwish",
    cost=4,
    forms=(
        X * apply("HardSigmoid", X, alpha=1 / 6, beta=0.5),
        X * apply("Clip", X + 3, 0, 6) * (1 / 6),
        apply("HardSwish", X),
    ),
    accuracy=Accuracy(slope=1.5, own=FUNCTION),
    in_ort=InOrt(kernels=2),
)
