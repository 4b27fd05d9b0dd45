"""NHWC pooling on a GPU against float64: ONNX's padding, dilation, ceil_mode and divisor; widths
of access; large windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import INTEGERS, DType
from onnxbolt.families import named
from tests.gpu.cases import ALL, TYPES
from tests.gpu.device import KernelError, Library, Pool, Tensor
from tests.gpu.reference import LIMITS, drawn, relative_error

pytestmark = pytest.mark.gpu

MAX, AVERAGE = 0, 1


@dataclass(frozen=True)
class PoolShape:
    """x [n, h, w, c]; pads top, left, bottom, right."""

    n: int
    h: int
    w: int
    c: int
    window: tuple[int, int]
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    ceil_mode: bool = False
    include_pad: bool = False
    gap: int = 0

    @property
    def extent(self) -> tuple[int, int]:
        """P and Q as ONNX defines them; a window that would begin in the padding behind the
        image is none."""
        sizes = []
        for axis, size in enumerate((self.h, self.w)):
            before, after = self.pads[axis], self.pads[axis + 2]
            free = size + before + after - self.dilations[axis] * (self.window[axis] - 1) - 1
            count = (
                -(-free // self.strides[axis]) + 1
                if self.ceil_mode
                else free // self.strides[axis] + 1
            )
            sizes.append(
                count - 1
                if self.ceil_mode and (count - 1) * self.strides[axis] >= size + before
                else count
            )
        return sizes[0], sizes[1]


SHAPES = (
    PoolShape(2, 15, 17, 24, (3, 3), (1, 1, 1, 1), (2, 2)),
    PoolShape(1, 14, 14, 20, (2, 2), strides=(2, 2), gap=4),
    PoolShape(2, 9, 13, 6, (3, 2), (0, 1, 1, 0), include_pad=True),
    PoolShape(1, 11, 10, 7, (3, 3), (1, 0, 2, 1), (2, 3), include_pad=True, gap=1),
    PoolShape(1, 13, 12, 16, (3, 3), strides=(2, 2), ceil_mode=True),
    PoolShape(1, 10, 10, 8, (3, 3), (1, 1, 1, 1), (2, 2), ceil_mode=True, include_pad=True),
    PoolShape(1, 16, 15, 8, (3, 2), (2, 1, 2, 1), dilations=(2, 3)),
    PoolShape(2, 7, 7, 512, (7, 7)),
    PoolShape(1, 112, 96, 64, (112, 96), gap=8),
    PoolShape(3, 33, 41, 5, (33, 41)),
    PoolShape(1, 20, 20, 40, (8, 8), (3, 3, 4, 4), (4, 4)),
    PoolShape(1, 1, 50, 8, (1, 3), (0, 1, 0, 1), (1, 2)),
    PoolShape(3, 1, 1024, 128, (1, 1024)),
)


def _reference(x: np.ndarray, shape: PoolShape, kind: int) -> np.ndarray:
    """Window by window: NaN marks what lies outside the image, infinity what lies outside the
    padding."""
    (p, q), (r, s) = shape.extent, shape.window
    top, left, bottom, right = shape.pads
    padded = np.pad(
        x.astype(np.float64), ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=np.nan
    )
    padded = np.pad(
        padded,
        ((0, 0), (0, r * shape.dilations[0]), (0, s * shape.dilations[1]), (0, 0)),
        constant_values=np.inf,
    )
    taps = np.stack(
        [
            padded[
                :,
                i * shape.dilations[0] :: shape.strides[0],
                j * shape.dilations[1] :: shape.strides[1],
            ][:, :p, :q]
            for i in range(r)
            for j in range(s)
        ]
    )
    inside = np.isfinite(taps)
    if kind == MAX:
        return np.where(inside, taps, -np.inf).max(0)
    counted = ~np.isinf(taps) if shape.include_pad else inside
    return np.where(inside, taps, 0).sum(0) / counted.sum(0)


@pytest.mark.parametrize("kind", [MAX, AVERAGE], ids=["max", "average"])
@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pool(library: Library, shape: PoolShape, dtype: DType, kind: int) -> None:
    x = (
        np.random.default_rng(shape.h * shape.c)
        .normal(0, 1, (shape.n, shape.h, shape.w, shape.c))
        .astype(dtype.numpy)
    )
    source, (p, q) = Tensor(library, x, shape.gap), shape.extent
    output = Tensor(library, np.zeros((shape.n, p, q, shape.c), dtype.numpy), shape.gap, empty=True)
    arguments = _arguments(shape, kind, source, output)
    kernel = library.kernel(_instance(dtype))
    kernel.check(arguments)
    for captured in (False, True):
        kernel.launch(arguments, captured)
        actual, expected = output.read(), _reference(x, shape, kind)
        assert (
            np.array_equal(actual.astype(np.float64), expected)
            if kind == MAX
            else relative_error(actual, expected) <= LIMITS[dtype]
        )


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_max_of_codes(library: Library, shape: PoolShape, dtype: DType) -> None:
    """All of them, and images of the least one alone, around which nothing is larger."""
    limits = np.iinfo(dtype.numpy)
    sizes = (shape.n, shape.h, shape.w, shape.c)
    rng = np.random.default_rng(shape.h * shape.c)
    for x in (
        rng.integers(limits.min, limits.max + 1, sizes).astype(dtype.numpy),
        np.full(sizes, limits.min, dtype.numpy),
    ):
        source, (p, q) = Tensor(library, x, shape.gap), shape.extent
        codes = np.zeros((shape.n, p, q, shape.c), dtype.numpy)
        output = Tensor(library, codes, shape.gap, empty=True)
        arguments = _arguments(shape, MAX, source, output)
        kernel = library.kernel(_instance(dtype))
        kernel.check(arguments)
        kernel.launch(arguments)
        np.testing.assert_array_equal(output.read(), _reference(x, shape, MAX))


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s.window == (s.h, s.w)], ids=str)
def test_mean_of_codes(library: Library, shape: PoolShape, dtype: DType) -> None:
    """As numbers in fp32, whose sums are exact."""
    sizes = (shape.n, shape.h, shape.w, shape.c)
    x = drawn(np.random.default_rng(shape.h * shape.c), sizes, dtype)
    source = Tensor(library, x, shape.gap)
    means = np.zeros((shape.n, 1, 1, shape.c), np.float32)
    output = Tensor(library, means, shape.gap, empty=True)
    library.kernel(_instance(dtype, DType.F32)).launch(_arguments(shape, AVERAGE, source, output))
    expected = x.astype(np.float64).mean((1, 2), keepdims=True)
    np.testing.assert_allclose(output.read(), expected, rtol=2.0**-22, atol=0)


def _arguments(shape: PoolShape, kind: int, source: Tensor, output: Tensor) -> Pool:
    top, left, bottom, right = shape.pads
    return Pool(
        kind,
        shape.n,
        shape.h,
        shape.w,
        shape.c,
        *shape.extent,
        *shape.window,
        top,
        left,
        bottom,
        right,
        *shape.strides,
        *shape.dilations,
        shape.include_pad,
        source.pointer,
        output.pointer,
        source.pitch,
        output.pitch,
    )


def test_max_keeps_nan(library: Library) -> None:
    x = np.zeros((1, 4, 4, 8), np.float16)
    x[0, 1, 1, 3] = np.nan
    source, output = (
        Tensor(library, x),
        Tensor(library, np.zeros((1, 2, 2, 8), np.float16), empty=True),
    )
    arguments = Pool(
        MAX,
        1,
        4,
        4,
        8,
        2,
        2,
        2,
        2,
        0,
        0,
        0,
        0,
        2,
        2,
        1,
        1,
        0,
        source.pointer,
        output.pointer,
        source.pitch,
        output.pitch,
    )
    library.kernel(_instance(DType.F16)).launch(arguments)
    assert np.array_equal(np.argwhere(np.isnan(output.read())), [[0, 0, 0, 3]])


def test_empty_window_is_refused(library: Library) -> None:
    with pytest.raises(KernelError, match="not positive"):
        library.kernel(_instance(DType.F16)).check(Pool(MAX, 1, 4, 4, 8, 2, 2, 0, 2))


def _instance(dtype: DType, out: DType | None = None) -> Instance:
    return next(
        instance
        for instance in ALL
        if instance.config.family is named("pool")
        and (instance.dtype, instance.out) == (dtype, out or dtype)
    )
