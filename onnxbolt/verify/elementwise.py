"""A tensor against its reference, element by element: each has its own limit."""
from __future__ import annotations

import math

import numpy as np

from onnxbolt import tolerances
from onnxbolt.verify.limits import LARGEST
from onnxbolt.verify.models import Models
from onnxbolt.verify.result import NOT_FINITE, Row

_LEAST = 1e-38  # no difference is allowed where the limit is 0
KINDS = {"segment": "segment", "node": "fused node"}  # by level


def compared(models: Models, name: str, got: np.ndarray, expected: np.ndarray, limit: np.ndarray, level: str, node: str = "") -> Row:
    """The row: the largest |got - expected| in parts of `limit`, an array of the same shape; where it is infinite nothing is judged."""
    if got.shape != expected.shape:
        return failed(models, name, f"shape {got.shape} instead of {expected.shape}", level, node)
    if not tolerances.is_float(expected):
        error = float(np.mean(got != expected)) if got.size else 0.0
        return Row(name, KINDS[level], models.where, error, 0.0, math.nan, math.nan, node=node, level=level).judged()
    with np.errstate(all="ignore"):
        difference = np.asarray(np.subtract(got, expected, dtype=np.promote_types(np.float32, expected.dtype)))
        np.abs(difference, out=difference)
        same = bool(np.isfinite(difference.sum())) or _same_infinities(got, expected, limit, difference)
        largest = float(difference.max(initial=0.0))
        parts = np.divide(difference, np.maximum(limit, _LEAST), out=difference)
    error = float(parts.max(initial=0.0))
    reason = "" if same else NOT_FINITE
    if same and error > 1:
        place = np.unravel_index(int(parts.argmax()), parts.shape)
        reason = (f"element {tuple(map(int, place))} is {got[place]:.6g} instead of {expected[place]:.6g}, {error:.3g} times its limit "
                  f"{limit[place]:.2e}; {float(np.mean(parts > 1)):.1%} of all are above theirs")
    cosine = tolerances.measure(got, expected).cosine if reason else math.nan
    return Row(name, KINDS[level], models.where, error, 1.0, largest, cosine, reason=reason, node=node, level=level).judged()


def _same_infinities(got: np.ndarray, expected: np.ndarray, limit: np.ndarray, difference: np.ndarray) -> bool:
    """True if what is not finite is the same in both wherever a limit judges; `difference` is set to 0 there."""
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    others = ~(np.isfinite(got) & np.isfinite(expected))
    difference[others] = 0.0
    others &= np.isfinite(limit)
    return np.array_equal(got[others], expected[others], equal_nan=True)


def same_bits(got: np.ndarray, expected: np.ndarray, any_nan: bool) -> bool:
    """True if the bits of both are equal; with `any_nan`, NaN equals NaN of other bits, which additions may make of it.

    `expected` may be bfloat16 where `got` is float32: sessions hand out bfloat16 so, without a change of value.
    """
    kind, expected = f"u{got.itemsize}", expected.astype(got.dtype, copy=False)
    same = got.view(kind) == expected.view(kind)
    return bool(np.all(same | (np.isnan(got) & np.isnan(expected)) if any_nan else same))


def within_range(values: np.ndarray, limit: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`limit`, infinite where `values`, as far as they are known, may leave the range of `dtype`: they are infinite there."""
    largest = LARGEST.get(np.dtype(dtype))
    if largest is None or float(np.abs(values).max(initial=0.0)) + float(limit.max(initial=0.0)) < largest:
        return limit
    return np.where(np.abs(values) + limit > largest, np.inf, limit)


def failed(models: Models, name: str, reason: str, level: str, node: str = "") -> Row:
    """The row of a tensor that could not be compared."""
    return Row(name, KINDS[level], models.where, math.nan, 0.0, math.nan, math.nan, reason=reason, node=node, level=level).judged()
