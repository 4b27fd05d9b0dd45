"""GEMM by CUTLASS 3.x on sm_90a: TMA and wgmma, warp-specialized."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from onnxbolt.archs import Arch, Capability, Shape
from onnxbolt.dtypes import DType
from onnxbolt.families.base import (
    SCHEDULES,
    Family,
    KernelConfig,
    Schedule,
    access,
    clusters,
    positive,
    tile_size,
)
from onnxbolt.families.blocks.mma_sync import tile_bytes
from onnxbolt.families.blocks.tiled import Step, access_rate, k_steps, kernel_us
from onnxbolt.families.row import at
from onnxbolt.kernel_time import TENSOR_EFFICIENCY
from onnxbolt.problems import GemmProblem, MatmulProblem

# shared memory that an epilogue and its barriers take (measured with CUTLASS 4.2)
_EPILOGUE_BYTES = {Schedule.COOPERATIVE: 33792, Schedule.PINGPONG: 17408}
# fp32 accumulators that the consumer warpgroups hold without spilling
_ACCUMULATORS = {Schedule.COOPERATIVE: 32768, Schedule.PINGPONG: 16384}
_BARRIERS_PER_STAGE = 16
_MIN_STAGES = 3
_TILES_AT_ONCE = {Schedule.COOPERATIVE: 1.5, Schedule.PINGPONG: 2.0}  # tiles that overlap on an SM
_SWIZZLES = (1, 2, 4, 8)
_BLOCK_BYTES = 227 * 1024  # shared memory of a block that CUTLASS's kernels for sm_90a assume


@dataclass(frozen=True, kw_only=True)
class Gemm3xConfig(KernelConfig):
    """A block's tile (m, n, k), and the blocks of a cluster along m and n."""

    tile: tuple[int, int, int] = at(
        "tile_m", "tile_n", "tile_k", sound=lambda tile: all(map(tile_size, tile))
    )
    cluster: tuple[int, int] = at("cluster_m", "cluster_n", sound=clusters)
    schedule: Schedule = at("schedule", numbers=SCHEDULES)
    access: int = at("align_a", "align_b", "align_c", repeated=True, default=8, sound=access)
    swizzle: int = at("swizzle", default=1, compiled=1, sound=positive)


@dataclass(frozen=True)
class Tile:
    """A tile with the clusters worth trying; stages are what shared memory holds. K is given for
    types of 2 bytes."""

    m: int
    n: int
    k: int
    schedule: Schedule
    clusters: tuple[tuple[int, int], ...]

    def threadblock(self, dtype: DType) -> Shape:
        """(m, n, k)."""
        return self.m, self.n, self.k * 2 // dtype.bytes


TILES = (
    Tile(128, 256, 64, Schedule.COOPERATIVE, ((2, 1),)),
    Tile(256, 128, 64, Schedule.COOPERATIVE, ((1, 2), (1, 4))),
    Tile(128, 192, 64, Schedule.COOPERATIVE, ((2, 1),)),
    Tile(128, 128, 64, Schedule.COOPERATIVE, ((2, 1), (1, 1))),
    Tile(128, 128, 128, Schedule.COOPERATIVE, ((2, 1),)),
    Tile(256, 64, 64, Schedule.COOPERATIVE, ((2, 1),)),
    Tile(64, 256, 64, Schedule.PINGPONG, ((1, 1),)),
    Tile(64, 128, 64, Schedule.PINGPONG, ((1, 2), (2, 1))),
    Tile(64, 128, 128, Schedule.PINGPONG, ((1, 1),)),
    Tile(128, 64, 64, Schedule.PINGPONG, ((1, 1),)),
    Tile(64, 64, 128, Schedule.PINGPONG, ((1, 1), (2, 1))),
    Tile(64, 32, 128, Schedule.PINGPONG, ((1, 1),)),
    Tile(64, 16, 128, Schedule.PINGPONG, ((1, 1),)),
)


class Gemm3x(Family[Gemm3xConfig]):
    """Serves GEMMs whose rows TMA can read and write."""

    number, name, config = 2, "gemm_3x", Gemm3xConfig
    problems, kinds = (GemmProblem, MatmulProblem), frozenset({"gemm"})
    needs = frozenset({Capability.CLUSTERS, Capability.TMA, Capability.WGMMA})
    heuristics_target = "CUTLASS3"
    waits, compile_seconds, generation = False, 10.0, 1

    def runs_on(self, arch: Arch) -> bool:
        """CUTLASS gives its pipelines the shared memory of sm_90a, whatever `arch` says."""
        return super().runs_on(arch) and arch.shared_memory_per_block >= _BLOCK_BYTES

    def candidates(
        self, problem: GemmProblem | MatmulProblem, arch: Arch
    ) -> tuple[Gemm3xConfig, ...]:
        """Configurations for rows that are multiples of 16 bytes, as TMA needs them: K for A and B,
        N for D and a residual."""
        wide = problem.dtype.alignment
        served = not problem.inner and arch.supports(problem.dtype)
        if not served or any(divisor % wide for divisor in problem.divisors):
            return ()
        found = (
            Gemm3xConfig(
                arch=arch.number,
                tile=tile.threadblock(problem.dtype),
                cluster=cluster,
                schedule=tile.schedule,
                access=wide,
            )
            for tile in TILES
            for cluster in tile.clusters
        )
        return tuple(
            config for config in dict.fromkeys(found) if is_feasible(config, problem.dtype, arch)
        )

    def predicted_us(
        self, problem: GemmProblem | MatmulProblem, config: Gemm3xConfig, arch: Arch
    ) -> float:
        """Each consumer warpgroup reads its 64 rows of A, and all of B; a cluster shares what its
        blocks load."""
        dtype, (m, n, k) = problem.dtype, config.tile
        rate = arch.flops[dtype] * TENSOR_EFFICIENCY / arch.sm_count
        read = max(m // 64, 1) * (64 + n) * k * dtype.bytes + tile_bytes(config.tile, dtype)
        fetched = (m / config.cluster[1] + n / config.cluster[0]) * k * dtype.bytes
        wide = access_rate(config.access, dtype)
        return kernel_us(
            problem,
            config.tile,
            k_steps(problem, k),
            Step(config.tile, rate, read, fetched).us(wide, arch),
            wide,
            _TILES_AT_ONCE[config.schedule],
            arch,
        )

    def launches(self, config: Gemm3xConfig) -> Sequence[Sequence[Gemm3xConfig]]:
        return [[dataclasses.replace(config, swizzle=swizzle) for swizzle in _SWIZZLES]]


def stages(config: Gemm3xConfig, dtype: DType, arch: Arch) -> int:
    """Pipeline stages that fit beside the epilogue."""
    free = arch.shared_memory_per_block - _EPILOGUE_BYTES[config.schedule]
    return free // (tile_bytes(config.tile, dtype) + _BARRIERS_PER_STAGE)


def is_feasible(config: Gemm3xConfig, dtype: DType, arch: Arch) -> bool:
    """True if the kernel compiles without spills and its block fits an SM of `arch`."""
    m, n, _ = config.tile
    return (
        not (config.schedule is Schedule.COOPERATIVE and m % 128)
        and m * n <= _ACCUMULATORS[config.schedule]
        and stages(config, dtype, arch) >= _MIN_STAGES
    )
