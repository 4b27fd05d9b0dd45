"""Our own sm_90a kernels for GEMM and implicit GEMM: the tiles worth compiling, and which of them a
problem can run.

A block has a producer warpgroup, of which one thread loads operands by TMA and another one
residuals, and one to three consumer warpgroups that multiply by wgmma, 64 rows at a time.
COOPERATIVE: the warpgroups share a tile's rows. PINGPONG: each has a tile of its own, and one's
epilogue hides behind the other's main loop. In a swapped kernel (`instruction[0]` is 1) output
channels are the rows of the product, and the rows of A, any multiple of 16 of them, its columns.
The formulas for shared memory repeat custom_ops/sm90/shape.h.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES
from onnxbolt.integers import ceil_divide
from onnxbolt.kernels.config import (
    UNBOUNDED,
    ConvProblem,
    Family,
    GemmProblem,
    KernelConfig,
    Schedule,
)
from onnxbolt.kernels.staging import (
    MOST_BUFFERS,
    SWIZZLED_ROWS,
    Typed,
    loads_residual,
    staged,
    staging_bytes,
    stored_columns,
)

Problem = GemmProblem | ConvProblem

_C, _P = Schedule.COOPERATIVE, Schedule.PINGPONG
# What wgmma multiplies by at once and custom_ops/sm90/wgmma.h has.
_COLUMNS = (8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 160, 192, 224, 256)
_WIDE_COLUMNS = (64, 96, 128, 192, 256)
_WASTE = 0.25  # of a tile's columns that may lie outside of the output
_K = (64, 48, 32, 16)  # elements of 2 bytes of a k-block
_MAX_BOX = 256  # rows of one copy by TMA
# rows of tiles of a GEMM that blocks walk through together: they share rows of A and of B in L2
_BAND = 8
_SPLITS = (2, 4, 8)
# beside resident weights: what hides the memory's latency, and the least number of stages
_RING_BYTES, _RESIDENT_STAGES = 65536, 4

_WIDE = 16  # bytes that TMA moves at least
_MAX_STAGES, _MIN_STAGES = 16, 3
_FIXED_BYTES = 2048  # barriers, and what alignment takes
_MAX_ACCUMULATORS = {1: 128, 2: 128, 3: 96}  # of a thread, by consumer warpgroups, without spills
_CORNER = (-128, 127)  # of TMA's im2col in four dimensions
_MAX_REACH, _MAX_STRIDE = 255, 8  # likewise: a filter's extent, and a stride


@dataclass(frozen=True)
class Tile90:
    """A tile without its columns, which follow from the problem. `deep`: its k-blocks are of
    twice the length."""

    rows: int
    schedule: Schedule
    consumers: int
    cluster: tuple[int, int] = (1, 1)
    deep: bool = False
    resident: bool = False


# Large tiles load least for what they multiply: L2 and shared memory are what limits a Hopper
# kernel, not the tensor cores. Three warpgroups divide some outputs better among the SMs; small
# tiles are for small problems. Resident weights, like deep k-blocks, leave more of TMA to the
# activations.
TILES = (
    Tile90(128, _P, 2),
    Tile90(128, _P, 2, resident=True),
    Tile90(128, _P, 2, cluster=(2, 1)),
    Tile90(128, _P, 2, deep=True),
    Tile90(256, _C, 2),
    Tile90(256, _C, 2, cluster=(2, 1)),
    Tile90(192, _C, 3),
    Tile90(128, _C, 2),
    Tile90(128, _C, 2, resident=True),
    Tile90(128, _C, 2, cluster=(2, 1)),
    Tile90(128, _C, 2, deep=True),
    Tile90(64, _P, 2),
    Tile90(64, _P, 2, resident=True),
    Tile90(64, _P, 2, deep=True),
    Tile90(64, _P, 3),
    Tile90(64, _P, 3, resident=True),
    Tile90(64, _C, 1),
)

# Of swapped kernels, one warpgroup each. Where an SM has more than two tiles, others divide evenly,
# too, and hide their epilogues.
_SWAPPED_COLUMNS, _SWAPPED_ROWS, _SWAPPED_ROUNDS = 128, (80, 96, 112), 2


def candidates(problem: Problem, arch: Arch) -> tuple[KernelConfig, ...]:
    """Every configuration of these families for `problem`, each for all m; empty where TMA
    cannot read or write its rows."""
    if not supports(problem, arch):
        return ()
    depths = block_depths(problem)
    configs = [
        _config(tile, columns, k, problem, arch)
        for k in depths
        for columns in _tile_columns(problem)
        for tile in TILES
    ]
    configs += (config for k in depths for config in _swapped(k, problem, arch))
    feasible = (config for config in dict.fromkeys(configs) if fits(config, problem, arch))
    return tuple(
        variant for config in feasible for variant in (config, *_splits(config, problem, arch))
    )


def supports(problem: Problem, arch: Arch) -> bool:
    """Whether TMA can read and write the problem's rows of 16 bytes, within im2col's limits."""
    if not arch.wgmma or not arch.supports(problem.dtype):
        return False
    if isinstance(problem, ConvProblem) and not _tile_columns(problem):
        return False
    if depth(problem) % problem.dtype.alignment or extent(problem)[1] % max(
        problem.dtype.alignment, _WIDE // problem.out.bytes
    ):
        return False
    return not isinstance(problem, ConvProblem) or is_matrix(problem) or _im2col_reaches(problem)


def is_matrix(problem: Problem) -> bool:
    """Whether the activations are a matrix as they lie: a GEMM's, and those of 1x1 convolutions
    over every pixel."""
    if not isinstance(problem, ConvProblem):
        return True
    return problem.r == problem.s == 1 and problem.strides == (1, 1) and not any(problem.pads)


def _im2col_reaches(problem: ConvProblem) -> bool:
    top, left, bottom, right = problem.pads
    reach = ((problem.r - 1) * problem.dilations[0], (problem.s - 1) * problem.dilations[1])
    corners = (-top, -left, bottom - reach[0], right - reach[1])
    within = all(_CORNER[0] <= corner <= _CORNER[1] for corner in corners)
    return within and max(reach) <= _MAX_REACH and max(problem.strides) <= _MAX_STRIDE


# --- the problem as a GEMM ------------------------------------------------------------------------


def extent(problem: Problem) -> tuple[int, int]:
    """Rows and columns of the output as a matrix."""
    return problem.rows, problem.k if isinstance(problem, ConvProblem) else problem.n


def depth(problem: Problem) -> int:
    """Channels of one filter position."""
    return problem.depth if isinstance(problem, ConvProblem) else problem.k


def k_blocks(config: KernelConfig, problem: Problem) -> int:
    """Steps of a tile's main loop, all splits together."""
    taps = problem.r * problem.s if isinstance(problem, ConvProblem) else 1
    return taps * ceil_divide(depth(problem), config.threadblock[2])


