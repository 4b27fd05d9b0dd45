"""GEMM kernels: CUTLASS 2.x on every architecture, 3.x (TMA, wgmma) and our own on sm_90a."""

from __future__ import annotations

from onnxbolt.archs import Arch
from onnxbolt.kernels import chain, chain_2x, chain_small, chain_stored, chain_wide, gemm_rows, sm90
from onnxbolt.kernels.config import UNBOUNDED, Family, GemmProblem, KernelConfig
from onnxbolt.kernels.feasibility import alignment, is_feasible, needs_two_stages
from onnxbolt.kernels.tiles import HOPPER, tiles_2x

# blocks that are neighbours in time share rows of A in L2; CUTLASS lowers it by itself where N has
# fewer tiles
SWIZZLE = 4


def candidates(problem: GemmProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """Every feasible configuration for `problem` on `arch`, each for all m; empty where its type
    has no tensor cores there."""
    if not arch.supports(problem.dtype):
        return ()
    if problem.inner:
        families = (chain, chain_wide, chain_2x, chain_small, chain_stored)
        return tuple(config for family in families for config in family.candidates(problem, arch))
    # a set that keeps the order
    found = dict.fromkeys(_configs_3x(problem, arch) + _configs_2x(problem, arch))
    feasible = (config for config in found if is_feasible(config, problem.dtype, arch))
    return (*sm90.candidates(problem, arch), *gemm_rows.candidates(problem, arch), *feasible)


def _configs_3x(problem: GemmProblem, arch: Arch) -> list[KernelConfig]:
    """TMA needs rows of 16 bytes: K for A and B, N for D and a residual."""
    wide = problem.dtype.alignment
    if not arch.wgmma or problem.k % wide or problem.n % wide:
        return []
    return [
        KernelConfig(
            arch.number,
            0,
            UNBOUNDED,
            Family.GEMM_3X,
            tile.threadblock(problem.dtype),
            cluster=cluster,
            schedule=tile.schedule,
            align_a=wide,
            align_b=wide,
            align_c=wide,
        )
        for tile in HOPPER
        for cluster in tile.clusters
    ]


def _configs_2x(problem: GemmProblem, arch: Arch) -> list[KernelConfig]:
    align_k, align_n = alignment(problem.k, problem.dtype), alignment(problem.n, problem.dtype)
    return [
        KernelConfig(
            arch.number,
            0,
            UNBOUNDED,
            Family.GEMM_2X,
            tile.threadblock(problem.dtype),
            tile.warp_shape(problem.dtype),
            arch.mma[problem.dtype],
            stages,
            SWIZZLE,
            align_a=align_k,
            align_b=align_k,
            align_c=align_n,
        )
        for tile in tiles_2x(arch)
        for stages in ((2,) if needs_two_stages(align_k, problem.dtype) else tile.stages)
    ]
