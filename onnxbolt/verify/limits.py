"""Rounding errors: the numbers from which every elementwise limit of verification is computed, each
with its reason (docs/accuracy.md).

u is a type's unit roundoff, the largest relative error of rounding to it.
"""

from __future__ import annotations

import dataclasses
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
# fp16's smallest normal number: smaller numbers have its absolute rounding error
FLOOR = 2.0**-14

# Operands of the original in fp32: constant folding changes a weight by a few u, and the original's
# own products have their errors.
FP32_OPERANDS = 16 * 2.0**-24

TF32 = 2.0**-10  # the last of the ten fraction bits that a tensor core reads of an fp32 operand

TANH = "Tanh"  # kernels of 16 bits compute this operator by one instruction
TANH_UNIT = 2.0**-10.9  # that instruction's relative error
# error in fp32, relative to the largest result, of operators without a rule, such as Einsum
UNKNOWN = 2.0**-16


def unit(dtype: np.dtype) -> float:
    """The unit roundoff of a type; 0 for types that do not round."""
    return UNIT.get(np.dtype(dtype), 0.0)


def published(element: np.dtype, steps: Iterable[str]) -> float:
    """The largest error, beyond rounding, of those of `steps` that kernels of `element`
    approximate."""
    dtype = DType.of(element)
    if dtype is None:
        return 0.0
    return max((EPILOGUES[step].accuracy.published(dtype) for step in steps), default=0.0)


def steepest() -> float:
    """An upper bound of the slopes of all activations that a kernel evaluates at a rounded
    argument."""
    approximated = (entry.accuracy for entry in registered() if entry.accuracy.approximated)
    return max(accuracy.steepest(()) for accuracy in approximated)


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic in which a part of the model is computed: it decides where values are rounded.

    `element`: the type of the tensors of one of our kernels, which rounds only results and the
    values that one layer passes to the next; None for standard operators, each of which rounds.
    `tf32`: products of fp32 may be multiplied in TF32. `nearest`: they certainly are, with operands
    rounded to nearest: TMA rounds while it loads (data type TFLOAT32), CUTLASS 2.x in registers.
    `published`: the largest error, beyond rounding, of the activations that the kernel
    approximates. `coarse`: operators of 16 bits may compute in 16 bits (CUDA). `codes`: the type of
    codes that the kernel multiplies, before it scales their sums; `element` is then that of values.
    `unrounded`: values of codes are exact, since products read the codes.
    """

    element: np.dtype | None = None
    tf32: bool = False
    nearest: bool = False
    published: float = 0.0
    coarse: bool = False
    codes: DType | None = None
    unrounded: bool = False

    def of_codes(self) -> Arithmetic:
        """The arithmetic of what products of codes read."""
        return dataclasses.replace(self, unrounded=True)

    @property
    def kernel(self) -> bool:
        return self.element is not None

    def rounding(self, dtype: np.dtype) -> float:
        """The relative error of one operator's result. Kernels compute in fp32; functions and
        divisions have at most two units there."""
        if self.unrounded:
            return 0.0
        return 4 * 2.0**-24 if self.kernel else unit(dtype)

    def function(self, dtype: np.dtype, own: float, op: str = "") -> float:
        """The error of an implementation of `op` whose error in fp32 is `own`; in 16 bits exp, a
        sum and a division each round as well."""
        if (
            self.element is not None
            and op == TANH
            and unit(self.element) > unit(np.dtype(np.float32))
        ):
            return max(own, TANH_UNIT)
        return max(own, 4 * unit(dtype)) if self.coarse and own else own

    @property
    def approximation(self) -> tuple[float, float]:
        """The error of an approximate activation of a rounded argument, which ends a kernel's
        layer: (absolute, relative to the result)."""
        if self.element is None or not self.published:
            return 0.0, 0.0
        return self.published + 0.25 * unit(self.element), steepest() * unit(self.element)

    def accumulation(self, terms: int) -> float:
        """A sum's error, relative to the sum of its terms' magnitudes (Higham 2002, chapter 3).

        Each term passes at most `terms` additions in fp32. Tensor cores add at least 4 products at
        once, and truncate: their unit is 2^-23. Where additions round to nearest their errors have
        no common sign, and the square root of their number, times 8, bounds all of a model's sums
        with probability 1 - 1e-12 (Higham and Mary 2019, theorem 2.4). cuDNN may take Winograd's
        algorithm.

        Sums of products of integers are exact. Those of E4M3FN keep 14 bits within a tensor core:
        an instruction truncates each of its 32 products and the sum so far by the largest of them.
        Kernels add to fp32 sums after 128 products.
        """
        if self.codes is not None:
            return (min(terms, 128) / 8 + 8) * 2.0**-13 if self.codes is DType.E4M3 else 0.0
        if self.coarse:
            return (terms + 64) * 2.0**-23
        return (
            (terms / 4 + 8) * 2.0**-23
            if self.kernel
            else min(terms, 8 * math.sqrt(terms)) * 2.0**-24
        )
