"""The problems on which the GPU tests run kernels of convolutions of volumes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxbolt.codegen.render import Instance
from onnxbolt.families.conv3d_sm90 import Conv3dSm90Config
from tests.gpu.device import Conv, DepthAxis, Library, Tensor
from tests.gpu.operands import Operands, Problem, access, random_of
from tests.gpu.reference import epilogue, rounded

Three = tuple[int, int, int]


@dataclass(frozen=True)
class Shape:
    """Volumes of x, channels of x and y in accesses, the filter, pads, strides, dilations, groups,
    and accesses between pixels."""

    volumes: tuple[int, int, int, int]
    c: int
    k: int
    filter: Three
    pads: tuple[int, int, int, int, int, int] = (0,) * 6
    strides: Three = (1, 1, 1)
    dilations: Three = (1, 1, 1)
    groups: int = 1
    gap: int = 0

    @property
    def y(self) -> Three:
        """Sizes of a volume of y."""
        d, h, w = (
            (size + self.pads[i] + self.pads[3 + i] - self.dilations[i] * (self.filter[i] - 1) - 1)
            // self.strides[i]
            + 1
            for i, size in enumerate(self.volumes[1:])
        )
        return d, h, w


SHAPES = (
    Shape((1, 1, 1, 1), 1, 1, (3, 3, 3), (1,) * 6),
    Shape((2, 9, 11, 13), 4, 4, (3, 3, 3), (1,) * 6),
    Shape((1, 6, 17, 33), 8, 16, (3, 3, 3), (1,) * 6, gap=2),
    Shape((3, 8, 10, 12), 4, 5, (3, 3, 3), (1,) * 6, strides=(2, 2, 2)),
    Shape((2, 7, 9, 8), 3, 8, (1, 1, 1), strides=(2, 2, 3)),
    Shape((1, 12, 14, 13), 5, 3, (2, 3, 4), (0, 2, 1, 3, 0, 2), (1, 2, 1), (3, 1, 2), gap=1),
    Shape((2, 5, 6, 40), 2, 4, (3, 1, 7), (2, 0, 6, 1, 0, 0)),
    Shape((1, 20, 22, 24), 4, 4, (3, 3, 3), (8,) * 6, dilations=(8, 8, 8)),
    Shape((1, 34, 35, 36), 4, 8, (3, 3, 3), (1,) * 6),
    Shape((2, 5, 7, 9), 8, 32, (3, 3, 3), (1,) * 6, groups=2),
)


def problems(library: Library, instance: Instance) -> list[Problem]:
    """Those whose groups suit the kernel's tile."""
    config, writes = _config(instance), access(instance.config)[1]
    tile = config.columns * config.cluster[1]
    suitable = [s for s in SHAPES if s.groups == 1 or s.k * writes % tile == 0]
    return [problem(library, instance, shape) for shape in suitable]


def _config(instance: Instance) -> Conv3dSm90Config:
    assert isinstance(instance.config, Conv3dSm90Config)
    return instance.config


def problem(library: Library, instance: Instance, shape: Shape) -> Problem:
    """One of them, with its result by numpy."""
    rng, dtype = random_of(instance, shape), instance.dtype
    reads, writes = access(instance.config)
    depth, k = shape.c * reads, shape.k * writes * shape.groups
    if (config := _config(instance)).resident:  # no filter of SHAPES has more taps than fit
        depth = min(depth, config.k)
    c = depth * shape.groups
    (n, d, h, w), (o, p, q) = shape.volumes, shape.y
    x = rounded(rng.normal(0, 1, (n, d, h, w, c)), dtype)
    deviation = (depth * np.prod(shape.filter)) ** -0.5
    weight = rounded(rng.normal(0, deviation, (k, *shape.filter, depth)), dtype)
    operands = Operands(library, instance, (n, o, p, q, k), shape.gap * writes, rng)
    source, filters = Tensor(library, x, shape.gap * reads), Tensor(library, weight)
    y = np.zeros((n, o, p, q, k), instance.out.numpy)
    output = Tensor(library, y, shape.gap * max(writes, 8), empty=True)
    front, top, left, back, bottom, right = shape.pads
    (t, r, s), (stride, *strides), (dilation, *dilations) = (
        shape.filter,
        shape.strides,
        shape.dilations,
    )
    pads = (top, left, bottom, right)
    arguments = Conv(n, h, w, c, k, r, s, p, q, *pads, *strides, *dilations, shape.groups)
    arguments.depth = DepthAxis(d, t, o, front, back, stride, dilation)
    arguments.x, arguments.filter, arguments.y = source.pointer, filters.pointer, output.pointer
    arguments.x_pitch, arguments.y_pitch = source.pitch, output.pitch
    arguments.epilogue = operands.arguments
    parts = zip(np.split(x, shape.groups, -1), np.split(weight, shape.groups), strict=True)
    products = np.concatenate([_convolve(*part, shape) for part in parts], axis=-1)
    expected = epilogue(products, instance.chain, operands.vectors, operands.tensors)
    return Problem(arguments, output, expected, (source, filters, operands))


def _convolve(x: np.ndarray, weight: np.ndarray, shape: Shape) -> np.ndarray:
    """NDHWC x KTRSC -> NOPQK in float64, one GEMM per filter position."""
    pads = ((0, 0), *zip(shape.pads[:3], shape.pads[3:], strict=True), (0, 0))
    padded, filters = np.pad(x.astype(np.float64), pads), weight.astype(np.float64)
    result = np.zeros((len(x), *shape.y, len(weight)))
    for tap in np.ndindex(shape.filter):
        cuts = [
            slice(at * dilation, at * dilation + (size - 1) * stride + 1, stride)
            for at, dilation, size, stride in zip(
                tap, shape.dilations, shape.y, shape.strides, strict=True
            )
        ]
        result += padded[(slice(None), *cuts)] @ filters[(slice(None), *tap)].T
    return result
