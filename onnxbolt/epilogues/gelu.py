"""GELU (Hendrycks and Gimpel 2016): exact, and approximated by tanh or by the logistic function."""

from __future__ import annotations

import math

from onnxbolt.domains import CONTRIB
from onnxbolt.epilogues import numerics
from onnxbolt.epilogues.formula import X, apply
from onnxbolt.epilogues.patterns import Unary
from onnxbolt.epilogues.step import FUNCTION, Accuracy, Emit, EpilogueStep, InOrt


def _gelu_erf(emit: Emit, opset: int, x: str, operand: str, params: tuple[float, ...]) -> str:
    # written as PyTorch exports it below opset 20, the form that ONNX Runtime's own fusions
    # recognize
    inner = emit(
        "Add", [emit("Erf", [emit("Div", [x, emit("Const", math.sqrt(2.0))])]), emit("Const", 1.0)]
    )
    return emit("Mul", [emit("Mul", [x, inner]), emit("Const", 0.5)])


GELU_ERF = EpilogueStep(
    "GeluErf",
    body=_gelu_erf,
    reference=lambda x, _: numerics.gelu(x),
    functor="GeluErf",
    cost=12,
    exact_cost=50,  # fitted to products of codes on one H200
    patterns=(Unary("BiasGelu", CONTRIB, bias=True),),
    forms=(
        0.5 * X * (apply("Erf", math.sqrt(0.5) * X) + 1),
        apply("Gelu", X, approximate="none"),
        apply("Gelu", X, domain=CONTRIB),
    ),
    accuracy=Accuracy(slope=1.13, own=8 * FUNCTION, fp16=5.5e-4, bf16=6e-5),
    in_ort=InOrt(with_bias=True),
)


def _gelu_tanh(emit: Emit, opset: int, x: str, operand: str, params: tuple[float, ...]) -> str:
    cubed = emit("Mul", [emit("Mul", [x, x]), x])
    inner = emit("Add", [x, emit("Mul", [cubed, emit("Const", 0.044715)])])
    tanh = emit("Tanh", [emit("Mul", [inner, emit("Const", math.sqrt(2.0 / math.pi))])])
    return emit(
        "Mul", [emit("Mul", [x, emit("Add", [tanh, emit("Const", 1.0)])]), emit("Const", 0.5)]
    )


GELU_TANH = EpilogueStep(
    "GeluTanh",
    body=_gelu_tanh,
    reference=lambda x, _: numerics.gelu_tanh(x),
    functor="GeluTanh",
    cost=12,
    patterns=(Unary("FastGelu", CONTRIB, bias=True),),
    forms=(
        0.5 * X * (apply("Tanh", math.sqrt(2 / math.pi) * (X + 0.044715 * X**3)) + 1),
        0.5 * X * (apply("Tanh", math.sqrt(2 / math.pi) * X * (0.044715 * X**2 + 1)) + 1),
        apply("Gelu", X, approximate="tanh"),
        apply("FastGelu", X, domain=CONTRIB),
    ),
    accuracy=Accuracy(slope=1.13, own=8 * FUNCTION, fp16=5.5e-4, bf16=7.5e-5),
    in_ort=InOrt(with_bias=True),
)

_LOGISTIC = 1.702  # x sigmoid(1.702 x), section 2 of the paper; CLIP's


def _quick_gelu(emit: Emit, opset: int, x: str, operand: str, params: tuple[float, ...]) -> str:
    return emit("Mul", [x, emit("Sigmoid", [emit("Mul", [x, emit("Const", _LOGISTIC)])])])


QUICK_GELU = EpilogueStep(
    "QuickGelu",
    body=_quick_gelu,
    reference=lambda x, _: x * numerics.sigmoid(_LOGISTIC * x),
    functor="QuickGelu",
    cost=8,
    forms=(
        X * apply("Sigmoid", _LOGISTIC * X),
        apply("Swish", X, alpha=_LOGISTIC),
        apply("QuickGelu", X, alpha=_LOGISTIC, domain=CONTRIB),
    ),
    accuracy=Accuracy(slope=1.1, own=2 * FUNCTION, fp16=2.5e-4),
)
