"""Activations of the exponential function: sigmoid, tanh, and activations composed of them."""

from __future__ import annotations

import numpy as np

from onnxbolt.domains import CONTRIB
from onnxbolt.epilogues.formula import X, apply
from onnxbolt.epilogues.numerics import sigmoid, softplus
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

SIGMOID = EpilogueStep(
    "Sigmoid",
    body=unary("Sigmoid"),
    reference=lambda x, _: sigmoid(x),
    functor="Sigmoid",
    cost=6,
    patterns=(Unary("Sigmoid"),),
    accuracy=Accuracy(slope=0.25, own=FUNCTION),
    bounding=True,
)

TANH = EpilogueStep(
    "Tanh",
    body=unary("Tanh"),
    reference=lambda x, _: np.tanh(x),
    functor="Tanh",
    cost=6,
    patterns=(Unary("Tanh"),),
    accuracy=Accuracy(own=FUNCTION),
    bounding=True,
)


def _silu(emit: Emit, opset: int, x: str, operand: str, params: tuple[float, ...]) -> str:
    return emit("Mul", [x, emit("Sigmoid", [x])])


SILU = EpilogueStep(
    "Silu",
    body=_silu,
    reference=lambda x, _: x * sigmoid(x),
    functor="Silu",
    cost=7,
    forms=(
        X * apply("Sigmoid", X),
        apply("Swish", X, alpha=1.0),
        apply("QuickGelu", X, alpha=1.0, domain=CONTRIB),
    ),
    accuracy=Accuracy(slope=1.1, own=FUNCTION, fp16=2.5e-4),
)

SOFTPLUS = EpilogueStep(
    "Softplus",
    body=unary("Softplus"),
    reference=lambda x, _: softplus(x),
    functor="Softplus",
    cost=12,
    patterns=(Unary("Softplus"),),
    forms=(apply("Log", apply("Exp", X) + 1),),
    accuracy=Accuracy(own=2 * FUNCTION, fp16=3.5e-4, bf16=3e-4),
    in_ort=InOrt(all_types=False),
)

ELU = EpilogueStep(
    "Elu",
    body=unary("Elu", "alpha"),
    reference=lambda x, _, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    functor="Elu",
    cost=6,
    params=(Parameter("alpha", default=1.0, typical=1.0),),
    patterns=(Unary("Elu"),),
    accuracy=Accuracy(slope=lambda alpha: max(1.0, abs(alpha)), own=FUNCTION),
    in_ort=InOrt(all_types=False),
)


def _mish(emit: Emit, opset: int, x: str, operand: str, params: tuple[float, ...]) -> str:
    return emit("Mul", [x, emit("Tanh", [emit("Softplus", [x])])])


MISH = EpilogueStep(
    "Mish",
    body=_mish,
    reference=lambda x, _: x * np.tanh(softplus(x)),
    functor="Mish",
    cost=10,
    forms=(X * apply("Tanh", apply("Softplus", X)), apply("Mish", X)),
    accuracy=Accuracy(slope=1.1, own=4 * FUNCTION),
    in_ort=InOrt(kernels=3),
)
