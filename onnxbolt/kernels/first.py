"""A model's first convolution on sm_90a: few channels, read from NCHW as they are
(custom_ops/first/plan.h has the same formulas)."""

from __future__ import annotations

from collections.abc import Sequence

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.kernels.config import UNBOUNDED, ConvProblem, Family, KernelConfig
from onnxbolt.kernels.staging import staging_bytes

COLUMNS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128)  # output channels of a product
_TILES, _TILES_OF_FEW = (128, 64), (256, 128, 64)  # output pixels of a tile, in rows of 16
_FEW = 32  # output channels whose tiles are small enough to have more pixels
_GROUPS, _MOST_GROUPS = 4, 6  # warpgroups of a block, as a rule and at most
_MOST_CHANNELS, _LARGEST_FILTER, _LARGEST_STRIDE = 4, 11, 4
_QUAD, _CHUNK, _GROUP_THREADS, _TILE_COLUMNS = 4, 8, 128, 16
_STEPS_AT_ONCE, _CHUNKS_AT_ONCE, _BASE_REGISTERS = 6, 4, 36


def serves(
    dtype: DType,
    weight: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> bool:
    """Whether there is a kernel for a filter [K, C, R, S]."""
    if dtype.bytes != 2 or len(weight) != 4 or groups != 1 or any(d != 1 for d in dilations):
        return False
    k, c, r, s = weight
    return (
        k % 8 == 0
        and c <= _MOST_CHANNELS
        and max(r, s) <= _LARGEST_FILTER
        and max(strides) <= _LARGEST_STRIDE
    )


def candidates(problem: ConvProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """Every feasible configuration: `warp` is the filter (rows, columns, channels),
    `instruction` the strides and 1."""
    return busiest(
        [c for c in configurations(problem, arch) if fits(c, arch, registers(c), shared_memory(c))]
    )


def configurations(problem: ConvProblem, arch: Arch) -> list[KernelConfig]:
    """All there are, feasible or not."""
    weight = (problem.k, problem.c, problem.r, problem.s)
    if not arch.wgmma or not serves(
        problem.dtype, weight, problem.strides, problem.dilations, problem.groups
    ):
        return []
    columns = min(COLUMNS, key=lambda n: (-(-problem.k // n) * n, -n))
    return [
        KernelConfig(
            arch.number,
            0,
            UNBOUNDED,
            Family.STEM_SM90,
            (tile, columns, depth(problem)),
            (problem.r, problem.s, problem.c),
            (*problem.strides, 1),
            align_a=1,
            align_b=1,
            consumers=groups,
            resident=1,
        )
        for tile in (_TILES_OF_FEW if columns <= _FEW else _TILES)
        for groups in range(1, _MOST_GROUPS + 1)
    ]


def busiest(feasible: Sequence[KernelConfig]) -> tuple[KernelConfig, ...]:
    """Of each tile those with the most warpgroups, and with as many as there are as a rule."""
    most = {c.threadblock[0]: c.consumers for c in sorted(feasible, key=lambda c: c.consumers)}
    return tuple(
        c
        for c in feasible
        if c.consumers in (most[c.threadblock[0]], min(_GROUPS, most[c.threadblock[0]]))
    )


def fits(config: KernelConfig, arch: Arch, of_thread: int, of_block: int) -> bool:
    """Whether a kernel with so many registers of a thread and bytes of shared memory runs with
    the configuration's warpgroups."""
    threads = config.consumers * _GROUP_THREADS
    most = min(arch.registers_per_sm // threads // 8 * 8, arch.registers_per_thread)
    return of_thread <= most and of_block <= arch.shared_memory_per_block


def depth(problem: ConvProblem) -> int:
    """K of the product: each row of the filter is a run of neighbouring elements, in whole
    chunks, whose number is even."""
    chunks = problem.r * -(-problem.s * _stored_channels(problem.c, problem.strides[1]) // _CHUNK)
    return -(-chunks // 2) * 2 * _CHUNK


def registers(config: KernelConfig, behind: int = 0) -> int:
    """Of a thread: the next tile's pixels, then weights on their way or accumulators and
    fragments, or what comes `behind` the product, and a fixed rest."""
    _, n, k = config.threadblock
    rows, quads = _patch(config)
    pixels = -(-rows * quads // _GROUP_THREADS) * _QUAD * config.warp[2]
    weights = (
        min(-(-n * k // _CHUNK // (config.consumers * _GROUP_THREADS)), _CHUNKS_AT_ONCE) * _CHUNK
    )
    products = n // 2 + 4 * min(k // 16, _STEPS_AT_ONCE)
    return pixels + max(weights, products, behind) + _BASE_REGISTERS


def shared_memory(config: KernelConfig, columns: int = 0) -> int:
    """Bytes of a block, at most: each warpgroup's staging, vectors (of `columns`, if the output
    has others) and pixels, and the weights."""
    _, n, k = config.threadblock
    rows, quads = _patch(config)
    stored = columns or n
    staging, vectors = (
        max(staging_bytes(stored, out, residual=False) for out in (DType.F16, DType.F32)),
        4 * 4 * stored,
    )
    patch = (
        rows * quads * _QUAD * _stored_channels(config.warp[2], config.instruction[1]) + 2 * _CHUNK
    ) * 2
    return config.consumers * (staging + vectors + patch) + 2 * n * k


def _stored_channels(channels: int, stride: int) -> int:
    """Padded by one where pixels would begin at odd elements."""
    return channels + channels * stride % 2


def _patch(config: KernelConfig) -> tuple[int, int]:
    """Rows of the image under a tile, and quads of columns, wherever in a quad the first column
    is."""
    r, s, _ = config.warp
    stride_h, stride_w, _ = config.instruction
    columns = (_TILE_COLUMNS - 1) * stride_w + s
    return (config.threadblock[0] // _TILE_COLUMNS - 1) * stride_h + r, -(
        -(columns + _QUAD - 1) // _QUAD
    )
