"""Images sampled at given positions, and what that should give, in numpy: positions in float32,
values in float64."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxbolt.codegen.render import Instance
from onnxbolt.sampling import OUTSIDE, SAMPLE_MODES
from tests.gpu.device import GridSample, Library, SampledLevel, Tensor
from tests.gpu.operands import Problem, random_of


@dataclass(frozen=True)
class Samples:
    """Queries of heads of `size` channels to levels [h, w], each with so many points. Positions
    reach `reach` times as far as the image. `gap`: elements between rows."""

    mode: str
    outside: str
    align_corners: bool
    grid_f32: bool
    n: int
    queries: int
    heads: int
    size: int
    levels: tuple[tuple[int, int], ...]
    points: int = 1
    reach: float = 1.3
    gap: int = 0

    @property
    def weighted(self) -> bool:
        """True for deformable attention."""
        return len(self.levels) * self.points > 1

    @property
    def rows(self) -> int:
        return sum(h * w for h, w in self.levels)


_IMAGES: tuple[tuple[Any, ...], ...] = (
    (2, 35, 1, 24, ((7, 9),), 1, 1.3, 0),
    (1, 50, 1, 3, ((5, 8),), 1, 1.0, 1),
    (1, 20, 1, 8, ((1, 6),), 1, 3.0, 8),
    (3, 9, 1, 1, ((4, 4),), 1, 1.1, 0),
)
_WAYS = tuple(itertools.product(SAMPLE_MODES, OUTSIDE, (False, True)))
SHAPES = (
    *(
        Samples(*way, grid_f32, *image)
        for way in _WAYS
        for grid_f32, image in zip((True, False, True, True), _IMAGES, strict=True)
    ),
    Samples("linear", "zeros", False, True, 2, 30, 8, 32, ((10, 12), (5, 6), (3, 3)), 4),
    Samples("linear", "zeros", False, False, 1, 17, 4, 16, ((6, 4),), 3, 1.1, 8),
    Samples("linear", "border", False, True, 1, 5, 3, 6, ((8, 8), (4, 4), (2, 2), (1, 1)), 2),
    Samples("nearest", "zeros", False, True, 2, 7, 2, 5, ((3, 9), (2, 4)), 1, 1.2, 1),
)


def sample_problem(library: Library, instance: Instance, shape: Samples) -> Problem:
    """One sampling on the device."""
    rng, element = random_of(instance, shape), instance.dtype.numpy
    x = rng.normal(0, 1, (shape.n, shape.rows, shape.heads * shape.size)).astype(element)
    places = (shape.n, shape.queries, shape.heads, len(shape.levels) * shape.points)
    grid = rng.uniform(-shape.reach, shape.reach, (*places, 2))
    grid = grid.astype(np.float32 if shape.grid_f32 else element)
    weights = rng.dirichlet(np.ones(places[-1]), places[:-1]).astype(element)
    y = np.zeros((shape.n, shape.queries, shape.heads * shape.size), instance.out.numpy)
    source, output = Tensor(library, x, shape.gap), Tensor(library, y, shape.gap, empty=True)
    positions, factors = Tensor(library, grid), Tensor(library, weights)
    levels = (SampledLevel * 8)(*(SampledLevel(*level) for level in starts(shape.levels)))
    arguments = GridSample(
        *(SAMPLE_MODES.index(shape.mode), OUTSIDE.index(shape.outside)),
        *(shape.align_corners, shape.grid_f32),
        *(shape.n, shape.queries, shape.heads, shape.size, len(shape.levels), shape.points),
        *(shape.rows, levels, source.pointer, positions.pointer),
        factors.pointer if shape.weighted else None,
        *(output.pointer, source.pitch, output.pitch),
    )
    expected = sampled(x, grid.astype(np.float32), weights, shape)
    return Problem(arguments, output, expected, (source, positions, factors))


def starts(levels: tuple[tuple[int, int], ...]) -> list[tuple[int, int, int]]:
    """Height, width and first row of each level."""
    ends = itertools.accumulate((h * w for h, w in levels), initial=0)
    return [(h, w, first) for (h, w), first in zip(levels, ends, strict=False)]


def sampled(x: np.ndarray, grid: np.ndarray, weights: np.ndarray, shape: Samples) -> np.ndarray:
    """y [n, queries, channels] in float64."""
    heads = x.astype(np.float64).reshape(shape.n, shape.rows, shape.heads, shape.size)
    y = np.zeros((shape.n, shape.queries, shape.heads, shape.size))
    for level, (h, w, first) in enumerate(starts(shape.levels)):
        image = heads[:, first : first + h * w].reshape(shape.n, h, w, shape.heads, shape.size)
        for i in range(level * shape.points, (level + 1) * shape.points):
            factor = weights[..., i, None].astype(np.float64) if shape.weighted else 1.0
            y += factor * _at(image, grid[..., i, :], shape)
    return y.reshape(shape.n, shape.queries, -1)


def _at(image: np.ndarray, grid: np.ndarray, shape: Samples) -> np.ndarray:
    """The pixels of [n, h, w, heads, size] at [n, queries, heads, 2]."""
    (h, w), result = image.shape[1:3], 0.0
    rows, columns = (_weights(grid[..., axis], size, shape) for axis, size in ((1, h), (0, w)))
    n, head = np.arange(shape.n)[:, None, None], np.arange(shape.heads)
    for (r, down), (c, right) in itertools.product(rows, columns):
        result = result + (down * right)[..., None] * image[n, r, c, head]
    return np.asarray(result)


def _weights(at: np.ndarray, size: int, shape: Samples) -> list[tuple[np.ndarray, np.ndarray]]:
    """The pixels of an axis beside each position, and their weights."""
    one = np.float32(1)
    if shape.align_corners:
        place = (at + one) * np.float32(0.5) * np.float32(size - 1)
    else:
        place = ((at + one) * np.float32(size) - one) * np.float32(0.5)
    if shape.mode == "nearest":
        pixels = [(np.rint(place), np.ones(place.shape))]
    else:
        first = np.floor(place)
        right = (place - first).astype(np.float64)
        pixels = [(first, 1 - right), (first + 1, right)]
    return [_inside(pixel.astype(np.int64), weight, size, shape) for pixel, weight in pixels]


def _inside(
    pixel: np.ndarray, weight: np.ndarray, size: int, shape: Samples
) -> tuple[np.ndarray, np.ndarray]:
    if shape.outside == "zeros":
        weight = weight * ((pixel >= 0) & (pixel < size))
    if shape.outside == "reflection":
        # mirrors stand at the centres of the outermost pixels, or at their edges
        turn = max(2 * (size - 1), 1) if shape.align_corners else 2 * size
        pixel = pixel % turn
        mirrored = turn - pixel - (0 if shape.align_corners else 1)
        pixel = np.where(pixel < size, pixel, mirrored)
    return np.clip(pixel, 0, size - 1), weight
