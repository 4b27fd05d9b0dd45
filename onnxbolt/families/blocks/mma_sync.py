"""CUTLASS 2.x's kernels for mma.sync: the registers and shared memory that they need, and the tiles
worth compiling.

The choice of tiles follows Bolt (section 3.2.2): the largest warp tile that registers allow, since
a warp tile of WM x WN does WM*WN/(WM+WN) products per element read from shared memory; four or
eight warps to a threadblock; small threadblocks where the problem is small, so that every SM has
one. All numbers are in the units of the hardware: bytes of shared memory of one block, 32-bit
registers of one thread.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from onnxbolt.archs import Arch, Capability, Shape
from onnxbolt.dtypes import DType
from onnxbolt.families.base import KernelConfig, access, positive, stage_count, tile_size
from onnxbolt.families.blocks.tiled import Step, access_rate, k_steps, kernel_us
from onnxbolt.families.row import at
from onnxbolt.kernel_time import TENSOR_EFFICIENCY
from onnxbolt.problems import Product

# registers of a thread besides accumulators and operand fragments: iterators, predicates, the
# epilogue's operands
_BASE_REGISTERS = 40
_SMALLEST_CP_ASYNC = 4  # bytes
# blocks that run at the same time share rows of A in L2; CUTLASS reduces the number where N has
# fewer tiles
_SWIZZLE = 4
# the most rows of pixels per thread of a convolution: each needs a pointer and two words of
# predicates, and sixteen spill
MAX_IMAGE_ROWS = 8
# Walk.OPTIMIZED keeps the predicates of a filter's rows in one word, those of its columns
# in another
MASK_BITS = 32
# the most accesses to a tile by one thread: CUTLASS's iterator keeps a bit for each in four words
MAX_PREDICATES = 64
# warps of an SM that keep its tensor cores busy: two for each, so that one loads while the other
# multiplies
_WARPS_FOR_FULL_RATE = 8


class Walk(enum.IntEnum):
    """How an implicit GEMM walks the activations (CUTLASS's iterator algorithms)."""

    NONE = 0  # the activations are a matrix
    ANALYTIC = 1  # any filter
    OPTIMIZED = 2  # predicates are computed once for each filter row and column
    FIXED_CHANNELS = 3  # 4 or 8 input channels: filter positions are packed along k


WALKS = {walk: int(walk) for walk in Walk}


@dataclass(frozen=True, kw_only=True)
class MmaConfig(KernelConfig):
    """A threadblock's tile, a warp's part of it, and the instruction's, each (m, n, k)."""

    tile: tuple[int, int, int] = at(
        "tile_m", "tile_n", "tile_k", sound=lambda tile: all(map(tile_size, tile))
    )
    warp: tuple[int, int, int] = at("warp_m", "warp_n", "warp_k", sound=positive)
    instruction: tuple[int, int, int] = at("instruction_m", "instruction_n", "instruction_k")
    stages: int = at("stages", sound=stage_count)
    swizzle: int = at("swizzle", default=_SWIZZLE, sound=positive)
    # elements in one access of A and B, and of D and residuals
    access_k: int = at("align_a", "align_b", repeated=True, default=8, sound=access)
    access_n: int = at("align_c", default=8, sound=access)

    def mismatched(self) -> list[str]:
        """The warp tile, unless it divides the threadblock's tile."""
        uneven = any(size % part for size, part in zip(self.tile, self.warp, strict=True))
        return super().mismatched() + (["warp"] if uneven else [])

    @property
    def warps(self) -> int:
        """Warps of a threadblock."""
        return (self.tile[0] // self.warp[0]) * (self.tile[1] // self.warp[1])

    @property
    def threads(self) -> int:
        """Threads of a threadblock."""
        return 32 * self.warps


M = TypeVar("M", bound=MmaConfig)


@dataclass(frozen=True)
class Tile:
    """A tile with the pipeline depths worth trying; a warp tile spans the whole K of its
    threadblock. K is given for types of 2 bytes; types of 4 bytes take half of it, so that a row
    has the same bytes."""

    m: int
    n: int
    k: int
    warp: tuple[int, int]
    stages: tuple[int, ...]

    def threadblock(self, dtype: DType) -> Shape:
        """(m, n, k)."""
        return self.m, self.n, self.k * 2 // dtype.bytes

    def warp_shape(self, dtype: DType) -> Shape:
        """(m, n, k)."""
        return *self.warp, self.k * 2 // dtype.bytes


_TURING = (
    Tile(256, 128, 32, (64, 64), (2,)),
    Tile(128, 256, 32, (64, 64), (2,)),
    Tile(128, 128, 32, (64, 64), (2,)),
    Tile(256, 64, 32, (64, 64), (2,)),
    Tile(64, 256, 32, (64, 64), (2,)),
    Tile(128, 64, 32, (64, 32), (2,)),
    Tile(64, 128, 32, (32, 64), (2,)),
    Tile(64, 64, 32, (32, 32), (2,)),
)

_AMPERE = (
    Tile(256, 128, 32, (64, 64), (3,)),
    Tile(128, 256, 32, (64, 64), (3,)),
    Tile(256, 128, 64, (64, 64), (3,)),
    Tile(128, 256, 64, (64, 64), (3,)),
    Tile(128, 128, 32, (64, 64), (3, 4, 5)),
    Tile(128, 128, 64, (64, 64), (3, 4)),
    Tile(256, 64, 32, (64, 64), (4,)),
    Tile(64, 256, 32, (64, 64), (4,)),
    Tile(256, 64, 64, (64, 64), (3, 4)),
    Tile(64, 256, 64, (64, 64), (3, 4)),
    Tile(128, 64, 32, (64, 32), (6,)),
    Tile(64, 128, 32, (32, 64), (6,)),
    Tile(128, 64, 64, (64, 32), (3,)),
    Tile(64, 128, 64, (32, 64), (3,)),
    Tile(64, 64, 32, (32, 32), (10,)),
    Tile(64, 64, 64, (32, 32), (5,)),
    # few rows or few columns
    Tile(128, 32, 64, (32, 32), (4,)),
    Tile(32, 64, 64, (16, 32), (5,)),
    # 64x16 (warp 16x16) is left out: CUTLASS 4.2 compiles it, but it computes wrong numbers on an
    # H200, in GEMM and Conv
)


def tiles(arch: Arch) -> tuple[Tile, ...]:
    """The tiles for `arch`: two stages without cp.async, deep pipelines with it."""
    return _AMPERE if arch.has(Capability.CP_ASYNC) else _TURING


def configs(
    kind: type[M], dtype: DType, access_k: int, access_n: int, arch: Arch, **fields: Any
) -> Iterator[M]:
    """Every tile with every depth of its pipeline."""
    for tile in tiles(arch):
        for stages in (2,) if needs_two_stages(access_k, dtype) else tile.stages:
            yield kind(
                arch=arch.number,
                tile=tile.threadblock(dtype),
                warp=tile.warp_shape(dtype),
                instruction=arch.mma[dtype],
                stages=stages,
                access_k=access_k,
                access_n=access_n,
                **fields,
            )


def needs_two_stages(align: int, dtype: DType) -> bool:
    """True if only pipelines of two stages work: cp.async copies at least 4 bytes, so single 2-byte
    elements pass through registers, for which CUTLASS has two stages."""
    return align * dtype.bytes < _SMALLEST_CP_ASYNC


def tile_bytes(tile: tuple[int, int, int], dtype: DType) -> int:
    """Shared memory of one pipeline stage: (TM + TN) * TK elements."""
    m, n, k = tile
    return (m + n) * k * dtype.bytes


def shared_memory(config: MmaConfig, dtype: DType) -> int:
    """Bytes of one block: its pipeline's stages, which the epilogue reuses."""
    return config.stages * tile_bytes(config.tile, dtype)


def registers(config: MmaConfig) -> int:
    """Registers of one thread: WM*WN/32 accumulators, two buffers of operand fragments, and a fixed
    rest."""
    m, n, _ = config.warp
    return m * n // 32 + (m + n) // 2 + _BASE_REGISTERS


def blocks_per_sm(config: MmaConfig, dtype: DType, arch: Arch) -> int:
    """Blocks that one SM holds at a time, at least 1 for a feasible configuration."""
    reserved = (
        arch.shared_memory_per_sm - arch.shared_memory_per_block
    )  # shared memory that the CUDA runtime takes from each block
    by_memory = arch.shared_memory_per_sm // (shared_memory(config, dtype) + reserved)
    by_registers = arch.registers_per_sm // (registers(config) * config.threads)
    return min(by_memory, by_registers, arch.threads_per_sm // config.threads)


def is_feasible(config: MmaConfig, dtype: DType, arch: Arch) -> bool:
    """True if the kernel compiles without spills and its block fits an SM of `arch`."""
    return (
        arch.supports(dtype)
        and (arch.has(Capability.CP_ASYNC) or config.stages == 2)
        and shared_memory(config, dtype) <= arch.shared_memory_per_block
        and registers(config) <= arch.registers_per_thread
        and blocks_per_sm(config, dtype, arch) >= 1
    )


def predicted_us(problem: Product, config: MmaConfig, arch: Arch, packed: bool = False) -> float:
    """Microseconds of one launch; `packed`: filter positions lie along k without gaps."""
    dtype = problem.dtype
    loaded = tile_bytes(config.tile, dtype)
    rate = arch.flops[dtype] * TENSOR_EFFICIENCY / arch.sm_count
    rate *= arch.mma_sync_share * min(1.0, _issue_rate(config, dtype, arch))
    read = config.warps * (config.warp[0] + config.warp[1]) * config.tile[2] * dtype.bytes
    step = Step(config.tile, rate, read + loaded, float(loaded))
    return kernel_us(
        problem,
        config.tile,
        k_steps(problem, config.tile[2], packed),
        step.us(access_rate(config.access_k, dtype), arch),
        access_rate(config.access_n, dtype),
        blocks_per_sm(config, dtype, arch),
        arch,
    )


def _issue_rate(config: MmaConfig, dtype: DType, arch: Arch) -> float:
    """The part of the tensor cores' rate that the warps resident on an SM can use."""
    resident = config.warps * blocks_per_sm(config, dtype, arch)
    return 0.6 + 0.4 * min(1.0, resident / _WARPS_FOR_FULL_RATE)
