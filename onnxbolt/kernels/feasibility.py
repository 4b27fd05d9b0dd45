"""Which configurations can be compiled and launched, by formula: shared memory, registers, stages,
alignment.

All in the units of the hardware: bytes of shared memory of one block, 32-bit registers of one
thread.
"""

from __future__ import annotations

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.kernels.config import Family, KernelConfig, Schedule

# registers of a 2.x thread beside accumulators and operand fragments: iterators, predicates, the
# epilogue's operands
_BASE_REGISTERS_2X = 40
# shared memory that a 3.x epilogue and its barriers take (measured with CUTLASS 4.2)
_EPILOGUE_3X = {Schedule.COOPERATIVE: 33792, Schedule.PINGPONG: 17408}
# fp32 accumulators that the consumer warpgroups hold without spilling
_ACCUMULATORS_3X = {Schedule.COOPERATIVE: 32768, Schedule.PINGPONG: 16384}
_BARRIERS_PER_STAGE = 16
_MIN_STAGES_3X = 3
_SMALLEST_CP_ASYNC = 4  # bytes
# of a convolution's thread: each has a pointer and two words of predicates, and sixteen of them
# spill
MAX_IMAGE_ROWS = 8
# the optimized iterator of 2.x convolutions keeps a filter row's and a filter column's predicates
# in one word each
MASK_BITS = 32
# of a thread: CUTLASS's GEMM iterator keeps one bit per access to a tile, in four words of 16
MAX_PREDICATES = 64


def alignment(elements: int, dtype: DType) -> int:
    """The widest access, in elements and at most 16 bytes, that divides rows of `elements`: 8,
    4, 2, 1 (4-byte types: 4, 2, 1)."""
    return next(
        width for width in (8, 4, 2, 1) if width <= dtype.alignment and elements % width == 0
    )


def warps(config: KernelConfig) -> int:
    """Warps of a 2.x threadblock."""
    return (config.threadblock[0] // config.warp[0]) * (config.threadblock[1] // config.warp[1])


def threads(config: KernelConfig) -> int:
    """Threads of a block; 3.x has two consumer warpgroups and one producer."""
    return 384 if config.family is Family.GEMM_3X else 32 * warps(config)


def tile_bytes(config: KernelConfig, dtype: DType) -> int:
    """Shared memory of one pipeline stage: (TM + TN) * TK elements."""
    m, n, k = config.threadblock
    return (m + n) * k * dtype.bytes


def shared_memory(config: KernelConfig, dtype: DType) -> int:
    """Shared memory of one 2.x block: its pipeline's stages (the epilogue reuses them)."""
    return config.stages * tile_bytes(config, dtype)


def registers(config: KernelConfig) -> int:
    """Registers of one 2.x thread: WM*WN/32 accumulators, two buffers of operand fragments, and
    a fixed rest."""
    m, n, _ = config.warp
    return m * n // 32 + (m + n) // 2 + _BASE_REGISTERS_2X


def stages_3x(config: KernelConfig, dtype: DType, arch: Arch) -> int:
    """Pipeline stages that fit beside a 3.x kernel's epilogue."""
    free = arch.shared_memory_per_block - _EPILOGUE_3X[config.schedule]
    return free // (tile_bytes(config, dtype) + _BARRIERS_PER_STAGE)


def needs_two_stages(align: int, dtype: DType) -> bool:
    """cp.async copies 4 bytes at least: single 2-byte elements go through registers, which
    CUTLASS does in two stages."""
    return align * dtype.bytes < _SMALLEST_CP_ASYNC


def blocks_per_sm(config: KernelConfig, dtype: DType, arch: Arch) -> int:
    """Blocks that one SM holds at a time, at least 1 for a feasible configuration."""
    if config.family is Family.GEMM_3X:
        return 1
    # the runtime's share of each block
    reserved = arch.shared_memory_per_sm - arch.shared_memory_per_block
    by_memory = arch.shared_memory_per_sm // (shared_memory(config, dtype) + reserved)
    by_registers = arch.registers_per_sm // (registers(config) * threads(config))
    return min(by_memory, by_registers, arch.threads_per_sm // threads(config))


def predicates(config: KernelConfig) -> int:
    """Guarded accesses that one thread of a 2.x GEMM makes to load the larger of its two tiles."""
    m, n, k = config.threadblock
    return max(m // config.align_a, n // config.align_b) * k // threads(config)


def image_rows(config: KernelConfig, dtype: DType) -> int:
    """Pixels of the activation tile that one thread of a 2.x convolution loads, 16 bytes at a
    time."""
    m, _, k = config.threadblock
    return m * k * dtype.bytes // (16 * threads(config))


def is_feasible(config: KernelConfig, dtype: DType, arch: Arch) -> bool:
    """Whether `config` compiles without spills and its block fits an SM of `arch`."""
    if config.family is Family.GEMM_3X:
        m, n, _ = config.threadblock
        cooperative = config.schedule is Schedule.COOPERATIVE
        return (
            arch.wgmma
            and not (cooperative and m % 128)
            and m * n <= _ACCUMULATORS_3X[config.schedule]
            and stages_3x(config, dtype, arch) >= _MIN_STAGES_3X
        )
    return (
        arch.supports(dtype)
        and (arch.cp_async or config.stages == 2)
        and shared_memory(config, dtype) <= arch.shared_memory_per_block
        and registers(config) <= arch.registers_per_thread
        and (config.family is not Family.GEMM_2X or predicates(config) <= MAX_PREDICATES)
        and (config.family is not Family.CONV_2X or image_rows(config, dtype) <= MAX_IMAGE_ROWS)
        and blocks_per_sm(config, dtype, arch) >= 1
    )
