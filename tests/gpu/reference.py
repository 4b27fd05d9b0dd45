"""The results that kernels should compute, in float64 with numpy; epilogue steps are those of the
package's registry."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxbolt import tolerances
from onnxbolt.dtypes import INTEGERS, DType
from onnxbolt.epilogues import EPILOGUES
from tests.gpu.cases import PARAMS, ConvShape

LIMITS = tolerances.KERNEL  # relative L2 error of one kernel on inputs that are already rounded
_FEW = 1e-3  # share of codes that may differ, since they lie near the middle of two


def rounded(values: np.ndarray, dtype: DType) -> np.ndarray:
    """`values` as a kernel of `dtype` multiplies them; float32 keeps the ten bits of TF32."""
    if dtype is DType.F32:
        return (values.astype(np.float32).view(np.uint32) & 0xFFFFE000).view(np.float32)
    return values.astype(dtype.numpy)


def drawn(rng: np.random.Generator, sizes: Sequence[int], dtype: DType) -> np.ndarray:
    """Normal values, or codes of the whole range."""
    values = rng.normal(0, 1, sizes)
    if dtype in INTEGERS:
        limits = np.iinfo(dtype.numpy)
        values = np.clip(np.rint(values * 100), limits.min, limits.max)
    return values.astype(dtype.numpy)


def assert_codes(codes: np.ndarray, expected: np.ndarray, dtype: DType) -> None:
    """Fail where a code is more than one step off, or more than a few are."""
    apart = np.abs(codes.astype(np.float64) - expected)
    step = np.maximum(1, np.abs(expected) / 8) if dtype is DType.E4M3 else 1
    assert (apart <= step).all()
    assert np.count_nonzero(apart) <= max(1, _FEW * apart.size)


def epilogue(
    accumulator: np.ndarray,
    chain: Sequence[str],
    vectors: Sequence[np.ndarray],
    tensors: Sequence[np.ndarray],
    half: np.ndarray | None = None,
    rotation: np.ndarray | None = None,
) -> np.ndarray:
    """The chain's steps on float64, operands taken in order; `half` is what a gate multiplies
    by, without its vector, `rotation` cos and sin in the places of each pair of columns."""
    operands = {"vector": iter(vectors), "tensor": iter(tensors)}
    for step in chain:
        row = EPILOGUES[step]
        if row.operand == "rotation":
            assert rotation is not None
            pairs = (each.reshape(len(each), -1, 2) for each in (accumulator, rotation))
            accumulator = row.reference(*pairs).reshape(accumulator.shape)
            continue
        operand = next(operands[row.operand]).astype(np.float64) if row.operand else None
        if row.gates:
            assert half is not None
            operand = half if operand is None else half + operand
        accumulator = row.reference(accumulator, operand, *PARAMS.get(step, ()))
    return accumulator


def output_extent(shape: ConvShape) -> tuple[int, int]:
    """P and Q of a convolution."""
    top, left, bottom, right = shape.pads
    (stride_h, stride_w), (dilation_h, dilation_w) = shape.strides, shape.dilations
    return (
        (shape.h + top + bottom - dilation_h * (shape.r - 1) - 1) // stride_h + 1,
        (shape.w + left + right - dilation_w * (shape.s - 1) - 1) // stride_w + 1,
    )


def convolve(x: np.ndarray, weight: np.ndarray, shape: ConvShape) -> np.ndarray:
    """NHWC x KRSC -> NPQK in float64, one GEMM per filter position."""
    top, left, bottom, right = shape.pads
    padded = np.pad(x.astype(np.float64), ((0, 0), (top, bottom), (left, right), (0, 0)))
    p, q = output_extent(shape)
    result = np.zeros((shape.n, p, q, weight.shape[0]))
    for r in range(shape.r):
        for s in range(shape.s):
            pixels = taps(
                padded, r * shape.dilations[0], s * shape.dilations[1], (p, q), shape.strides
            )
            result += pixels @ weight[:, r, s, :].astype(np.float64).T
    return result


def taps(
    padded: np.ndarray, top: int, left: int, extent: tuple[int, int], strides: tuple[int, int]
) -> np.ndarray:
    """The pixels that one filter position meets, as [N, P, Q, C]."""
    return padded[
        :,
        top : top + (extent[0] - 1) * strides[0] + 1 : strides[0],
        left : left + (extent[1] - 1) * strides[1] + 1 : strides[1],
    ]


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """||y - y0|| / ||y0||, ||y|| itself where y0 is zero; infinite where non-finite values
    differ in place or sign."""
    actual = actual.astype(np.float64)
    finite = np.isfinite(expected)
    if (
        not np.array_equal(actual[~finite], expected[~finite], equal_nan=True)
        or not np.isfinite(actual[finite]).all()
    ):
        return float("inf")
    norm = float(np.linalg.norm(expected[finite]))
    return float(np.linalg.norm(actual[finite] - expected[finite])) / (norm or 1.0)
