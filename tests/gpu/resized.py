"""Resizings of odd sizes, and what they should compute, in numpy: coordinates in float32 as ONNX
Runtime has them, values in float64."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass

import numpy as np

from onnxbolt.codegen.render import Instance
from onnxbolt.sampling import COORDINATES, ROUNDINGS, Sampling
from tests.gpu.device import Library, Resize, Tensor
from tests.gpu.operands import Operands, Problem, random_of
from tests.gpu.reference import drawn, epilogue

_HALF = np.float32(0.5)


@dataclass(frozen=True)
class ResizeShape:
    """x [n, h, w, c], and what becomes of height and width: `scales`. `tensor` is height and width
    of the epilogue's tensors, None: those of the result."""

    sampling: Sampling
    n: int
    h: int
    w: int
    c: int
    scales: tuple[float, float]
    gap: int = 0
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    tensor: tuple[int, int] | None = None

    @property
    def y_extent(self) -> tuple[int, int]:
        """Height and width of y, to which resized image and tensors are broadcast."""
        (p, q), (h, w) = self.extent, self.tensor or self.extent
        return max(p, h), max(q, w)

    @property
    def extent(self) -> tuple[int, int]:
        """P and Q."""
        return (
            int(np.float32(self.scales[0]) * np.float32(self.h)),
            int(np.float32(self.scales[1]) * np.float32(self.w)),
        )


_NEAREST = [
    Sampling("nearest", coordinates, rounding, "scales")
    for coordinates, rounding in itertools.product(COORDINATES, ROUNDINGS)
]
_LINEAR = [Sampling("linear", coordinates, ROUNDINGS[0], "scales") for coordinates in COORDINATES]
_SIZES = (
    ((2, 7, 9, 24), (2.0, 2.0), 0),
    ((1, 5, 8, 20), (1.5, 2.5), 4),
    ((1, 13, 12, 6), (0.5, 0.6), 0),
    ((3, 4, 1, 7), (3.0, 4.0), 1),
    ((1, 32, 33, 8), (1 / 32, 1.0), 0),
    ((1, 10, 10, 3), (4 / 3, 0.75), 0),
)
_CUBIC = [Sampling("cubic", coordinates, ROUNDINGS[0], "scales") for coordinates in COORDINATES]
SHAPES = (
    *(
        ResizeShape(sampling, *size, scales, gap)
        for sampling in (*_NEAREST, *_LINEAR)
        for size, scales, gap in _SIZES
    ),
    *(
        ResizeShape(sampling, *size, scales, gap, a, exclude)
        for sampling, (a, exclude) in itertools.product(_CUBIC, ((-0.75, False), (-0.5, True)))
        for size, scales, gap in _SIZES
    ),
)
# behind an epilogue: the tensors have one row or column, or the resized image has
BROADCAST = tuple(
    ResizeShape(_LINEAR[0], *size, scales, gap, tensor=tensor)
    for size, scales, gap, tensor in (
        ((2, 7, 9, 24), (2.0, 2.0), 0, None),
        ((2, 7, 9, 24), (2.0, 2.0), 8, (1, 18)),
        ((1, 5, 8, 20), (1.5, 2.5), 4, (7, 1)),
        ((3, 8, 8, 8), (1 / 8, 1.0), 0, (5, 8)),
        ((1, 8, 4, 6), (1 / 8, 0.25), 2, (3, 7)),
        ((2, 3, 3, 40), (4.0, 4.0), 0, (1, 1)),
    )
)


def resize_problem(library: Library, instance: Instance, shape: ResizeShape) -> Problem:
    """An image in another height and width, on the device."""
    sizes = (shape.n, shape.h, shape.w, shape.c)
    x = drawn(random_of(instance, shape), sizes, instance.dtype)
    (p, q), (y_h, y_w) = shape.extent, shape.y_extent
    h, w = shape.tensor or shape.extent
    y = np.zeros((shape.n, y_h, y_w, shape.c), instance.out.numpy)
    rng = random_of(instance, (shape, "operands"))
    operands = Operands(library, instance, (shape.n, h, w, shape.c), shape.gap, rng)
    tensors = ctypes.c_int * 2
    source, output = Tensor(library, x, shape.gap), Tensor(library, y, shape.gap, empty=True)
    arguments = Resize(
        *shape.sampling.numbers,
        shape.n,
        shape.h,
        shape.w,
        shape.c,
        p,
        q,
        *shape.scales,
        source.pointer,
        output.pointer,
        source.pitch,
        output.pitch,
        shape.cubic_coeff_a,
        shape.exclude_outside,
        y_h,
        y_w,
        tensors(h, h),
        tensors(w, w),
        operands.arguments,
    )
    expected = epilogue(
        np.broadcast_to(resize(x, shape), y.shape),
        instance.chain,
        operands.vectors,
        operands.tensors,
    )
    return Problem(arguments, output, expected, (source, operands))


def resize(x: np.ndarray, shape: ResizeShape) -> np.ndarray:
    """x [n, h, w, c] in the other height and width, float64."""
    rows, columns = (_axis(shape, axis) for axis in (0, 1))
    return np.einsum("ph,qw,nhwc->npqc", rows, columns, x.astype(np.float64), optimize=True)


def _axis(shape: ResizeShape, axis: int) -> np.ndarray:
    """The weight [output, input] of each pixel of one axis."""
    size, result = (shape.h, shape.w)[axis], shape.extent[axis]
    at = _positions(
        shape.sampling.coordinates,
        np.arange(result, dtype=np.float32),
        size,
        result,
        np.float32(shape.scales[axis]),
    )
    pixels = np.arange(size)
    if shape.sampling.mode == "linear":
        inside = np.clip(at, 0, size - 1).astype(np.float64)
        return np.maximum(0, 1 - np.abs(inside[:, None] - pixels))
    if shape.sampling.mode == "cubic":
        return _cubic(at.astype(np.float64), size, shape)
    rounded = {
        "floor": np.floor(at),
        "ceil": np.ceil(at),
        "round_prefer_floor": np.ceil(at - _HALF),
        "round_prefer_ceil": np.floor(at + _HALF),
    }[shape.sampling.rounding]
    return (np.clip(rounded, 0, size - 1)[:, None] == pixels).astype(np.float64)


def _cubic(at: np.ndarray, size: int, shape: ResizeShape) -> np.ndarray:
    """Keys' weights of the four pixels around each position; those outside count for the pixel
    at the border, or not at all."""
    a, result = shape.cubic_coeff_a, np.zeros((len(at), size))
    for pixel in (np.floor(at) + offset for offset in (-1, 0, 1, 2)):
        d = np.abs(at - pixel)
        weight = np.where(
            d <= 1, (a + 2) * d**3 - (a + 3) * d**2 + 1, a * (d**3 - 5 * d**2 + 8 * d - 4)
        )
        inside = np.clip(pixel, 0, size - 1)
        counts = (inside == pixel) if shape.exclude_outside else True
        np.add.at(result, (np.arange(len(at)), inside.astype(int)), weight * counts)
    return result / result.sum(1, keepdims=True)


def _positions(
    coordinates: str, output: np.ndarray, size: int, result: int, scale: np.float32
) -> np.ndarray:
    """The position of each output pixel in the input, in float32."""
    if coordinates == "asymmetric":
        return output / scale
    if coordinates == "align_corners":
        return (
            np.zeros_like(output)
            if result == 1
            else output * np.float32(size - 1) / np.float32(result - 1)
        )
    if coordinates == "pytorch_half_pixel" and result == 1:
        return np.zeros_like(output)
    return (output + _HALF) / scale - _HALF
