"""A model's first convolution on sm_90a: few channels, read from NCHW as they are (custom_ops/first/plan.h has the same formulas)."""
from __future__ import annotations

from collections.abc import Sequence

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.kernels.config import UNBOUNDED, ConvProblem, Family, KernelConfig

COLUMNS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128)  # output channels of a product
TILES = (128, 64, 256)  # output pixels of a tile, in rows of 16
_MOST_CHANNELS, _LARGEST_FILTER, _LARGEST_STRIDE = 4, 11, 4
_CHUNK, _THREADS, _TILE_COLUMNS = 8, 128, 16
_FRAGMENTS, _BASE_REGISTERS = 24, 56  # of a thread, beside accumulators and pixels under way
_STAGING = 2 * 64 * 128  # bytes: two units of the epilogue, at most


def serves(dtype: DType, weight: Sequence[int], strides: Sequence[int], dilations: Sequence[int], groups: int) -> bool:
    """Whether there is a kernel for a filter [K, C, R, S]."""
    if dtype.bytes != 2 or len(weight) != 4 or groups != 1 or any(d != 1 for d in dilations):
        return False
    k, c, r, s = weight
    return k % 8 == 0 and c <= _MOST_CHANNELS and max(r, s) <= _LARGEST_FILTER and max(strides) <= _LARGEST_STRIDE


def candidates(problem: ConvProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """Every feasible configuration: `warp` is the filter (rows, columns, channels), `instruction` the strides and 1."""
    weight = (problem.k, problem.c, problem.r, problem.s)
    if not arch.wgmma or not serves(problem.dtype, weight, problem.strides, problem.dilations, problem.groups):
        return ()
    columns = min(COLUMNS, key=lambda n: (-(-problem.k // n) * n, -n))
    configs = (
        KernelConfig(
            arch.number, 0, UNBOUNDED, Family.FIRST_SM90, (tile, columns, depth(problem)), (problem.r, problem.s, problem.c),
            (*problem.strides, 1), align_a=1, align_b=1, consumers=1, resident=1,
        )
        for tile in TILES
    )
    return tuple(config for config in configs if registers(config) <= arch.registers_per_thread and
                 shared_memory(config) <= arch.shared_memory_per_block)


def depth(problem: ConvProblem) -> int:
    """K of the product: each row of the filter is a run of neighbouring elements, in whole chunks, whose number is even."""
    chunks = problem.r * -(-problem.s * _stored_channels(problem.c, problem.strides[1]) // _CHUNK)
    return -(-chunks // 2) * 2 * _CHUNK


def registers(config: KernelConfig) -> int:
    """Of a thread: accumulators, pixels of the next tile, fragments, and a fixed rest."""
    rows, columns = _patch(config)
    loads = -(-rows * columns * config.warp[2] // _THREADS)
    return config.threadblock[1] // 2 + loads + _FRAGMENTS + _BASE_REGISTERS


def shared_memory(config: KernelConfig) -> int:
    """Bytes of a block, at most: the epilogue's staging, weights, vectors and pixels."""
    rows, columns = _patch(config)
    _, n, k = config.threadblock
    patch = rows * columns * _stored_channels(config.warp[2], config.instruction[1]) * 2
    return _STAGING + 2 * n * k + 16 * n + patch + 1024


def _stored_channels(channels: int, stride: int) -> int:
    """Padded by one where pixels would begin at odd elements."""
    return channels + channels * stride % 2


def _patch(config: KernelConfig) -> tuple[int, int]:
    """Rows and columns of the image under a tile."""
    r, s, _ = config.warp
    stride_h, stride_w, _ = config.instruction
    return (config.threadblock[0] // _TILE_COLUMNS - 1) * stride_h + r, (_TILE_COLUMNS - 1) * stride_w + s