def boxes(k: int, dtype: DType) -> int:
    """Copies by TMA of a k-block's rows: as wide as a swizzled row may be."""
    return k * dtype.bytes // next(width for width in SWIZZLED_ROWS if k * dtype.bytes % width == 0)


# --- configurations -------------------------------------------------------------------------------


def _tile_columns(problem: Problem) -> list[int]:
    """Of tiles: all of one group, where there are several, since TMA would not tell them apart."""
    if isinstance(problem, ConvProblem) and problem.groups > 1:
        widths = [width for width in _COLUMNS if problem.k // problem.groups % width == 0]
        return [width for width in widths if 2 * width >= widths[-1]]
    return _columns(extent(problem)[1])


def _columns(count: int) -> list[int]:
    """Tile widths that waste little: the narrowest that takes all columns, and wide ones that
    divide them nearly."""
    narrow = [width for width in _COLUMNS if width >= count][:1]
    return narrow + [
        width
        for width in _WIDE_COLUMNS
        if width < count and ceil_divide(count, width) * width * (1 - _WASTE) <= count
    ]


def _config(tile: Tile90, columns: int, k: int, problem: Problem, arch: Arch) -> KernelConfig:
    is_conv = isinstance(problem, ConvProblem)
    wide, k = problem.dtype.alignment, k * (2 if tile.deep else 1)
    beside_weights = max(
        _RESIDENT_STAGES, min(_RING_BYTES // (tile.rows * k * problem.dtype.bytes), _MAX_STAGES)
    )
    return KernelConfig(
        arch.number,
        0,
        UNBOUNDED,
        Family.CONV_SM90 if is_conv else Family.GEMM_SM90,
        (tile.rows, columns, k),
        stages=beside_weights if tile.resident else 0,
        swizzle=1 if is_conv else _BAND,
        cluster=tile.cluster,
        schedule=tile.schedule,
        align_a=wide,
        align_b=wide,
        align_c=wide,
        consumers=tile.consumers,
        resident=int(tile.resident),
    )


def _swapped(k: int, problem: Problem, arch: Arch) -> Iterator[KernelConfig]:
    """The swapped kernel that divides few tiles among the SMs best, where it does so better than
    tiles of 64 or 128 rows."""
    tensors = any(EPILOGUES[step].operand == "tensor" for step in problem.chain)
    if tensors or problem.out.bytes != 2 or _SWAPPED_COLUMNS not in _tile_columns(problem):
        return
    m, n = extent(problem)
    columns = ceil_divide(n, _SWAPPED_COLUMNS)
    rows_of_sm = {
        rows: ceil_divide(ceil_divide(m, rows) * columns, arch.sm_count) * rows
        for rows in (64, *_SWAPPED_ROWS, 128)
    }
    rows = min(rows_of_sm, key=rows_of_sm.__getitem__)
    if rows in _SWAPPED_ROWS and rows_of_sm[rows] <= _SWAPPED_ROUNDS * rows:
        yield replace(
            _config(Tile90(rows, _C, 1), _SWAPPED_COLUMNS, k, problem, arch), instruction=(1, 0, 0)
        )


def k_block(channels: int, dtype: DType) -> int:
    """Elements of a k-block: the number that wastes least of `channels`, the largest of equal
    ones."""
    return min(
        (size * 2 // dtype.bytes for size in _K),
        key=lambda size: (ceil_divide(channels, size) * size, -size),
    )


def block_depths(problem: Problem) -> tuple[int, ...]:
    """Elements of k-blocks worth trying: the number that wastes least, and the widest where that
    takes fewer copies by TMA. Not with groups: a wide block reads more of the next group than it
    has to, where infinities and weights of zero would make NaN.
    """
    least, widest = k_block(depth(problem), problem.dtype), _K[0] * 2 // problem.dtype.bytes
    copies, fewest = (
        ceil_divide(depth(problem), k) * boxes(k, problem.dtype) for k in (least, widest)
    )
    is_grouped = isinstance(problem, ConvProblem) and problem.groups > 1
    return (least, widest) if fewest < copies and not is_grouped else (least,)


def _splits(config: KernelConfig, problem: Problem, arch: Arch) -> Iterator[KernelConfig]:
    """The k-blocks of a tile shared by the blocks of a cluster, where tiles alone leave SMs
    idle."""
    for split in splits(config, problem, arch):
        if split <= k_blocks(config, problem) and tiles(config, problem) * split <= arch.sm_count:
            yield replace(config, split_k=split)


# --- feasibility ----------------------------------------------------------------------------------


def splits(config: KernelConfig, kernel: Typed, arch: Arch) -> list[int]:
    """Numbers of blocks that can share a tile's k-blocks; none where clusters serve another end,
    or the exchange has no room."""
    if (
        config.schedule is not _C
        or config.cluster != (1, 1)
        or config.resident
        or config.instruction[0]
    ):
        return []
    rows, columns, k = config.threadblock
    ring, pieces = (
        (rows + columns) * k * kernel.dtype.bytes * stages(config, kernel, arch),
        units(config, kernel),
    )
    if loads_residual(kernel) and pieces // _groups_of_tile(config) > MOST_BUFFERS:
        return []
    shared = [split for split in _SPLITS if pieces % split == 0 or split % pieces == 0]
    return [
        split for split in shared if max(split, pieces) * (rows * columns * 4 // pieces) <= ring
    ]


def fits(config: KernelConfig, problem: Problem, arch: Arch) -> bool:
    """Whether the kernel compiles without spills and runs `problem`: registers, shared memory,
    columns of resident weights."""
    rows, columns, _ = config.threadblock
    if group_rows(config) // 64 * product(config)[1] // 2 > _MAX_ACCUMULATORS[config.consumers]:
        return False
    if columns % (8 * config.cluster[0]) or rows % (8 * config.cluster[1]):
        return False  # the blocks of a cluster load whole groups of eight swizzled rows
    if rows // config.cluster[1] > _MAX_BOX or columns // config.cluster[0] > _MAX_BOX:
        return False
    if not config.resident:
        return stages(config, problem, arch) >= _MIN_STAGES
    held = (
        _free_bytes(config, problem, arch)
        - config.stages * rows * config.threadblock[2] * problem.dtype.bytes
    )
    weights = k_blocks(config, problem) * columns * config.threadblock[2] * problem.dtype.bytes
    return weights <= held and ceil_divide(extent(problem)[1], columns) <= arch.sm_count < tiles(
        config, problem
    )


def stages(config: KernelConfig, kernel: Typed, arch: Arch) -> int:
    """Stages of the ring that the kernel will have."""
    if config.stages:
        return config.stages
    rows, columns, k = config.threadblock
    return min(
        _free_bytes(config, kernel, arch) // ((rows + columns) * k * kernel.dtype.bytes),
        _MAX_STAGES,
    )


def _free_bytes(config: KernelConfig, kernel: Typed, arch: Arch) -> int:
    """Shared memory beside the epilogues' staging buffers and vectors."""
    rows, columns, _ = config.threadblock
    if config.instruction[0]:  # units of 64 channels of all rows; vectors are in registers
        return (
            arch.shared_memory_per_block
            - _FIXED_BYTES
            - config.consumers * 2 * rows * 64 * kernel.out.bytes
        )
    staging = staging_bytes(
        columns, staged(kernel), loads_residual(kernel), group_rows(config) // 64
    )
    vectors = sum(EPILOGUES[step].operand == "vector" for step in kernel.chain) * columns * 4
    return arch.shared_memory_per_block - _FIXED_BYTES - config.consumers * (staging + vectors)


def tiles(config: KernelConfig, problem: Problem) -> int:
    """Tiles of the output; a cluster's blocks have one each, even where some of them are
    outside."""
    rows, columns = extent(problem)
    m, n = config.cluster
    return (
        ceil_divide(rows, config.threadblock[0] * m)
        * ceil_divide(columns, config.threadblock[1] * n)
        * m
        * n
    )


def units(config: KernelConfig, kernel: Typed) -> int:
    """Pieces of 64 rows in which a tile is stored: what blocks that split k divide among
    themselves."""
    rows, columns, _ = config.threadblock
    return rows // 64 * (columns // stored_columns(columns, staged(kernel), loads_residual(kernel)))


def product(config: KernelConfig) -> tuple[int, int]:
    """Rows and columns of a tile's product."""
    rows, columns, _ = config.threadblock
    return (columns, rows) if config.instruction[0] else (rows, columns)


def group_rows(config: KernelConfig) -> int:
    """Rows of a tile's product that one warpgroup has."""
    return product(config)[0] // _groups_of_tile(config)


def _groups_of_tile(config: KernelConfig) -> int:
    return 1 if config.schedule is _P else config.consumers
