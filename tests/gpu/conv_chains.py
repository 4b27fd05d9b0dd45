"""Problems of a convolution and 1x1 convolutions behind it, on the device, with the answer in float64."""
from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import layers
from onnxbolt.kernels import conv_chain
from tests.gpu.cases import ConvShape
from tests.gpu.device import Chain, Conv, ConvChain, Library, Tensor
from tests.gpu.operands import Operands, Problem, parameters, random_of
from tests.gpu.reference import convolve, epilogue, output_extent, rounded


@dataclass(frozen=True)
class Shape:
    """Of a first convolution: the image, and by how many channels the layers fall short of the kernel's. `wide`: x is fp32."""

    n: int
    h: int
    w: int
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    short: tuple[int, int] = (0, 0)
    gap: int = 0
    wide: bool = False


FIRST_SHAPES = (
    Shape(2, 37, 45, (1, 2, 1, 2), (8, 0)), Shape(1, 11, 11, wide=True), Shape(3, 23, 70, (3, 1, 0, 1), (0, 8), gap=8),
    Shape(40, 16, 20, wide=True), Shape(5, 64, 64, (1, 1, 1, 1), gap=16),
)


class Layers:
    """The layers' operands on the device, and the answer behind the first convolution; keeps the tensors alive."""

    def __init__(self, library: Library, instance: Instance, widths: list[int], rng: np.random.Generator, filters: np.ndarray) -> None:
        self._library, self._instance, self._rng = library, instance, rng
        self.arguments = Chain(layers=len(widths))
        self.filters = rounded(filters, instance.dtype)
        weights = [self.filters, *(rounded(rng.normal(0, k**-0.5, (n, k)), instance.dtype) for k, n in itertools.pairwise(widths))]
        self._weights, self._kept = weights, list[Any]()
        for i, (n, weight) in enumerate(zip(widths, weights, strict=True)):
            self.arguments.n[i], self.arguments.weights[i] = n, self._keep(weight)

    def _keep(self, values: np.ndarray, gap: int = 0) -> int:
        self._kept.append(Tensor(self._library, values, gap))
        return int(self._kept[-1].pointer)

    def expected(self, value: np.ndarray, gap: int) -> np.ndarray:
        """The output in float64, from the first convolution's sums; makes the operands of all epilogues on the way."""
        chains = layers(self._instance.chain)
        for i, steps in enumerate(chains):
            last = i == len(chains) - 1
            operands = Operands(self._library, Instance(self._instance.config, self._instance.dtype, self._instance.out, steps),
                                value.shape, gap if last else 0, self._rng)
            self._kept.append(operands)
            self.arguments.epilogue[i] = operands.arguments
            value = epilogue(value, steps, operands.vectors, operands.tensors)
            if not last:
                value = rounded(value, self._instance.dtype).astype(np.float64) @ self._weights[i + 1].astype(np.float64).T
        params = parameters(self._instance)
        self.arguments.epilogue[0].params[: len(params)] = params
        return value


def first_chain_problem(library: Library, instance: Instance, shape: Shape) -> Problem:
    """A model's first convolution and a 1x1 one: x is NCHW."""
    config, pads = instance.config, shape.pads
    (r, s, c), strides = config.warp, config.instruction[:2]
    rng = random_of(instance, shape)
    widths = [n - short for n, short in zip(conv_chain.columns(config), shape.short, strict=True)]
    made = Layers(library, instance, widths, rng, rng.normal(0, (r * s * c) ** -0.5, (widths[0], r, s, c)))
    conv = ConvShape(shape.n, shape.h, shape.w, c, widths[0], r, s, pads, (strides[0], strides[1]))
    x = rng.normal(0, 1, (shape.n, c, shape.h, shape.w)).astype(np.float32 if shape.wide else instance.dtype.numpy)
    p, q = output_extent(conv)
    expected = made.expected(convolve(rounded(x.transpose(0, 2, 3, 1), instance.dtype), made.filters, conv), shape.gap)
    source, output = Tensor(library, x), Tensor(library, np.zeros(expected.shape, instance.out.numpy), shape.gap, empty=True)
    made.arguments.m, made.arguments.k, made.arguments.a, made.arguments.d = shape.n * p * q, r * s * c, source.pointer, output.pointer
    made.arguments.lda, made.arguments.ldd = c, output.pitch
    first = Conv(
        shape.n, shape.h, shape.w, c, widths[0], r, s, p, q, *pads, *strides, 1, 1, 1, source.pointer, made.arguments.weights[0],
        output.pointer, c, output.pitch, made.arguments.epilogue[0], (DType.F32 if shape.wide else instance.dtype).onnx,
    )
    return Problem(ConvChain(first, made.arguments), output, expected, (source, made))
