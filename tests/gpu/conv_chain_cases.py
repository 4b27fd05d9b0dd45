"""Instances of kernels for a convolution and 1x1 convolutions behind it: every activation, each kind of kernel in turn."""
from __future__ import annotations

import itertools
from collections.abc import Iterator

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import PRODUCT
from onnxbolt.kernels import conv_chain
from onnxbolt.kernels.config import ConvProblem

# of a first convolution and the 1x1 behind it: both layers' channels, filter rows, columns and channels, strides
_FIRST = (
    ((48, 48), (3, 3, 3), (2, 2)), ((64, 64), (3, 3, 3), (2, 2)), ((16, 96), (3, 3, 3), (2, 2)), ((64, 16), (7, 7, 3), (2, 2)),
    ((128, 128), (3, 3, 1), (1, 1)), ((32, 80), (4, 4, 4), (4, 4)), ((96, 64), (3, 3, 3), (1, 1)),
)


# of other convolutions: all layers' channels, and input channels, which decide the k-block
_CONV = (
    ((64, 64), 64), ((48, 48), 48), ((64, 256), 64), ((16, 16, 16, 16), 16), ((256, 64), 96), ((128, 128), 128), ((96, 192, 32), 32),
    ((32, 48), 64), ((192, 192), 64), ((64, 32, 256), 72),
)
_TYPES = ((DType.F16, DType.F16), (DType.BF16, DType.BF16), (DType.F16, DType.F32))


def instances(arch: int, activations: tuple[str, ...]) -> Iterator[Instance]:
    """Of both families."""
    turns = itertools.count()
    for activation, ((inner, k), (r, s, c), strides) in zip(activations, itertools.cycle(_FIRST), strict=False):
        yield from _instance(arch, next(turns), activation, (inner, k), (r, s, c), strides, nchw=True)
    for turn, activation in enumerate(activations):
        widths, c = _CONV[turn % len(_CONV)]
        yield from _instance(arch, next(turns), activation, widths, (3, 3, c), (1, 1), residual=((), ("Add", "Relu"), ("Mul",))[turn % 3])


def _instance(arch: int, turn: int, activation: str, widths: tuple[int, ...], window: tuple[int, int, int], strides: tuple[int, int],
              residual: tuple[str, ...] = (), nchw: bool = False) -> Iterator[Instance]:
    """The planner's candidates in turn; an activation with parameters but once, since a kernel has few."""
    again = "Relu" if activation in ("Clip", "HardSigmoid") else activation
    between = [step for _ in widths[2:] for step in (PRODUCT, "Bias", "Relu")]
    chain = ("Bias", activation, *between, PRODUCT, "Scale", "Bias", again, *residual)
    (r, s, c), (dtype, out) = window, _TYPES[turn % len(_TYPES)]
    problem = ConvProblem(2, 32, 32, c, widths[-1], r, s, 32, 32, (0, 0, 0, 0), strides, (1, 1), 1, dtype, out, chain, nchw, widths[:-1])
    configs = conv_chain.candidates(problem, get(arch))
    if configs:
        yield Instance(configs[turn % len(configs)].instance(), dtype, out, chain)
