"""Steps with an operand: a vector along the output channels, or a tensor of the output's shape."""

from __future__ import annotations

import numpy as np

from onnxbolt.epilogues.patterns import Tensor, Vector
from onnxbolt.epilogues.step import EpilogueStep, InOrt, binary


def _negative(constant: np.ndarray) -> np.ndarray:
    return -constant


def _reciprocal(constant: np.ndarray) -> np.ndarray | str:
    """1 / constant, or the reason why there is none: a zero, or a denormal number, whose reciprocal
    is infinite."""
    if not np.all(constant):
        return "its constant divisor holds a zero"
    with np.errstate(over="ignore"):
        found: np.ndarray = 1 / constant
    return found if np.all(np.isfinite(found)) else "its constant divisor has no finite reciprocal"


BIAS = EpilogueStep(
    "Bias",
    body=binary("Add"),
    reference=lambda x, vector: x + vector,
    functor="Bias",
    cost=1,
    operand="vector",
    patterns=(Vector("Add", either_side=True), Vector("Sub", convert=_negative)),
)

SCALE = EpilogueStep(
    "Scale",
    body=binary("Mul"),
    reference=lambda x, vector: x * vector,
    functor="Scale",
    cost=1,
    operand="vector",
    patterns=(
        Vector("Mul", either_side=True),
        Vector("Div", convert=_reciprocal, finite_at_zero=False),
    ),
)

PRELU = EpilogueStep(
    "PRelu",
    body=binary("PRelu"),
    reference=lambda x, slope: np.where(x > 0, x, x * slope),
    functor="PRelu",
    cost=2,
    operand="vector",
    patterns=(Vector("PRelu"),),
    in_ort=InOrt(all_types=False),
)

ADD = EpilogueStep(
    "Add",
    body=binary("Add"),
    reference=lambda x, tensor: x + tensor,
    functor="Add",
    cost=1,
    operand="tensor",
    patterns=(Tensor("Add"),),
)

MUL = EpilogueStep(
    "Mul",
    body=binary("Mul"),
    reference=lambda x, tensor: x * tensor,
    functor="Mul",
    cost=1,
    operand="tensor",
    patterns=(Tensor("Mul"),),
)
