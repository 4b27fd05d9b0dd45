"""Problems of a convolution and 1x1 convolutions behind it, on the device, with the answer in
float64."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import layers
from onnxbolt.families.b2b_conv_sm90 import B2bConvSm90Config
from onnxbolt.families.b2b_stem_sm90 import B2bStemSm90Config
from onnxbolt.families.blocks.b2b import LayersConfig
from onnxbolt.families.blocks.halo import HaloConfig
from tests.gpu.cases import ConvShape
from tests.gpu.device import Chain, Conv, ConvChain, Library, Tensor
from tests.gpu.operands import Operands, Problem, parameters, random_of
from tests.gpu.reference import convolve, epilogue, output_extent, rounded


@dataclass(frozen=True)
class Shape:
    """A first convolution but for its channels (and filter and strides, where those are the
    kernel's), input channels in units of 8, elements between pixels of the output; by how many
    channels the inner layers and the last one fall short of the kernel's. `wide`: x is fp32."""

    conv: ConvShape
    short: tuple[int, int] = (0, 0)
    wide: bool = False


FIRST_SHAPES = (
    Shape(ConvShape(2, 37, 45, 0, 0, 0, 0, (1, 2, 1, 2)), (8, 0)),
    Shape(ConvShape(1, 11, 11, 0, 0, 0, 0), wide=True),
    Shape(ConvShape(3, 23, 70, 0, 0, 0, 0, (3, 1, 0, 1), gap=8), (0, 8)),
    Shape(ConvShape(40, 16, 20, 0, 0, 0, 0), wide=True),
    Shape(ConvShape(5, 64, 64, 0, 0, 0, 0, (1, 1, 1, 1), gap=16)),
)
CONV_SHAPES = (
    Shape(ConvShape(2, 15, 17, 8, 0, 3, 3, (1, 1, 1, 1)), (8, 8)),
    Shape(ConvShape(1, 1, 1, 1, 0, 1, 1)),
    Shape(ConvShape(1, 14, 13, 3, 0, 3, 3, (0, 0, 1, 1), strides=(2, 2), gap=8)),
    Shape(ConvShape(3, 41, 53, 12, 0, 1, 1, gap=24), (0, 8)),
    Shape(ConvShape(5, 60, 61, 6, 0, 3, 3, (1, 1, 1, 1))),
    Shape(ConvShape(1, 20, 13, 9, 0, 2, 3, (1, 0, 0, 2), (1, 2), (3, 1)), (8, 0)),
)
# one pixel, one tile, tails in every dimension, more tiles than SMs have warpgroups
HALO_SHAPES = (
    Shape(ConvShape(2, 15, 17, 8, 0, 3, 3, (1, 1, 1, 1)), (8, 8)),
    Shape(ConvShape(1, 1, 1, 1, 0, 3, 3, (1, 1, 1, 1))),
    Shape(ConvShape(1, 14, 13, 3, 0, 3, 3, (0, 0, 1, 1), strides=(2, 2), gap=8)),
    Shape(ConvShape(3, 8, 53, 4, 0, 1, 7, (0, 3, 0, 2), gap=24), (0, 8)),
    Shape(ConvShape(18, 60, 61, 6, 0, 3, 3, (1, 1, 1, 1))),
    Shape(ConvShape(70, 7, 7, 16, 0, 2, 3, (1, 0, 0, 2)), (8, 0)),
)


class Layers:
    """The layers' operands on the device, and the answer behind the first convolution; keeps the
    tensors alive."""

    def __init__(
        self,
        library: Library,
        instance: Instance,
        widths: list[int],
        rng: np.random.Generator,
        filters: np.ndarray,
    ) -> None:
        self._library, self._instance, self._rng = library, instance, rng
        self.arguments = Chain(layers=len(widths))
        self.filters = rounded(filters, instance.dtype)
        weights = [
            self.filters,
            *(
                rounded(rng.normal(0, k**-0.5, (n, k)), instance.dtype)
                for k, n in itertools.pairwise(widths)
            ),
        ]
        self._weights, self._kept = weights, list[Any]()
        for i, (n, weight) in enumerate(zip(widths, weights, strict=True)):
            self.arguments.n[i], self.arguments.weights[i] = n, self._keep(weight)

    def _keep(self, values: np.ndarray, gap: int = 0) -> int:
        self._kept.append(Tensor(self._library, values, gap))
        return int(self._kept[-1].pointer)

    def expected(self, value: np.ndarray, gap: int) -> np.ndarray:
        """The output in float64, from the first convolution's sums; makes the operands of all
        epilogues on the way."""
        chains = layers(self._instance.chain)
        for i, steps in enumerate(chains):
            last = i == len(chains) - 1
            operands = Operands(
                self._library,
                Instance(self._instance.config, self._instance.dtype, self._instance.out, steps),
                value.shape,
                gap if last else 0,
                self._rng,
            )
            self._kept.append(operands)
            self.arguments.epilogue[i] = operands.arguments
            value = epilogue(value, steps, operands.vectors, operands.tensors)
            if not last:
                value = (
                    rounded(value, self._instance.dtype).astype(np.float64)
                    @ self._weights[i + 1].astype(np.float64).T
                )
        params = parameters(self._instance)
        self.arguments.epilogue[0].params[: len(params)] = params
        return value


def first_chain_problem(library: Library, instance: Instance, shape: Shape) -> Problem:
    """A model's first convolution and a 1x1 one: x is NCHW."""
    config = instance.config
    assert isinstance(config, B2bStemSm90Config)
    r, s, c = config.filter
    conv = replace(shape.conv, c=c, r=r, s=s, strides=config.strides)
    widths = (config.columns, config.later_columns)
    return _problem(library, instance, shape, conv, widths, nchw=True)


def conv_chain_problem(library: Library, instance: Instance, shape: Shape) -> Problem:
    """Another convolution and 1x1 ones behind it."""
    assert isinstance(instance.config, B2bConvSm90Config | LayersConfig)
    conv = replace(shape.conv, c=8 * shape.conv.c)
    return _problem(library, instance, shape, conv, instance.config.widths, nchw=False)


def halo_chain_problem(library: Library, instance: Instance, shape: Shape) -> Problem:
    """A halo convolution and 1x1 ones behind it: of one k-block where filters stay, since there
    is room for so many."""
    c, config = 8 * shape.conv.c, instance.config
    assert isinstance(config, HaloConfig)
    conv = replace(shape.conv, c=min(c, config.k_block) if config.resident else c)
    return _problem(library, instance, shape, conv, config.layers, nchw=False)


def _problem(
    library: Library,
    instance: Instance,
    shape: Shape,
    conv: ConvShape,
    kernel: tuple[int, ...],
    nchw: bool,
) -> Problem:
    """`kernel`: the channels of each layer that the kernel has, zeros included."""
    rng, (p, q) = random_of(instance, shape), output_extent(conv)
    widths = [*(n - shape.short[0] for n in kernel[:-1]), kernel[-1] - shape.short[1]]
    depth = conv.r * conv.s * conv.c
    made = Layers(
        library,
        instance,
        widths,
        rng,
        rng.normal(0, depth**-0.5, (widths[0], conv.r, conv.s, conv.c)),
    )
    x = rng.normal(0, 1, (conv.n, conv.h, conv.w, conv.c)).astype(
        np.float32 if shape.wide else instance.dtype.numpy
    )
    expected = made.expected(convolve(rounded(x, instance.dtype), made.filters, conv), conv.gap)
    source = Tensor(library, np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if nchw else x)
    output = Tensor(library, np.zeros(expected.shape, instance.out.numpy), conv.gap, empty=True)
    chain = made.arguments
    chain.m, chain.k, chain.a, chain.d = conv.n * p * q, depth, source.pointer, output.pointer
    chain.lda, chain.ldd = conv.c, output.pitch
    element = DType.F32 if shape.wide else instance.dtype
    first = Conv(
        conv.n,
        conv.h,
        conv.w,
        conv.c,
        widths[0],
        conv.r,
        conv.s,
        p,
        q,
        *conv.pads,
        *conv.strides,
        *conv.dilations,
        1,
        source.pointer,
        chain.weights[0],
        output.pointer,
        conv.c,
        output.pitch,
        chain.epilogue[0],
        element.onnx if nchw else 0,
    )
    return Problem(ConvChain(first, chain), output, expected, (source, made))
