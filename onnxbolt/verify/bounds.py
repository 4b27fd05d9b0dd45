"""Values with bounds of their errors: a running error analysis of a part of a model (Higham 2002,
section 3.3).

Each tensor has its value in float64, computed by numpy independently of the model that is judged,
and two error bounds for every element: `arithmetic` (roundings while the part is computed) and
`operands` (roundings of the part's inputs when they were stored).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TypeAlias

import ml_dtypes
import numpy as np

from onnxbolt.verify.limits import FLOOR

# a number is relative, to max(|value|, FLOOR); an array is absolute, of the value's shape
Error: TypeAlias = float | np.ndarray


@dataclass(frozen=True)
class Bounded:
    """A tensor: `value` is float64, errors are float32, where `dtype`, the type as stored, is a
    float type; else as it is."""

    value: np.ndarray
    dtype: np.dtype
    arithmetic: Error = 0.0
    operands: Error = 0.0

    def __post_init__(self) -> None:
        """numpy makes numbers of arrays without axes, and float64 of float32 with float64:
        errors remain arrays of float32."""
        object.__setattr__(self, "value", np.asarray(self.value))
        with np.errstate(over="ignore"):  # an infinite bound: nothing is judged there
            for name, error in zip(("arithmetic", "operands"), self.errors, strict=True):
                if isinstance(error, np.generic | np.ndarray):
                    object.__setattr__(self, name, np.asarray(error, np.float32))

    @classmethod
    def of(cls, stored: np.ndarray, operands: float = 0.0) -> Bounded:
        """A tensor as it is stored; `operands` is the relative error by which its values may differ
        from the original's."""
        if not is_float(stored.dtype):
            return cls(stored, stored.dtype)
        return cls(stored.astype(np.float64), stored.dtype, 0.0, operands)

    @property
    def errors(self) -> tuple[Error, Error]:
        return self.arithmetic, self.operands

    @property
    def magnitude(self) -> np.ndarray:
        """The magnitude that relative errors refer to, in float32; FLOOR for infinities and NaNs,
        which have to be equal."""
        with np.errstate(over="ignore"):
            found = self.value.astype(np.float32)
        np.abs(found, out=found)
        np.maximum(found, FLOOR, out=found)
        found[~np.isfinite(found)] = FLOOR
        return found

    def part(self, at: tuple[slice, ...]) -> Bounded:
        """Some of its values."""
        errors = (error[at] if isinstance(error, np.ndarray) else error for error in self.errors)
        return Bounded(self.value[at], self.dtype, *errors)

    @property
    def exact(self) -> bool:
        """True if neither kind of error is possible."""
        return not any(is_set(error) for error in self.errors)

    def absolute(self, error: Error) -> np.ndarray:
        """One of `errors` as an array of absolute errors."""
        if isinstance(error, np.ndarray):
            return error
        return error * self.magnitude if error else np.zeros(self.value.shape, np.float32)


def is_set(error: Error) -> bool:
    """True unless the error is 0."""
    return isinstance(error, np.ndarray) or error != 0.0


def is_float(dtype: np.dtype) -> bool:
    """True for types that round: not for fp8, whose values are codes, as those of int8 are."""
    return np.dtype(dtype).kind == "f" or dtype == ml_dtypes.bfloat16


def bounded(
    value: np.ndarray,
    dtype: np.dtype,
    arithmetic: Error,
    operands: Error,
    rounding: float = 0.0,
    local: np.ndarray | float = 0.0,
) -> Bounded:
    """A result with its errors: those of its operands, the error `local` to the operator, and the
    relative `rounding` of the result.

    Infinities and NaN have no error: they have to be equal.
    """
    if not is_float(dtype):
        return Bounded(value, dtype, arithmetic, operands)
    given = Bounded(value.astype(np.float64, copy=False), dtype, arithmetic, operands)
    value, arithmetic = given.value, given.arithmetic
    relative = rounding + (arithmetic if isinstance(arithmetic, float) else 0.0)
    result = dataclasses.replace(given, arithmetic=relative)
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(arithmetic, np.ndarray) or np.any(local):
            total = relative * result.magnitude if relative else np.zeros(value.shape, np.float32)
            total += local
            if isinstance(arithmetic, np.ndarray):
                total += arithmetic
            result = dataclasses.replace(given, arithmetic=total)
        finite = bool(np.isfinite(value.sum()))
    return result if finite else _without_errors(result)


def _without_errors(x: Bounded) -> Bounded:
    """`x` with error 0 for elements that are not finite."""
    finite = np.isfinite(x.value)
    errors = [
        np.where(finite, error, 0.0) if isinstance(error, np.ndarray) else error
        for error in x.errors
    ]
    return Bounded(x.value, x.dtype, *errors)
