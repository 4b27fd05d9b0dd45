"""The one table of tolerances, and the measures that they bound.

The error of a tensor is its relative L2 distance from the reference, ||y - y0|| / ||y0||, and ||y||
where ||y0|| = 0, all in float64. Non-finite values must stand in the same places with the same sign
and are left out of the norms. Of integers, booleans and strings, which have to be equal, it is the
share that is not; their limit in the table is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxbolt.dtypes import DType

# one kernel on inputs that are rounded already; F32 runs as TF32. Some codes of integers differ by
# one, and tensor cores keep 14 bits of sums of E4M3FN
KERNEL = {
    DType.F16: 1e-3,
    DType.BF16: 8e-3,
    DType.F32: 1e-3,
    DType.I8: 2e-3,
    DType.U8: 2e-3,
    DType.E4M3: 3e-2,
}
MODEL = {DType.F16: 1e-2, DType.BF16: 5e-2, DType.F32: 2e-3}  # a whole model against its original
BODIES = 1e-4  # unchanged precision, computed by the function bodies in fp32
# the largest error of the rounded original itself with which inputs still tell a right model from a
# wrong one
JUDGES = {DType.F16: 5e-2, DType.BF16: 2e-1, DType.F32: 1e-2}
# limits that lie between the outputs for two seeds, before random inputs of another kind are
# trusted
DISCERNIBLE = 20
# to the error of the original itself, rounded: rounding alone brings some models near the table's
# limit
RATIO = 1.5


def limit(table: float, yardstick: float = 0.0) -> float:
    """A tensor's limit: the table's, or 1.5 times the error that rounding causes in the same tensor
    of the original."""
    return max(table, RATIO * yardstick)


@dataclass(frozen=True)
class Measures:
    """The deviation of a tensor from its reference, over finite values."""

    relative_l2: float  # ||y - y0|| / ||y0||; ||y|| where the reference is zero
    max_abs: float  # the largest |y - y0|
    cosine: float  # cosine of the angle between them; 1 for two zero vectors, 0 if one is zero


def measure(y: np.ndarray, reference: np.ndarray) -> Measures:
    """All measures of two arrays of the same shape, whatever their float types."""
    y, reference = _finite(y, reference)
    difference, norm, scale = (
        y - reference,
        float(np.linalg.norm(y)),
        float(np.linalg.norm(reference)),
    )
    error = float(np.linalg.norm(difference)) / (scale or 1.0)
    cosine = float(np.dot(y, reference)) / norm / scale if norm and scale else float(norm == scale)
    return Measures(error, float(np.abs(difference).max(initial=0.0)), cosine)


def relative_l2(y: np.ndarray, reference: np.ndarray) -> float:
    """The relative L2 distance of two float arrays."""
    return measure(y, reference).relative_l2


def is_float(values: np.ndarray) -> bool:
    """True if values are compared by distance; ml_dtypes' types are of kind V."""
    return values.dtype.kind in "fV"


def error(y: np.ndarray, reference: np.ndarray) -> float:
    """The error that limits bound, for any element type."""
    return (
        relative_l2(y, reference)
        if is_float(reference)
        else float(np.sum(y != reference)) / max(reference.size, 1)
    )


def same_non_finite(y: np.ndarray, reference: np.ndarray) -> bool:
    """True if NaN, inf and -inf are in the same places."""
    return all(
        np.array_equal(test(y), test(reference)) for test in (np.isnan, np.isposinf, np.isneginf)
    )


def _finite(y: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y, reference = y.astype(np.float64).ravel(), reference.astype(np.float64).ravel()
    both = np.isfinite(y) & np.isfinite(reference)
    return (y, reference) if both.all() else (y[both], reference[both])
