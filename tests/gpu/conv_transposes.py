"""The problems on which the GPU tests run kernels of transposed convolutions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from onnxbolt.codegen.render import Instance
from tests.gpu.cases import ConvShape
from tests.gpu.device import Conv, Library, PhasedPixels, Tensor
from tests.gpu.operands import Operands, Problem, access, random_of
from tests.gpu.reference import convolve, epilogue, output_extent, rounded


@dataclass(frozen=True)
class Shape:
    """Images of x, channels of x and of a phase in accesses, taps, strides, phases in front of y's
    first pixel, pixels that y lacks of the last turn, groups, accesses between pixels, zeros behind
    the filter, and images of y for one of x."""

    image: tuple[int, int, int]
    c: int
    k: int
    taps: tuple[int, int]
    strides: tuple[int, int]
    cut: tuple[int, int] = (0, 0)
    short: tuple[int, int] = (0, 0)
    groups: int = 1
    gap: int = 0
    zeros: tuple[int, int] = (0, 0)
    slices: int = 1


SHAPES = (
    Shape((1, 1, 1), 1, 1, (1, 1), (2, 2)),
    Shape((2, 13, 9), 8, 8, (1, 1), (2, 2)),
    Shape((3, 17, 33), 8, 16, (2, 2), (2, 2), (1, 1), (1, 1)),
    Shape((2, 15, 31), 5, 8, (2, 2), (2, 2), (1, 0), (0, 1), gap=2),
    Shape((1, 20, 11), 9, 32, (3, 1), (3, 5), (2, 4), (0, 3)),
    Shape((2, 1, 501), 16, 8, (1, 2), (1, 8), (0, 4), (0, 4)),
    Shape((2, 11, 12), 16, 16, (2, 2), (2, 2), (1, 1), (1, 1), groups=2),
    Shape((2, 19, 14), 8, 5, (2, 2), (2, 2), (1, 1), (1, 1)),
    Shape((9, 31, 33), 8, 8, (1, 1), (4, 4)),
    Shape((5, 40, 41), 16, 8, (2, 2), (2, 2), (1, 1), (1, 1), zeros=(1, 1)),
    Shape((3, 33, 29), 9, 16, (2, 3), (3, 2), (1, 0), (0, 1), zeros=(2, 1)),
    Shape((1, 25, 27), 16, 32, (2, 2), (2, 2), groups=2, zeros=(0, 1)),
    Shape((6, 13, 9), 8, 8, (1, 1), (2, 2), slices=2),
    Shape((9, 16, 20), 4, 4, (1, 1), (2, 2), slices=2, gap=1),
    Shape((4, 11, 10), 8, 16, (2, 1), (2, 3), (1, 0), (1, 1), slices=3, zeros=(1, 0)),
    Shape((3, 9, 14), 8, 16, (1, 1), (1, 1), slices=4),
    Shape((4, 11, 12), 16, 16, (1, 1), (2, 2), groups=2, slices=2),
)


def problems(library: Library, instance: Instance) -> list[Problem]:
    """Those with as many images of y for one of x as the kernel stores: one or several."""
    shapes = (shape for shape in SHAPES if (shape.slices > 1) == stores_slices(instance))
    return [problem(library, instance, shape) for shape in shapes]


def stores_slices(instance: Instance) -> bool:
    """True if the kernel stores several images of y for one of x."""
    return bool(instance.config.named()["slices"])


def problem(library: Library, instance: Instance, shape: Shape) -> Problem:
    """y of a convolution of all phases, moved to the pixels by numpy."""
    rng, dtype = random_of(instance, shape), instance.dtype
    reads, writes = access(instance.config)
    n, h, w = shape.image
    phases = shape.slices * shape.strides[0] * shape.strides[1]
    c, width = shape.c * reads * shape.groups, shape.k * writes * shape.groups
    convolution = ConvShape(n, h, w, c, width * phases, *shape.taps)
    pads = (shape.taps[0] - 1, shape.taps[1] - 1)
    convolution = replace(convolution, pads=(*pads, *pads))
    p, q = output_extent(convolution)
    height, columns = (
        extent * stride - cut - short
        for extent, stride, cut, short in zip(
            (p, q), shape.strides, shape.cut, shape.short, strict=True
        )
    )
    x = rounded(rng.normal(0, 1, (n, h, w, c)), dtype)
    depth = c // shape.groups
    deviation = (depth * np.prod(shape.taps)) ** -0.5
    weight = rounded(rng.normal(0, deviation, (width * phases, *shape.taps, depth)), dtype)
    y = (n * shape.slices, height, columns, width)
    apart = weight.reshape(shape.groups * shape.slices, *shape.strides, -1, *shape.taps, depth)
    if shape.zeros[0]:
        apart[:, -shape.zeros[0] :, :, :, 0] = 0
    if shape.zeros[1]:
        apart[:, :, -shape.zeros[1] :, :, :, 0] = 0
    operands = Operands(library, instance, y, shape.gap * writes, rng)
    vectors = [rng.normal(0.4, 0.7, width * phases).astype(np.float32) for _ in operands.vectors]
    stored = [Tensor(library, vector) for vector in vectors]
    operands.arguments.vectors[: len(stored)] = [vector.pointer for vector in stored]
    source, filters = Tensor(library, x, shape.gap * reads), Tensor(library, weight)
    output = Tensor(
        library, np.zeros(y, instance.out.numpy), shape.gap * max(writes, 8), empty=True
    )
    arguments = Conv(n, h, w, c, width * phases, *shape.taps, p, q, *pads, *pads, 1, 1, 1, 1)
    arguments.groups = shape.groups
    arguments.x, arguments.filter, arguments.y = source.pointer, filters.pointer, output.pointer
    arguments.x_pitch, arguments.y_pitch = source.pitch, output.pitch
    arguments.epilogue = operands.arguments
    extents = (height, columns)
    arguments.pixels = PhasedPixels(
        *shape.strides, *shape.cut, *extents, *shape.zeros, shape.slices
    )
    parts = zip(np.split(x, shape.groups, -1), np.split(weight, shape.groups), strict=True)
    products = np.concatenate([convolve(*part, convolution) for part in parts], axis=-1)
    pixels = _pixels(products, shape, (height, columns))
    of_pixels = [_pixels(np.broadcast_to(v, products.shape), shape, y[1:3]) for v in vectors]
    expected = epilogue(pixels, instance.chain, of_pixels, operands.tensors)
    return Problem(arguments, output, expected, (source, filters, operands, *stored))


def _pixels(values: np.ndarray, shape: Shape, extent: tuple[int, int]) -> np.ndarray:
    """[n, p, q, groups x phases x channels] as [n x slices, height, width, groups x channels]."""
    n, p, q, _ = values.shape
    e, (f, g), (top, left) = shape.slices, shape.strides, shape.cut
    apart = values.reshape(n, p, q, shape.groups, e, f, g, -1).transpose(0, 4, 1, 5, 2, 6, 3, 7)
    whole = apart.reshape(n * e, p * f, q * g, -1)
    return whole[:, top : top + extent[0], left : left + extent[1]]
