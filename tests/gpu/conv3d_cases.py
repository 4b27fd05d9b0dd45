"""Kernel instances of convolutions of volumes, for the GPU tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.families.conv3d_sm90 import Conv3dSm90Config
from onnxbolt.problems import Conv3dProblem

CHAINS: tuple[tuple[str, ...], ...] = (
    ("Bias",),
    (),
    ("Bias", "Add", "Relu"),
    ("Bias", "LeakyRelu"),
)
# channels of x and y
_CHANNELS = ((32, 32), (64, 128), (16, 24), (128, 256))
# large volumes have kernels with resident weights, small ones swapped kernels
_SIZES = ((64, 64, 64), (22, 24, 24))
_PER_CHAIN = 4


def instances(arch: int, types: tuple[DType, ...]) -> Iterator[Instance]:
    """Each chain with kernels in turn, in each type, and with y in fp32; none where the family does
    not run."""
    family, turns = named("conv3d_sm90"), itertools.count()
    if not family.runs_on(get(arch)):
        return
    outputs = [(dtype, dtype) for dtype in types] + [(DType.F16, DType.F32)]
    for (dtype, out), chain in itertools.product(outputs, CHAINS):
        turn = next(turns)
        c, k = _CHANNELS[(turn + turn // len(CHAINS)) % len(_CHANNELS)]
        found = [
            config.instance()
            for size in _SIZES
            for config in family.candidates(_problem(dtype, out, chain, c, k, size), get(arch))
        ]
        swapped = [config for config in found if config.swapped][:1]
        kernels = list(dict.fromkeys(config for config in found if not config.swapped))
        step = max(len(kernels) // _PER_CHAIN, 1)
        kernels = kernels[turn % step :: step][:_PER_CHAIN]
        for config in dict.fromkeys([*swapped, *kernels, *map(_sharing_pixels, kernels[:1])]):
            yield Instance(config, dtype, out, chain)


def _sharing_pixels(config: Conv3dSm90Config) -> Conv3dSm90Config:
    """With clusters whose blocks load parts of the pixels for each other, as none that is worth
    trying has."""
    return replace(config, cluster=(1, 2), resident=False, stages=0)


def _problem(
    dtype: DType, out: DType, chain: tuple[str, ...], c: int, k: int, size: tuple[int, int, int]
) -> Conv3dProblem:
    ones = (1, 1, 1)
    return Conv3dProblem(1, size, c, k, (3, 3, 3), size, (1,) * 6, ones, ones, 1, dtype, out, chain)
