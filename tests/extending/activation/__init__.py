"""Activations that the package does not have: one that models write out, and one that is an ONNX
operator with a parameter.

SteepSwish is x sigmoid(1.5 x), a Swish (Ramachandran et al. 2017) whose factor is not 1; Celu
(Barron 2017) is an ELU whose slope at 0 is 1 whatever its parameter is.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from onnxbolt.epilogues.formula import X, apply
from onnxbolt.epilogues.patterns import Unary
from onnxbolt.epilogues.step import (
    FUNCTION,
    Accuracy,
    Definition,
    Emit,
    EpilogueStep,
    Parameter,
    unary,
)
from onnxbolt.extensions import Extension

_FACTOR = 1.5


def _body(emit: Emit, opset: int, x: str, operand: str, params: tuple[float, ...]) -> str:
    return emit("Mul", [x, emit("Sigmoid", [emit("Mul", [x, emit("Const", _FACTOR)])])])


def _reference(x: np.ndarray, _: None) -> np.ndarray:
    y: np.ndarray = x / (1 + np.exp(-_FACTOR * x))
    return y


STEEP_SWISH = EpilogueStep(
    "SteepSwish",
    body=_body,
    reference=_reference,
    cost=8,
    functor="extending::SteepSwish",
    header="activations.h",
    definition=Definition("extending::DefineSteepSwish", "definitions.h"),
    forms=(X * apply("Sigmoid", _FACTOR * X),),
    accuracy=Accuracy(slope=1.1, own=2 * FUNCTION),
)

CELU = EpilogueStep(
    "Celu",
    body=unary("Celu", "alpha"),
    reference=lambda x, _, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha)),
    cost=7,
    functor="extending::Celu",
    header="activations.h",
    definition=Definition("extending::DefineCelu", "definitions.h"),
    params=(Parameter("alpha", default=1.0, typical=1.0),),
    patterns=(Unary("Celu"),),
    accuracy=Accuracy(slope=1.0, own=FUNCTION),
)

EXTENSION = Extension(
    name="activations",
    epilogues=(STEEP_SWISH, CELU),
    include_dirs=(Path(__file__).with_name("include"),),
)
