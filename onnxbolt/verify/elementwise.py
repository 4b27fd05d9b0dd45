"""Compares a tensor with its reference element by element, each element having its own limit."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from onnxbolt import tolerances
from onnxbolt.verify.codes import INTEGERS, is_code
from onnxbolt.verify.limits import LARGEST
from onnxbolt.verify.models import Models
from onnxbolt.verify.result import NOT_FINITE, Row

_LEAST = 1e-38  # no difference is allowed where the limit is 0
_SMALLEST = 2.0**-24  # the smallest number of fp16: no cap is below it
ONE_OF = 10_000  # codes, of which one may differ
_MANY = 0.25  # the share of codes that differ from which on their limits are too wide to judge by
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
    given: np.ndarray | None = None,
    rounded: bool = False,
) -> Row:
    """The row of a tensor: the largest |got - expected| divided by `limit`, an array of the same
    shape. Of codes it is the number of those that differ, divided by how many may, but for those
    that have a limit by `given`: the errors of what the tensor is computed from. `rounded`: values
    in front of codes may have been rounded to 16 bits.

    Elements whose limit exceeds the range of `stored` are not judged. Limits follow from the tensor
    that is judged and may become too wide: if an element is within its limit, but deviates by more
    than `models.element_cap` of its value and of the tensor's, the row gets no verdict.
    """
    if got.shape != expected.shape:
        return failed(models, name, f"shape {got.shape} instead of {expected.shape}", level, node)
    if is_code(expected.dtype):
        return _codes(models, name, got, expected, limit, level, node, given, rounded)
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


def _codes(
    models: Models,
    name: str,
    got: np.ndarray,
    expected: np.ndarray,
    limit: np.ndarray,
    level: str,
    node: str,
    given: np.ndarray | None,
    rounded: bool,
) -> Row:
    """The row of a tensor of codes. They differ where `limit` lets them. Of those that one node
    makes at most 1 of 10,000 does, if they are integers: sums of their products are exact. In a
    segment, as in a node with `rounded`, values may have been rounded to 16 bits before."""
    codes, right = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(codes - right)
    apart[np.isnan(codes) & np.isnan(right)] = 0.0  # fp8 has NaN
    known = limit < np.inf
    beyond = ~(apart <= limit) & known
    few = level == "node" and expected.dtype in INTEGERS and not rounded
    allowed = max(1, expected.size // ONE_OF if few else expected.size)
    differ = (apart > 0) & known
    if given is not None:
        differ &= given == 0
    error, reason = float(np.count_nonzero(differ) / allowed), ""
    if beyond.any():
        place = np.unravel_index(int(np.nanargmax(np.where(beyond, apart, -1.0))), apart.shape)
        reason = (
            f"code {tuple(map(int, place))} is {codes[place]:g} instead of {right[place]:g}, and"
            f" may lie {limit[place]:g} apart; {float(np.mean(beyond)):.1%} of all codes lie"
            " further apart than they may"
        )
    elif error > 1:
        reason = f"{float(np.mean(differ)):.2%} of all codes differ, more than 1 of {ONE_OF:,}"
    largest = float(np.nanmax(apart, initial=0.0))
    kind, where = KINDS[level], models.where
    row = Row(
        name, kind, where, error, 1.0, largest, math.nan, reason=reason, node=node, level=level
    ).judged()
    if row.failed or np.count_nonzero(differ) <= _MANY * differ.size:
        return row
    why = f"rounding may change more than {_MANY:.0%} of its codes"
    return dataclasses.replace(row, passed=False, unjudged=why)


@dataclass(frozen=True)
class _Worst:
    """The largest deviation of an element, and the reason if it exceeds its limit."""

    error: float  # divided by the element's limit
    difference: float
    reason: str  # empty if all elements are within their limits


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
    """`limit` reduced to at most `cap` of the element and of the root mean square of `values`; None
    if it is within that already."""
    typical, widest = _root_mean_square(values), float(limit.max(initial=0.0))
    if widest <= cap * typical:
        return None
    return np.fmin(limit, np.maximum(cap * np.maximum(np.abs(values), typical), _SMALLEST))


def _root_mean_square(values: np.ndarray) -> float:
    """The root mean square of the finite values."""
    wide = values.astype(np.promote_types(np.float32, values.dtype), copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.linalg.norm(wide))
    if not math.isfinite(norm):
        norm = float(np.linalg.norm(np.where(np.isfinite(wide), wide, 0.0).astype(np.float64)))
    return norm / math.sqrt(max(values.size, 1))


def _same_infinities(
    got: np.ndarray, expected: np.ndarray, limit: np.ndarray, difference: np.ndarray
) -> bool:
    """True if infinities and NaNs are equal in both arrays wherever a limit judges; `difference` is
    set to 0 there."""
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    others = ~(np.isfinite(got) & np.isfinite(expected))
    difference[others] = 0.0
    others &= np.isfinite(limit)
    return np.array_equal(got[others], expected[others], equal_nan=True)


def same_bits(got: np.ndarray, expected: np.ndarray, any_nan: bool) -> bool:
    """True if the bits of both arrays are equal; with `any_nan`, NaNs of different bits are equal,
    too, because an addition may change them.

    `expected` may be bfloat16 where `got` is float32: sessions hand out bfloat16 so, without a
    change of value.
    """
    kind, expected = f"u{got.itemsize}", expected.astype(got.dtype, copy=False)
    same = got.view(kind) == expected.view(kind)
    return bool(np.all(same | (np.isnan(got) & np.isnan(expected)) if any_nan else same))


def _within_range(values: np.ndarray, limit: np.ndarray, dtype: np.dtype | None) -> np.ndarray:
    """`limit`, made infinite where `values`, known up to their errors, may exceed the range of
    `dtype`, so that infinities are correct there."""
    largest = None if dtype is None else LARGEST.get(np.dtype(dtype))
    if (
        largest is None
        or float(np.abs(values).max(initial=0.0)) + float(limit.max(initial=0.0)) < largest
    ):
        return limit
    with np.errstate(over="ignore"):  # sums beyond the range are the point
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
