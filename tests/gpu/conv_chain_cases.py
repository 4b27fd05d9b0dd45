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


def instances(arch: int, activations: tuple[str, ...]) -> Iterator[Instance]:
    """Every activation at both layers, each kind of kernel in turn."""
    turns = itertools.count()
    for activation, ((inner, k), (r, s, c), strides) in zip(activations, itertools.cycle(_FIRST), strict=False):
        chain = ("Bias", activation, PRODUCT, "Scale", "Bias", "Relu" if activation in ("Clip", "HardSigmoid") else activation)
        dtype, out = ((DType.F16, DType.F16), (DType.BF16, DType.BF16), (DType.F16, DType.F32))[next(turns) % 3]
        problem = ConvProblem(2, 32, 32, c, k, r, s, 32, 32, (0, 0, 0, 0), strides, (1, 1), 1, dtype, out, chain, nchw=True, inner=(inner,))
        configs = conv_chain.candidates(problem, get(arch))
        if configs:
            yield Instance(configs[next(turns) % len(configs)].instance(), dtype, out, chain)
