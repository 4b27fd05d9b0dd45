"""Instances of our own sm_90a kernels: every activation and type, each form of operands and casts, tiles and schedules in turn."""
from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.kernels import sm90
from onnxbolt.kernels.config import ConvProblem, Family, GemmProblem, KernelConfig

Form = tuple[DType, DType, tuple[str, ...]]  # element, output, chain

# columns of nominal problems, which decide the widths of the tiles
_COLUMNS = (256, 64, 128, 40, 192, 72, 8, 512)
_GEMM = (20_000, 256)  # rows and k
_CONV = (48, 28, 64)  # batch, image and channels of a 3x3 convolution
MOST_BLOCKS = 9  # k-blocks that resident weights have room for in all of these


def instances(arch: int, forms: Sequence[Form]) -> Iterator[Instance]:
    """GEMM and convolution, one instance for each form; none on other architectures."""
    turns = itertools.count()
    for family, (dtype, out, chain) in itertools.product((Family.GEMM_SM90, Family.CONV_SM90), forms):
        configs = _configs(family, arch, dtype, out, chain, turn := next(turns))
        if configs:
            yield Instance(configs[5 * turn % len(configs)], dtype, out, chain)


def _configs(family: Family, arch: int, dtype: DType, out: DType, chain: tuple[str, ...], turn: int) -> list[KernelConfig]:
    columns = _COLUMNS[turn % len(_COLUMNS)]
    problem: sm90.Problem
    if family is Family.GEMM_SM90:
        problem = GemmProblem(_GEMM[0], columns, _GEMM[1], dtype, out, chain)
    else:
        batch, size, channels = _CONV
        problem = ConvProblem(batch, size, size, channels, columns, 3, 3, size, size, (1, 1, 1, 1), (1, 1), (1, 1), 1, dtype, out, chain)
    return list(dict.fromkeys(config.instance() for config in sm90.candidates(problem, get(arch))))


def splits(instance: Instance) -> list[int]:
    """Numbers of blocks that may share a tile of this kernel."""
    return sm90.splits(instance.config, instance, get(instance.config.arch))
