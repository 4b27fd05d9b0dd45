"""A tensor against its reference, element by element: each has its own limit."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from onnxbolt import tolerances
from onnxbolt.verify.limits import LARGEST
from onnxbolt.verify.models import Models
from onnxbolt.verify.result import NOT_FINITE, Row

_LEAST = 1e-38  # no difference is allowed where the limit is 0
_SMALLEST = 2.0**-24  # the smallest number of fp16: no cap is below it
KINDS = {"segment": "segment", "node": "fused node"}  # by level


def compared(
    models: Models,
    name: str,
    got: np.ndarray,
    expected: np.ndarray,
    limit: np.ndarray,
    level: str,
    node: str = "",
    stored: np.dtype | None = None,
) -> Row:
    """The row: the largest |got - expected| in parts of `limit`, an array of the same shape.

    Nothing is judged where the limit leaves the range of `stored`. Limits follow from what is
    judged, which may widen them: an element that is within its limit, but further off than
    `models.element_cap` of its value and of the tensor's, leaves the row unjudged.
    """
    if got.shape != expected.shape:
        return failed(models, name, f"shape {got.shape} instead of {expected.shape}", level, node)
    if not tolerances.is_float(expected):
        error = float(np.mean(got != expected)) if got.size else 0.0
        return Row(
            name, KINDS[level], models.where, error, 0.0, math.nan, math.nan, node=node, level=level
        ).judged()
    worst = _worst(got, expected, _within_range(expected, limit, stored))
    cosine = tolerances.measure(got, expected).cosine if worst.reason else math.nan
    row = Row(
        name,
        KINDS[level],
        models.where,
        worst.error,
        1.0,
        worst.difference,
        cosine,
        reason=worst.reason,
        node=node,
        level=level,
    ).judged()
    if not row.passed or (narrow := _capped(expected, limit, models.element_cap)) is None:
        return row
    why = _worst(got, expected, _within_range(expected, narrow, stored)).reason
    unjudged = why and f"rounding may change it by more than {models.element_cap:.0%}: {why}"
    return dataclasses.replace(row, passed=not why, unjudged=unjudged)


@dataclass(frozen=True)
class _Worst:
    """How far elements are off at most."""

    error: float  # in parts of an element's limit
    difference: float
    reason: str  # empty where all are within their limits


def _worst(got: np.ndarray, expected: np.ndarray, limit: np.ndarray) -> _Worst:
    with np.errstate(all="ignore"):
        difference = np.asarray(
            np.subtract(got, expected, dtype=np.promote_types(np.float32, expected.dtype))
        )
        np.abs(difference, out=difference)
        same = bool(np.isfinite(difference.sum())) or _same_infinities(
            got, expected, limit, difference
        )
        largest = float(difference.max(initial=0.0))
        parts = np.divide(difference, np.maximum(limit, _LEAST), out=difference)
    error = float(parts.max(initial=0.0))
    reason = "" if same else NOT_FINITE
    if same and error > 1:
        place = np.unravel_index(int(parts.argmax()), parts.shape)
        reason = (
            f"element {tuple(map(int, place))} is {got[place]:.6g} instead of"
            f" {expected[place]:.6g}, {error:.3g} times its limit {limit[place]:.2e};"
            f" {float(np.mean(parts > 1)):.1%} of all elements exceed their limits"
        )
    return _Worst(error, largest, reason)


def _capped(values: np.ndarray, limit: np.ndarray, cap: float) -> np.ndarray | None:
    """`limit`, at most `cap` of the element and of the root mean square of `values`; None where
    it is so already."""
    typical, widest = _root_mean_square(values), float(limit.max(initial=0.0))
    if widest <= cap * typical:
        return None
    return np.fmin(limit, np.maximum(cap * np.maximum(np.abs(values), typical), _SMALLEST))


def _root_mean_square(values: np.ndarray) -> float:
    """... of those that are finite."""
    wide = values.astype(np.promote_types(np.float32, values.dtype), copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.linalg.norm(wide))
    if not math.isfinite(norm):
        norm = float(np.linalg.norm(np.where(np.isfinite(wide), wide, 0.0).astype(np.float64)))
    return norm / math.sqrt(max(values.size, 1))


def _same_infinities(
    got: np.ndarray, expected: np.ndarray, limit: np.ndarray, difference: np.ndarray
) -> bool:
    """True if what is not finite is the same in both wherever a limit judges; `difference` is
    set to 0 there."""
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    others = ~(np.isfinite(got) & np.isfinite(expected))
    difference[others] = 0.0
    others &= np.isfinite(limit)
    return np.array_equal(got[others], expected[others], equal_nan=True)


def same_bits(got: np.ndarray, expected: np.ndarray, any_nan: bool) -> bool:
    """True if the bits of both are equal; with `any_nan`, NaN equals NaN of other bits, which
    additions may make of it.

    `expected` may be bfloat16 where `got` is float32: sessions hand out bfloat16 so, without a
    change of value.
    """
    kind, expected = f"u{got.itemsize}", expected.astype(got.dtype, copy=False)
    same = got.view(kind) == expected.view(kind)
    return bool(np.all(same | (np.isnan(got) & np.isnan(expected)) if any_nan else same))


def _within_range(values: np.ndarray, limit: np.ndarray, dtype: np.dtype | None) -> np.ndarray:
    """`limit`, infinite where `values`, as far as they are known, may leave the range of
    `dtype`: they are infinite there."""
    largest = None if dtype is None else LARGEST.get(np.dtype(dtype))
    if (
        largest is None
        or float(np.abs(values).max(initial=0.0)) + float(limit.max(initial=0.0)) < largest
    ):
        return limit
    return np.where(np.abs(values) + limit > largest, np.inf, limit)


def failed(models: Models, name: str, reason: str, level: str, node: str = "") -> Row:
    """The row of a tensor that could not be compared."""
    return Row(
        name,
        KINDS[level],
        models.where,
        math.nan,
        0.0,
        math.nan,
        math.nan,
        reason=reason,
        node=node,
        level=level,
    ).judged()
