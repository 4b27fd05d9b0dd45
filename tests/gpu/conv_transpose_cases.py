"""Kernel instances of transposed convolutions, for the GPU tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.problems import ConvTranspose3dProblem, ConvTransposeProblem

CHAINS: tuple[tuple[str, ...], ...] = (
    ("Bias", "Relu"),
    (),
    ("Bias", "Add", "Relu"),
    ("Bias", "Silu", "Mul"),
    ("Scale", "Bias", "Sigmoid"),
    ("Bias", "Add", "Mul", "GeluErf"),
)
# channels of y: of one phase they are a tile's columns, a part of them, or several tiles'
_CHANNELS = (64, 24, 128, 16, 256, 40)
_PER_CHAIN = 3


def instances(arch: int, types: tuple[DType, ...]) -> Iterator[Instance]:
    """Each chain with kernels in turn, in each type, and with y in fp32; in each type one chain for
    volumes; none where the family does not run."""
    family, turns = named("conv_transpose_sm90"), itertools.count()
    if not family.runs_on(get(arch)):
        return
    outputs = [(dtype, dtype) for dtype in types] + [(DType.F16, DType.F32)]
    of_images = itertools.product(outputs, CHAINS, (1,))
    of_volumes = zip(outputs, CHAINS, itertools.repeat(2), strict=False)
    for (dtype, out), chain, slices in (*of_images, *of_volumes):
        for channels in itertools.islice(itertools.cycle(_CHANNELS), next(turns), None):
            problem = _problem(dtype, out, chain, channels, slices)
            found = family.candidates(problem, get(arch))
            kernels = list(dict.fromkeys(config.instance() for config in found))
            if kernels:
                break
        step = max(len(kernels) // _PER_CHAIN, 1)
        for config in kernels[::step][:_PER_CHAIN]:
            yield Instance(config, dtype, out, chain)


def _problem(
    dtype: DType, out: DType, chain: tuple[str, ...], channels: int, slices: int
) -> ConvTransposeProblem | ConvTranspose3dProblem:
    pads, stride = (1, 1, 1, 1), (2, 2)
    sizes = (8, 56, 56, 128, channels, (2, 2), 112, 112)
    images = ConvTransposeProblem(*sizes, pads, (1, 1), stride, (0, 0), 1, dtype, out, chain)
    return images if slices == 1 else images.of_volumes(slices)
