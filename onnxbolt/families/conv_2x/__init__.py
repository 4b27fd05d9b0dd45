"""Convolutions by CUTLASS 2.x: implicit GEMM in NHWC with mma.sync, sm_75 and later.

The implicit GEMM is M = N*P*Q pixels, N = K output channels, K = R*S*C (section 3.1 of "CUTLASS
Convolution", CUTLASS's documentation).
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch, Capability
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import MEAN
from onnxbolt.families.base import Compiled, Family
from onnxbolt.families.blocks import convolutions, mma_sync
from onnxbolt.families.blocks.access import alignment
from onnxbolt.families.blocks.mma_sync import MASK_BITS, MAX_IMAGE_ROWS, WALKS, MmaConfig, Walk
from onnxbolt.families.row import at
from onnxbolt.problems import ConvProblem


@dataclass(frozen=True, kw_only=True)
class Conv2xConfig(MmaConfig):
    """See MmaConfig."""

    walk: Walk = at("iterator", numbers=WALKS)


class Conv2x(Family[Conv2xConfig]):
    """Runs on every architecture whose tensor cores multiply the type."""

    number, name, config = 3, "conv_2x", Conv2xConfig
    problems, kinds = (ConvProblem,), convolutions.KINDS
    needs = frozenset({Capability.MMA_SYNC})
    waits, compile_seconds, generation = False, 3.0, 0

    def candidates(self, problem: ConvProblem, arch: Arch) -> tuple[Conv2xConfig, ...]:
        in_rows = not (problem.nchw or problem.y_nchw or problem.inner or MEAN in problem.chain)
        if not in_rows or problem.depthwise or not arch.supports(problem.dtype):
            return ()
        dtype, widths = problem.dtype, (problem.depth, problem.k // problem.groups)
        access_c, access_k = (alignment(width, dtype) for width in widths)
        found = mma_sync.configs(
            Conv2xConfig, dtype, access_c, access_k, arch, walk=walk_of(problem)
        )
        return tuple(
            config
            for config in dict.fromkeys(found)
            if mma_sync.is_feasible(config, dtype, arch)
            and image_rows(config, dtype) <= MAX_IMAGE_ROWS
        )

    def shared_memory(self, kernel: Compiled) -> int:
        return mma_sync.shared_memory(kernel.config, kernel.dtype)

    def predicted_us(self, problem: ConvProblem, config: Conv2xConfig, arch: Arch) -> float:
        packed = config.walk is Walk.FIXED_CHANNELS
        return mma_sync.predicted_us(problem, config, arch, packed)


def walk_of(problem: ConvProblem) -> Walk:
    """How CUTLASS walks the activations: the channels of several filter positions are packed along
    k if they fill one access, so that 4 or 8 channels waste no K tile."""
    if problem.groups == 1 and problem.c in (4, 8) and problem.c <= problem.dtype.alignment:
        return Walk.FIXED_CHANNELS
    if problem.r > MASK_BITS or problem.s > MASK_BITS:
        return Walk.ANALYTIC
    return Walk.OPTIMIZED


def image_rows(config: Conv2xConfig, dtype: DType) -> int:
    """The number of pixels of the activation tile that one thread loads, 16 bytes at a time."""
    m, _, k = config.tile
    return m * k * dtype.bytes // (16 * config.threads)
