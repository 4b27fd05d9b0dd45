"""A convolution and 1x1 convolutions behind it in one kernel with mma.sync: tiles and residence are
those of several GEMMs (chain_2x.py), the first product is CONV_2X's implicit GEMM
(custom_ops/chain/main_loop_2x.h).
"""

from __future__ import annotations

from dataclasses import replace

from onnxbolt.archs import Arch
from onnxbolt.kernels import chain_2x
from onnxbolt.kernels.config import ConvProblem, Family, GemmProblem, Iterator, KernelConfig
from onnxbolt.kernels.feasibility import MASK_BITS, MAX_IMAGE_ROWS

_ACCESS = 16  # bytes
_ITERATOR_REGISTERS = 8  # more than a matrix's


def candidates(problem: ConvProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """Every feasible configuration: `threadblock` is (pixels, channels of the first convolution,
    k), `warp` the channels of the others."""
    if problem.groups != 1:
        return ()
    iterator = Iterator.OPTIMIZED if max(problem.r, problem.s) <= MASK_BITS else Iterator.ANALYTIC
    gemm = as_gemm(problem, problem.c)
    return tuple(
        replace(config, family=Family.B2B_CONV_2X, iterator=iterator)
        for config in chain_2x.candidates(gemm, arch)
        if _image_rows(config, problem) <= MAX_IMAGE_ROWS
        and chain_2x.registers(config, gemm) + _ITERATOR_REGISTERS <= arch.registers_per_thread
    )


def as_gemm(problem: ConvProblem, k: int) -> GemmProblem:
    """The implicit GEMM with `k` values in a row."""
    return GemmProblem(
        problem.rows, problem.k, k, problem.dtype, problem.out, problem.chain, problem.inner
    )


def _image_rows(config: KernelConfig, problem: ConvProblem) -> int:
    """Pixels of the tile that one thread loads."""
    rows, _, k = config.threadblock
    return rows * k * problem.dtype.bytes // (_ACCESS * chain_2x.threads(config))
