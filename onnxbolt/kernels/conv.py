"""Convolution kernels: CUTLASS 2.x implicit GEMM (NHWC, KRSC) on every architecture, our own on
sm_90a; depthwise convolutions have a family of their own.

The implicit GEMM is M = N*P*Q pixels, N = K output channels, K = R*S*C (section 3.1 of "CUTLASS
Convolution", CUTLASS's documentation).
"""

from __future__ import annotations

from onnxbolt.archs import Arch
from onnxbolt.epilogues import MEAN
from onnxbolt.kernels import conv_chain, depthwise, first, halo, mean, planes, sm90
from onnxbolt.kernels.config import UNBOUNDED, ConvProblem, Family, Iterator, KernelConfig
from onnxbolt.kernels.feasibility import MASK_BITS, alignment, is_feasible, needs_two_stages
from onnxbolt.kernels.gemm import SWIZZLE
from onnxbolt.kernels.tiles import tiles_2x


def candidates(problem: ConvProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """Every feasible configuration for `problem` on `arch`, each for all m; empty for types
    without tensor cores."""
    if MEAN in problem.chain:
        return (
            ()
            if problem.inner or problem.nchw or problem.y_nchw or problem.depthwise
            else mean.candidates(problem, arch)
        )
    if problem.inner:
        return conv_chain.candidates(problem, arch)
    if problem.nchw:
        return first.candidates(problem, arch)
    if problem.y_nchw:
        return planes.candidates(problem, arch)
    if problem.depthwise:
        return depthwise.candidates(problem, arch)
    if not arch.supports(problem.dtype):
        return ()
    align_c, align_k = (
        alignment(problem.depth, problem.dtype),
        alignment(problem.k // problem.groups, problem.dtype),
    )
    configs = (
        KernelConfig(
            arch.number,
            0,
            UNBOUNDED,
            Family.CONV_2X,
            tile.threadblock(problem.dtype),
            tile.warp_shape(problem.dtype),
            arch.mma[problem.dtype],
            stages,
            SWIZZLE,
            align_a=align_c,
            align_b=align_c,
            align_c=align_k,
            iterator=iterator(problem),
        )
        for tile in tiles_2x(arch)
        for stages in ((2,) if needs_two_stages(align_c, problem.dtype) else tile.stages)
    )
    ours = (*halo.candidates(problem, arch), *sm90.candidates(problem, arch))
    return (*ours, *(c for c in dict.fromkeys(configs) if is_feasible(c, problem.dtype, arch)))


def iterator(problem: ConvProblem) -> Iterator:
    """How CUTLASS walks the activations.

    FIXED_CHANNELS packs filter positions along k, so that 4 or 8 channels do not waste the rest of
    a K tile; OPTIMIZED precomputes predicates per filter row and column; ANALYTIC has no limits.
    """
    if problem.groups == 1 and problem.c in (4, 8) and problem.c <= problem.dtype.alignment:
        return Iterator.FIXED_CHANNELS
    if problem.r > MASK_BITS or problem.s > MASK_BITS:
        return Iterator.ANALYTIC
    return Iterator.OPTIMIZED
