"""Pooling of volumes on a GPU against float64: padding, dilation and divisor along three axes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from tests.gpu.cases import ALL, TYPES
from tests.gpu.device import DepthAxis, KernelError, Library, Pool, Tensor
from tests.gpu.reference import LIMITS, relative_error

pytestmark = pytest.mark.gpu

MAX, AVERAGE = 0, 1
Axes = tuple[int, int, int]  # depth, height, width


@dataclass(frozen=True)
class Volumes:
    """x [n, *sizes, c]; pads in front of each axis and behind it."""

    n: int
    sizes: Axes
    c: int
    window: Axes
    front: Axes = (0, 0, 0)
    back: Axes = (0, 0, 0)
    strides: Axes = (1, 1, 1)
    dilations: Axes = (1, 1, 1)
    include_pad: bool = False
    gap: int = 0

    @property
    def extent(self) -> tuple[int, ...]:
        """O, P and Q."""
        axes = zip(
            self.sizes,
            self.front,
            self.back,
            self.window,
            self.dilations,
            self.strides,
            strict=True,
        )
        return tuple((x + a + b - d * (w - 1) - 1) // s + 1 for x, a, b, w, d, s in axes)


SHAPES = (
    Volumes(2, (6, 9, 8), 24, (2, 2, 2), strides=(2, 2, 2)),
    Volumes(1, (16, 33, 40), 32, (3, 3, 3), (1, 1, 1), (1, 1, 1), (2, 2, 2), gap=8),
    Volumes(2, (5, 7, 9), 6, (3, 2, 4), (1, 0, 2), (2, 1, 1), include_pad=True),
    Volumes(1, (9, 8, 7), 20, (2, 3, 2), (0, 2, 0), (0, 2, 1), (1, 3, 2), (4, 2, 3), gap=4),
    Volumes(1, (4, 5, 6), 7, (4, 4, 5), (1, 1, 1), (2, 1, 2), include_pad=True, gap=1),
    Volumes(3, (2, 1, 50), 8, (2, 1, 3), (1, 0, 1), (1, 0, 1), (3, 1, 2)),
)


def _reference(x: np.ndarray, shape: Volumes, kind: int) -> np.ndarray:
    """Window by window; what lies outside the volume is not a number."""
    around = [(0, 0), *zip(shape.front, shape.back, strict=True), (0, 0)]
    padded = np.pad(x.astype(np.float64), around, constant_values=np.nan)
    taps = []
    for tap in itertools.product(*map(range, shape.window)):
        places = [
            slice(at * dilation, at * dilation + (count - 1) * stride + 1, stride)
            for at, dilation, stride, count in zip(
                tap, shape.dilations, shape.strides, shape.extent, strict=True
            )
        ]
        taps.append(padded[:, *places])
    values = np.stack(taps)
    inside = np.isfinite(values)
    if kind == MAX:
        return np.asarray(np.where(inside, values, -np.inf).max(0))
    counted = len(taps) if shape.include_pad else inside.sum(0)
    return np.asarray(np.where(inside, values, 0).sum(0) / counted)


def _arguments(shape: Volumes, kind: int, source: Tensor, output: Tensor) -> Pool:
    (d, h, w), (o, p, q) = shape.sizes, shape.extent
    return Pool(
        kind,
        shape.n,
        h,
        w,
        shape.c,
        p,
        q,
        *shape.window[1:],
        *shape.front[1:],
        *shape.back[1:],
        *shape.strides[1:],
        *shape.dilations[1:],
        shape.include_pad,
        source.pointer,
        output.pointer,
        source.pitch,
        output.pitch,
        DepthAxis(
            d,
            shape.window[0],
            o,
            shape.front[0],
            shape.back[0],
            shape.strides[0],
            shape.dilations[0],
        ),
    )


@pytest.mark.parametrize("kind", [MAX, AVERAGE], ids=["max", "average"])
@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pool_of_volumes(library: Library, shape: Volumes, dtype: DType, kind: int) -> None:
    random = np.random.default_rng(shape.c)
    x = random.normal(0, 1, (shape.n, *shape.sizes, shape.c)).astype(dtype.numpy)
    source = Tensor(library, x, shape.gap)
    result = np.zeros((shape.n, *shape.extent, shape.c), dtype.numpy)
    output = Tensor(library, result, shape.gap, empty=True)
    arguments = _arguments(shape, kind, source, output)
    kernel = library.kernel(_instance(dtype))
    kernel.check(arguments)
    expected = _reference(x, shape, kind)
    for captured in (False, True):
        kernel.launch(arguments, captured)
        actual = output.read()
        if kind == MAX:
            assert np.array_equal(actual.astype(np.float64), expected)
        else:
            assert relative_error(actual, expected) <= LIMITS[dtype]


def test_max_keeps_nan_of_every_slice(library: Library) -> None:
    x = np.zeros((1, 4, 4, 4, 8), np.float16)
    x[0, 3, 1, 1, 3] = np.nan
    shape = Volumes(1, (4, 4, 4), 8, (2, 2, 2), strides=(2, 2, 2))
    source = Tensor(library, x)
    output = Tensor(library, np.zeros((1, 2, 2, 2, 8), np.float16), empty=True)
    library.kernel(_instance(DType.F16)).launch(_arguments(shape, MAX, source, output))
    assert np.array_equal(np.argwhere(np.isnan(output.read())), [[0, 1, 0, 0, 3]])


def test_a_window_without_slices_is_refused(library: Library) -> None:
    pool = Pool(MAX, 1, 4, 4, 8, 2, 2, 2, 2, 0, 0, 0, 0, 2, 2, 1, 1)
    pool.depth = DepthAxis(4, 0, 2, 0, 0, 2, 1)
    with pytest.raises(KernelError, match="not positive"):
        library.kernel(_instance(DType.F16)).check(pool)


def _instance(dtype: DType) -> Instance:
    return next(
        instance
        for instance in ALL
        if instance.config.family is named("pool") and instance.dtype is dtype
    )
