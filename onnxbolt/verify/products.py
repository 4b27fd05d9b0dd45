"""Products with bounds of their errors: Conv, MatMul, Gemm.

One function multiplies values, magnitudes and errors alike. Applied to |x| and |w| it gives the sum
of magnitudes M; the errors of accumulation and the relative errors of operands are multiples of M.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from onnxbolt.verify.bounds import Bounded, Error, bounded, is_set
from onnxbolt.verify.limits import TF32, Arithmetic

Multiply = Callable[[np.ndarray, np.ndarray], np.ndarray]
_HALF = 1 << 12  # half of TF32's last bit, among the bits of an fp32 number
_STACKED = 16  # input channels of a group below which filter positions are multiplied at once


def product(
    x: Bounded, weight: Bounded, multiply: Multiply, terms: int, arithmetic: Arithmetic
) -> Bounded:
    """multiply(x, weight) with its errors. Each element is a sum of `terms` products; the caller
    adds the rounding of the result. Kernels of codes scale the sums of the codes, which takes three
    roundings."""
    if arithmetic.tf32 and x.dtype == np.float32:
        x, weight = (_in_tf32(operand, arithmetic) for operand in (x, weight))
    value = multiply(x.value, weight.value)
    magnitudes = [operand.magnitude for operand in (x, weight)]
    sums = multiply(*magnitudes)
    accumulated = arithmetic.accumulation(terms) * sums
    if arithmetic.codes is not None:
        accumulated = accumulated + 3 * 2.0**-24 * np.abs(value)
    found = [
        _propagated(pair, magnitudes, sums, multiply)
        for pair in zip(x.errors, weight.errors, strict=True)
    ]
    return bounded(value, x.dtype, found[0], found[1], local=accumulated)


def _propagated(
    errors: Sequence[Error], magnitudes: Sequence[np.ndarray], sums: np.ndarray, multiply: Multiply
) -> Error:
    """The error of a product that follows from the errors of both operands, from the sums of
    magnitudes and the errors' own products."""
    total: Error = 0.0
    relative = sum(error for error in errors if isinstance(error, float))
    if relative:
        total = relative * sums
    for place, error in enumerate(errors):
        if isinstance(error, np.ndarray):
            operands = [
                (
                    error.astype(np.float32)
                    if i == place
                    else magnitudes[i] + _absolute(errors[i], magnitudes[i])
                )
                for i in (0, 1)
            ]
            # infinite errors, which BLAS also multiplies by the zeros that it pads operands with
            with np.errstate(invalid="ignore"):
                total = total + multiply(*operands)
    return total


def _absolute(error: Error, magnitude: np.ndarray) -> np.ndarray | float:
    return error.astype(np.float32) if isinstance(error, np.ndarray) else error * magnitude


def _in_tf32(x: Bounded, arithmetic: Arithmetic) -> Bounded:
    """An fp32 operand as a kernel multiplies it, with its significand rounded to 11 bits.

    An operand that is known exactly is known exactly after rounding, too, except for ties, which
    kernels round either way. The last bits of other operands are unknown, as are those of all
    operands if products may be in fp32.
    """
    operands = _added(x.operands, TF32, x)
    if is_set(x.arithmetic) or not arithmetic.nearest:
        return Bounded(x.value, x.dtype, _added(x.arithmetic, TF32, x), operands)
    exact = x.value.astype(np.float32)
    bits = exact.view(np.uint32)
    nearest = ((bits + np.uint32(_HALF)) & np.uint32(~(2 * _HALF - 1) & 0xFFFFFFFF)).view(
        np.float32
    )
    value = np.where(np.isfinite(exact), nearest, exact)
    ties = (bits & np.uint32(2 * _HALF - 1)) == _HALF
    return Bounded(
        value.astype(np.float64),
        x.dtype,
        np.where(ties, TF32 * np.abs(value), 0.0) if ties.any() else 0.0,
        operands,
    )


def _added(error: Error, relative: float, x: Bounded) -> Error:
    return error + relative * x.magnitude if isinstance(error, np.ndarray) else error + relative


def convolution(
    group: int, strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> Multiply:
    """Conv of ONNX without a bias: [N,C,..] x [K,C/group,..] -> [N,K,..]."""

    def multiply(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        rank, count = x.ndim - 2, len(x)
        around = ((0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True))
        padded = np.pad(x, around) if any(pads) else x
        extents = [
            (padded.shape[2 + i] - dilations[i] * (weight.shape[2 + i] - 1) - 1) // strides[i] + 1
            for i in range(rank)
        ]
        grouped = weight.reshape(group, -1, *weight.shape[1:])  # [G,K/G,C/G,..]

        def window(tap: tuple[int, ...]) -> np.ndarray:
            """The elements that one position of the filter meets, [N,G,C/G,pixels]."""
            cuts = [
                slice(t * d, t * d + (e - 1) * s + 1, s)
                for t, d, e, s in zip(tap, dilations, extents, strides, strict=True)
            ]
            return np.ascontiguousarray(padded[(slice(None), slice(None), *cuts)]).reshape(
                count, group, weight.shape[1], -1
            )

        taps = list(np.ndindex(weight.shape[2:]))
        if 1 < weight.shape[1] < _STACKED and len(taps) > 1:
            columns = np.concatenate([window(tap) for tap in taps], axis=2)
            result = np.concatenate([grouped[(..., *tap)] for tap in taps], axis=2) @ columns
        else:
            result = _multiplied(grouped[(..., *taps[0])], window(taps[0]))
            for tap in taps[1:]:
                result += _multiplied(grouped[(..., *tap)], window(tap))
        return result.reshape(count, -1, *extents)

    return multiply


def transposed_convolution(
    group: int,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    padding: Sequence[int],
) -> Multiply:
    """ConvTranspose of ONNX without a bias: [N,C,..] x [C,K/group,..] -> [N,K,..]."""

    def multiply(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        rank, sizes = x.ndim - 2, x.shape[2:]
        grouped = weight.reshape(group, -1, *weight.shape[1:]).swapaxes(1, 2)  # [G,K/G,C/G,..]
        pixels = x.reshape(len(x), group, grouped.shape[2], -1)
        spans = [
            (size - 1) * s + (k - 1) * d + 1 + more
            for size, s, k, d, more in zip(
                sizes, strides, weight.shape[2:], dilations, padding, strict=True
            )
        ]
        whole: np.ndarray = np.zeros(
            (len(x), group, grouped.shape[1], *spans), np.result_type(x.dtype, weight.dtype)
        )
        for tap in np.ndindex(weight.shape[2:]):
            places: list[slice] = [
                slice(t * d, t * d + (size - 1) * s + 1, s)
                for t, d, size, s in zip(tap, dilations, sizes, strides, strict=True)
            ]
            added = _multiplied(grouped[(..., *tap)], pixels)
            whole[(slice(None), slice(None), slice(None), *places)] += added.reshape(
                *added.shape[:3], *sizes
            )
        kept = [
            slice(first, span - last)
            for first, last, span in zip(pads[:rank], pads[rank:], spans, strict=True)
        ]
        result = whole[(slice(None), slice(None), slice(None), *kept)]
        return np.ascontiguousarray(result.reshape(len(x), -1, *result.shape[3:]))

    return multiply


def _multiplied(weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    """[G,K/G,C/G] x [N,G,C/G,pixels]; by broadcasting where a group is one channel."""
    # BLAS needs contiguous operands
    return weight * x if weight.shape[-1] == 1 else np.ascontiguousarray(weight) @ x


def terms_of(weight: np.ndarray) -> int:
    """The number of products in each element of a convolution's result."""
    return math.prod(weight.shape[1:])
