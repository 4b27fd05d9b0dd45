"""Roundings: the numbers from which every elementwise limit of verification is made, each with its
reason (docs/accuracy.md).

u is a type's unit roundoff, the largest relative error of rounding to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, registered

UNIT = {
    np.dtype(np.float16): 2.0**-11,
    np.dtype(ml_dtypes.bfloat16): 2.0**-8,
    np.dtype(np.float32): 2.0**-24,
    np.dtype(np.float64): 2.0**-53,
}
LARGEST = {
    np.dtype(np.float16): 65504.0,
    np.dtype(ml_dtypes.bfloat16): 2.0**128 - 2.0**120,
    np.dtype(np.float32): 2.0**128 - 2.0**104,
}
# fp16's smallest normal number: below it the error of rounding stays that of this number
FLOOR = 2.0**-14

# Operands of the original in fp32: constant folding changes a weight by a few u, and the original's
# own products have their errors.
FP32_OPERANDS = 16 * 2.0**-24

TF32 = 2.0**-10  # the last of the ten bits that a tensor core reads of an fp32 operand

TANH = "Tanh"  # the operator that kernels of 16 bits have an instruction for
TANH_UNIT = 2.0**-10.9  # that instruction's relative error
# error in fp32, in parts of the largest result, of operators without a rule: cubic Resize, Einsum,
# ...
UNKNOWN = 2.0**-16


def unit(dtype: np.dtype) -> float:
    """u; 0 for types that do not round."""
    return UNIT.get(np.dtype(dtype), 0.0)


def published(element: np.dtype, steps: Iterable[str]) -> float:
    """The largest error, beside rounding, of those among `steps` that kernels of `element`
    approximate."""
    dtype = DType.of(element)
    if dtype is None:
        return 0.0
    return max((EPILOGUES[step].accuracy.published(dtype) for step in steps), default=0.0)


def steepest() -> float:
    """No activation that a kernel evaluates from a rounded argument is steeper."""
    approximated = (entry.accuracy for entry in registered() if entry.accuracy.approximated)
    return max(accuracy.steepest(()) for accuracy in approximated)


@dataclass(frozen=True)
class Arithmetic:
    """How a part of the model is computed, which says where roundings happen.

    `element`: the type of the tensors of one of our kernels, which rounds results, and what one
    layer hands to the next, but nothing between them; None for standard operators, each of which
    rounds. `tf32`: products of fp32 may be multiplied in TF32; `nearest`: they surely are, of
    operands rounded to nearest: TMA rounds what it loads (data type TFLOAT32), CUTLASS 2.x in
    registers. `published`: the largest error, beside rounding, of the activations that the kernel
    approximates. `coarse`: operators of 16 bits may reckon in 16 bits (CUDA).
    """

    element: np.dtype | None = None
    tf32: bool = False
    nearest: bool = False
    published: float = 0.0
    coarse: bool = False

    @property
    def kernel(self) -> bool:
        return self.element is not None

    def rounding(self, dtype: np.dtype) -> float:
        """Relative error of one operator's result; a kernel's are in fp32, functions and
        divisions there have two units or less."""
        return 4 * 2.0**-24 if self.kernel else unit(dtype)

    def function(self, dtype: np.dtype, own: float, op: str = "") -> float:
        """Error of an implementation of `op` whose error in fp32 is `own`; in 16 bits exp, a sum
        and a division round by themselves."""
        if (
            self.element is not None
            and op == TANH
            and unit(self.element) > unit(np.dtype(np.float32))
        ):
            return max(own, TANH_UNIT)
        return max(own, 4 * unit(dtype)) if self.coarse and own else own

    @property
    def approximation(self) -> tuple[float, float]:
        """Error of an approximate activation of a rounded argument, which ends a kernel's layer:
        absolute, and in parts of the result."""
        if self.element is None or not self.published:
            return 0.0, 0.0
        return self.published + 0.25 * unit(self.element), steepest() * unit(self.element)

    def accumulation(self, terms: int) -> float:
        """A sum's error in parts of the sum of its terms' magnitudes (Higham 2002, chapter 3).

        Each term passes at most `terms` additions in fp32. Tensor cores add at least 4 products at
        once, and truncate: their unit is 2^-23. Where additions round to nearest their errors have
        no common sign, and the square root of their number, times 8, bounds all of a model's sums
        with probability 1 - 1e-12 (Higham and Mary 2019, theorem 2.4). cuDNN may take Winograd's
        algorithm.
        """
        if self.coarse:
            return (terms + 64) * 2.0**-23
        return (
            (terms / 4 + 8) * 2.0**-23
            if self.kernel
            else min(terms, 8 * math.sqrt(terms)) * 2.0**-24
        )
