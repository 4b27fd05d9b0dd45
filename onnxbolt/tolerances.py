"""The one table of tolerances, and the measures that they bound.

The error of a tensor is its relative L2 distance from the reference, ||y - y0|| / ||y0||, and ||y|| where ||y0|| = 0,
all in float64. Non-finite values must stand in the same places with the same sign and are left out of the norms.
"""
from __future__ import annotations

import numpy as np

from onnxbolt.dtypes import DType

KERNEL = {DType.F16: 1e-3, DType.BF16: 8e-3, DType.F32: 1e-3}  # one kernel on inputs that are rounded already; F32 runs as TF32
MODEL = {DType.F16: 1e-2, DType.BF16: 5e-2, DType.F32: 2e-3}  # a whole model against its original
BODIES = 1e-4  # unchanged precision, computed by the function bodies in fp32
RATIO = 1.5  # to the error of the original itself, rounded: rounding alone brings some models near the table's limit


def limit(table: float, yardstick: float = 0.0) -> float:
    """A tensor's limit: the table's, or 1.5 times the error that rounding the original makes in the same tensor."""
    return max(table, RATIO * yardstick)


def relative_l2(y: np.ndarray, reference: np.ndarray) -> float:
    """||y - reference|| / ||reference|| over finite values; ||y|| where the reference is zero."""
    y, reference = _finite(y, reference)
    scale = float(np.linalg.norm(reference))
    return float(np.linalg.norm(y - reference)) / scale if scale else float(np.linalg.norm(y))


def max_abs(y: np.ndarray, reference: np.ndarray) -> float:
    """The largest |y - reference| over finite values."""
    y, reference = _finite(y, reference)
    return float(np.abs(y - reference).max(initial=0.0))


def cosine(y: np.ndarray, reference: np.ndarray) -> float:
    """The cosine of the angle between the two; 1 for two zero vectors, 0 where one of them is zero."""
    y, reference = _finite(y, reference)
    norms = float(np.linalg.norm(y)), float(np.linalg.norm(reference))
    if not all(norms):
        return float(norms[0] == norms[1])
    return float(np.dot(y / norms[0], reference / norms[1]))


def same_non_finite(y: np.ndarray, reference: np.ndarray) -> bool:
    """Whether NaN, inf and -inf stand in the same places."""
    return all(np.array_equal(test(y), test(reference)) for test in (np.isnan, np.isposinf, np.isneginf))


def _finite(y: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y, reference = y.astype(np.float64).ravel(), reference.astype(np.float64).ravel()
    both = np.isfinite(y) & np.isfinite(reference)
    return (y, reference) if both.all() else (y[both], reference[both])
