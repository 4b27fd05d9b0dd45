"""The problems on which the GPU tests run kernels of normalizations of groups."""

from __future__ import annotations

import numpy as np

from onnxbolt.codegen.render import Instance
from tests.gpu.device import GroupNorm, Library, Tensor
from tests.gpu.operands import Operands, Problem, random_of
from tests.gpu.reference import epilogue

EPSILON = 1e-5
# images, pixels, channels, groups, elements between pixels, vectors of each image: one that is
# added, and two that scale and shift
SHAPES = (
    (1, 64, 1280, 32, 0, True, True),
    (2, 1024, 320, 32, 8, False, False),
    (3, 50, 48, 48, 0, True, False),  # instances
    (2, 49, 40, 1, 0, False, True),  # one group
    (1, 4096, 64, 8, 0, False, False),
    (2, 9, 96, 4, 16, False, False),
    (1, 7, 9600, 2, 0, False, False),  # more accesses than threads
    (1, 20000, 128, 32, 0, False, False),  # more than shared memory holds
)
# channels of a block and blocks of a part; the kernel rounds the first up, and limits the second
DIVISIONS = ((1, 1), (64, 2), (40, 8), (1 << 20, 4), (32, 100))


def problems(library: Library, instance: Instance) -> list[Problem]:
    """All shapes."""
    return [problem(library, instance, shape) for shape in SHAPES]


def problem(
    library: Library, instance: Instance, shape: tuple[int, int, int, int, int, bool, bool]
) -> Problem:
    """`shape` is one of SHAPES."""
    n, p, c, groups, gap, added, modulated = shape
    rng, element = random_of(instance, shape), instance.dtype.numpy
    # means that are large beside the deviations: sums of squares would cancel
    x = (rng.normal(0, 1, (n, p, c)) + np.repeat(rng.normal(0, 8, (n, 1, c // 4)), 4, -1)).astype(
        element
    )
    factors = [rng.normal(0.5, 1, c).astype(np.float32) for _ in range(2)]
    images = [
        rng.normal(0, 1, (n, c)).astype(element) if given else None
        for given in (added, modulated, modulated)
    ]
    operands = Operands(library, instance, (n, p, c), gap, rng)
    source = Tensor(library, x, gap)
    output = Tensor(library, np.zeros((n, p, c), instance.out.numpy), gap, empty=True)
    vectors = [None if v is None else Tensor(library, v) for v in (*factors, *images)]
    arguments = GroupNorm(
        *(n, p, c, groups, EPSILON),
        *(source.pointer, output.pointer, source.pitch, output.pitch),
        *(None if vector is None else vector.pointer for vector in vectors),
        operands.arguments,
    )
    normal = normalized(x, groups, factors, images)
    expected = epilogue(normal, instance.chain, operands.vectors, operands.tensors)
    return Problem(arguments, output, expected, (source, operands, vectors))


def normalized(
    x: np.ndarray, groups: int, factors: list[np.ndarray], images: list[np.ndarray | None]
) -> np.ndarray:
    """In float64; `factors` are gamma and beta, `images` what is added before, scale and shift."""
    before, scale, shift = (0.0 if v is None else v.astype(np.float64)[:, None] for v in images)
    s = (x.astype(np.float64) + before).reshape(*x.shape[:2], groups, -1)
    s = s - s.mean((1, 3), keepdims=True)
    s = s / np.sqrt((s * s).mean((1, 3), keepdims=True) + EPSILON)
    gamma, beta = (factor.astype(np.float64) for factor in factors)
    result: np.ndarray = (s.reshape(x.shape) * gamma + beta) * (1 + scale) + shift
    return result
