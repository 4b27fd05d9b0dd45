"""Channels moved to pixels and back, and what they should be, in numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxbolt.codegen.render import Instance
from tests.gpu.device import Library, PixelShuffle, Tensor
from tests.gpu.operands import Operands, Problem, random_of
from tests.gpu.reference import epilogue


@dataclass(frozen=True)
class Shuffle:
    """Images of [n, h, w, block^2 c] and [n, block h, block w, c]; elements between the pixels of x
    and of y."""

    to_space: bool
    by_channel: bool
    n: int
    h: int
    w: int
    c: int
    block: int
    gaps: tuple[int, int] = (0, 0)

    @property
    def small(self) -> tuple[int, int, int, int]:
        return self.n, self.h, self.w, self.c * self.block**2

    @property
    def large(self) -> tuple[int, int, int, int]:
        return self.n, self.h * self.block, self.w * self.block, self.c


_SIZES = (
    (2, 3, 5, 16, 2, (0, 0)),
    (1, 7, 4, 1, 2, (4, 0)),  # a text detector's map: one channel, its padding unread
    (1, 5, 6, 3, 4, (0, 0)),
    (2, 4, 4, 8, 3, (8, 8)),
    (1, 2, 9, 20, 2, (4, 4)),
    (1, 3, 3, 5, 2, (0, 1)),
    (3, 1, 1, 64, 2, (0, 0)),
    (1, 1, 130, 2, 2, (0, 6)),
    (1, 6, 2, 4, 1, (0, 0)),
)
SHAPES = tuple(
    Shuffle(to_space, by_channel, *size)
    for to_space in (True, False)
    for by_channel in (False, True)
    for size in _SIZES
)


def shuffle_problem(library: Library, instance: Instance, shape: Shuffle) -> Problem:
    """One rearrangement on the device."""
    rng = random_of(instance, shape)
    source = shape.small if shape.to_space else shape.large
    x = rng.normal(0, 1, source).astype(instance.dtype.numpy)
    moved = shuffled(x, shape)
    before, behind = shape.gaps
    stored = Tensor(library, x, before)
    output = Tensor(library, np.zeros(moved.shape, instance.out.numpy), behind, empty=True)
    operands = Operands(library, instance, moved.shape, behind, rng)
    arguments = PixelShuffle(
        *(shape.to_space, shape.by_channel, shape.n, shape.h, shape.w, shape.c, shape.block),
        *(stored.pointer, output.pointer, stored.pitch, output.pitch, operands.arguments),
    )
    expected = epilogue(
        moved.astype(np.float64), instance.chain, operands.vectors, operands.tensors
    )
    return Problem(arguments, output, expected, (stored, operands))


def shuffled(x: np.ndarray, shape: Shuffle) -> np.ndarray:
    """x [N, H, W, C] with channels moved to pixels or back."""
    n, h, w, c, b = shape.n, shape.h, shape.w, shape.c, shape.block
    if shape.to_space:
        apart = x.reshape(n, h, w, *((c, b, b) if shape.by_channel else (b, b, c)))
        order = (0, 1, 4, 2, 5, 3) if shape.by_channel else (0, 1, 3, 2, 4, 5)
        return apart.transpose(order).reshape(shape.large)
    apart = x.reshape(n, h, b, w, b, c)
    order = (0, 1, 3, 5, 2, 4) if shape.by_channel else (0, 1, 3, 2, 4, 5)
    return apart.transpose(order).reshape(shape.small)
