"""An activation that the package does not have: QuickGelu, x sigmoid(1.702 x), which CLIP has for
GELU."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from onnxbolt.epilogues.formula import X, apply
from onnxbolt.epilogues.step import FUNCTION, Accuracy, Emit, EpilogueStep

INCLUDE = Path(__file__).with_name("include")
_FACTOR = 1.702


def _body(emit: Emit, opset: int, x: str, operand: str, params: tuple[float, ...]) -> str:
    return emit("Mul", [x, emit("Sigmoid", [emit("Mul", [x, emit("Const", _FACTOR)])])])


def _reference(x: np.ndarray, _: None) -> np.ndarray:
    y: np.ndarray = x / (1 + np.exp(-_FACTOR * x))
    return y


QUICK_GELU = EpilogueStep(
    "QuickGelu",
    body=_body,
    reference=_reference,
    cost=8,
    functor="quick_gelu::QuickGelu",
    header="quick_gelu.h",
    forms=(X * apply("Sigmoid", _FACTOR * X),),
    accuracy=Accuracy(slope=1.1, own=2 * FUNCTION),
)
