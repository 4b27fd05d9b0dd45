"""Predicted times of our own sm_90a kernels (GEMM_SM90, CONV_SM90), one block to an SM.

A k-block takes what the slowest of tensor cores, shared memory and TMA takes. COOPERATIVE adds a
tile's epilogue to its main loop; PINGPONG hides epilogues under other tiles' main loops, all but
the last, and pays for the turns. The constants were fitted to 307 measurements on one H200: fifteen
of ResNet-50's convolutions at batch 32, up to 38 tiles for each (root mean square of the relative
error 16%; the predicted choice takes 1.024 times the best, geometric mean), beginning with
constants that 800 others had given. What short rows cost a copy was fitted to 2,839 more: layers of
four CNNs and BERT (root mean square 23% to 16%, the predicted choice 1.060 to 1.033); what weights
cost whose rows begin within a sector to these and 595 others, of 24 to 672 channels (the choice
1.076 to 1.049, of these).
"""

from __future__ import annotations

from dataclasses import replace

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES
from onnxbolt.integers import ceil_divide
from onnxbolt.kernels.config import ConvProblem, KernelConfig, Schedule
from onnxbolt.kernels.sm90 import (
    Problem,
    boxes,
    depth,
    is_matrix,
    k_blocks,
    product,
    stages,
    tiles,
    units,
)

CLOCKS_PER_US = 1755.0  # under load
# in a chain of these kernels, which begin before the one before has ended
LAUNCH_US, _CLUSTER_US = 0.93, 0.15
_PRODUCTS = 4096 * 0.89  # FLOP a clock of one SM's tensor cores, types of 2 bytes
_SHARED = 128.0  # bytes a clock of shared memory, reads and writes
_MATRIX_LOAD, _IM2COL_LOAD, _WEIGHT_LOAD = 74.5, 75.0, 78.0  # bytes a clock that TMA brings in
_IM2COL_CLOCKS = 30.0  # of a k-block that im2col copies, whatever its size
# clocks of each row of a copy, however short: of a matrix or weights, and by im2col
_ROW, _IM2COL_ROW = 2.0, 1.45
# bytes of L2; further clocks of a row of weights that begins within one, where all SMs read it
_SECTOR, _BROKEN_ROW = 32, 12.0
# for rows that lie across the memory's lines: in the image they do not begin at multiples of their
# width
_ACROSS = 2.0
_LATENCY_CLOCKS = 190.0  # from a stage's request to its arrival, beyond what is hidden
# factor for a k-block of several boxes: the ring has fewer stages, and the first comes later
_DEEP = 1.04
_PINGPONG_BLOCK, _TURN_US = 0.895, 0.31  # of a k-block's time where warpgroups take turns; a turn
_EPILOGUE_US = 0.06
_STORE = 33.0  # bytes a clock of one SM, residuals included
LANES = 128 * 1.97  # operations of an epilogue in a clock
_STAGING_OPERATIONS = 1.8  # of each output, beside its chain's
# pixels of a plane that a warp stores at once, in eight planes; clocks of an SM for each value
_PLANE_PIXELS, _PLANE_VALUE = 8, 0.25
_SPLIT_US = 0.7  # of the barriers of a cluster
_REMOTE = 8.6  # bytes a clock that one SM gets from others
# part of a cooperative kernel's epilogues that counts where a block has several tiles
_OVERLAPPED = 0.68
_MEMORY = 0.91  # of a copy's time over the same bytes
_LOSS = 0.57  # part of the shorter of (compute, memory) that is not hidden behind the longer


def fused_us(problem: Problem, config: KernelConfig, arch: Arch, memory_us: float) -> float:
    """One launch; `memory_us` is what a copy of all operands takes."""
    launch = LAUNCH_US + (_CLUSTER_US if config.cluster != (1, 1) else 0.0)
    return launch + overlapped_us(_compute_us(problem, config, arch), memory_us)


def in_whole_sectors(problem: Problem) -> Problem:
    """As the memory sees it: CONV_SM90 stores eight pixels of a plane at once, which in 16 bits
    is half a sector."""
    return (
        replace(problem, out=DType.F32)
        if isinstance(problem, ConvProblem) and problem.y_nchw
        else problem
    )


def overlapped_us(compute: float, memory_us: float) -> float:
    """The busiest SM's time beside that of device memory."""
    memory = memory_us * _MEMORY
    return max(compute, memory) + _LOSS * min(compute, memory)


def _compute_us(problem: Problem, config: KernelConfig, arch: Arch) -> float:
    """The most loaded SM's time, device memory aside."""
    rows, columns, _ = config.threadblock
    split = config.split_k
    main = (
        ceil_divide(k_blocks(config, problem), split)
        * block_clocks(problem, config, arch)
        / CLOCKS_PER_US
    )
    epilogue = epilogue_us(problem, rows * columns / min(split, units(config, problem)))
    if split > 1:
        # bytes that a block receives for the units that it finishes
        received = (split - 1) * rows * columns * 4 / min(split, units(config, problem))
        epilogue += _SPLIT_US + received / _REMOTE / CLOCKS_PER_US
    return tiles_us(_tiles_of_sm(problem, config, arch), main, epilogue, config)


def planes_us(problem: ConvProblem, config: KernelConfig, arch: Arch) -> float:
    """What storing planes adds to a kernel that stores rows: nothing hides it."""
    rows, columns, _ = config.threadblock
    values = (
        rows
        * min(columns, problem.k - problem.padding)
        / min(config.split_k, units(config, problem))
    )
    across = _ACROSS if problem.p * problem.q % _PLANE_PIXELS else 1.0
    return _tiles_of_sm(problem, config, arch) * values * across * _PLANE_VALUE / CLOCKS_PER_US


def _tiles_of_sm(problem: Problem, config: KernelConfig, arch: Arch) -> int:
    """The most that one has, or shares."""
    blocks = config.cluster[0] * config.cluster[1]
    return ceil_divide(tiles(config, problem) * config.split_k, arch.sm_count // blocks * blocks)


def tiles_us(count: int, main: float, epilogue: float, config: KernelConfig) -> float:
    """An SM's tiles one after the other."""
    if config.schedule is Schedule.PINGPONG:
        main = main * _PINGPONG_BLOCK + _TURN_US
        return max(count * main, count * (main + epilogue) / config.consumers) + epilogue
    return count * (main + epilogue * (_OVERLAPPED if count > 1 else 1.0))


def block_clocks(problem: Problem, config: KernelConfig, arch: Arch) -> float:
    """One k-block of one tile. Multicast in clusters saved no time where it was measured."""
    rows, columns, k = config.threadblock
    size = problem.dtype.bytes
    products = 2 * rows * columns * k / (_PRODUCTS * 2 / size)
    a, b = rows * k * size, 0 if config.resident else columns * k * size
    product_rows, product_columns = product(config)
    shared = (product_rows // 64 * (64 + product_columns) * k * size + a + b) / _SHARED
    weights = (
        0.0
        if config.resident
        else _copy_clocks(
            columns, k, problem.dtype, _WEIGHT_LOAD, _weight_row(problem, config, arch)
        )
    )
    pixels = (
        _copy_clocks(rows, k, problem.dtype, _MATRIX_LOAD, _ROW)
        if is_matrix(problem)
        else _im2col_clocks(problem, rows, k)
    )
    load = weights + pixels
    deep = _DEEP if boxes(k, problem.dtype) > 1 else 1.0
    return max(products, shared, load, _LATENCY_CLOCKS / stages(config, problem, arch)) * deep


def _weight_row(problem: Problem, config: KernelConfig, arch: Arch) -> float:
    """The least clocks of a row of weights: the more SMs read it at once, the longer, if it
    begins within a sector."""
    if depth(problem) * problem.dtype.bytes % _SECTOR == 0:
        return _ROW
    return _ROW + _BROKEN_ROW * min(tiles(config, problem) * config.split_k / arch.sm_count, 1.0)


def _copy_clocks(rows: int, k: int, dtype: DType, bytes_a_clock: float, least: float) -> float:
    """What TMA takes for the rows of a k-block, each in pieces as wide as a swizzle; `least` of
    each piece."""
    pieces = boxes(k, dtype)
    return rows * pieces * max(k * dtype.bytes / pieces / bytes_a_clock, least)


def _im2col_clocks(problem: Problem, rows: int, k: int) -> float:
    """What TMA takes to gather the pixels of one k-block."""
    size = problem.dtype.bytes
    row = k * size // boxes(k, problem.dtype)
    across = isinstance(problem, ConvProblem) and (
        problem.c * size % row > 0 or problem.depth * size % row > 0
    )
    gather = _copy_clocks(rows, k, problem.dtype, _IM2COL_LOAD, _IM2COL_ROW)
    return _IM2COL_CLOCKS + gather * (_ACROSS if across else 1.0)


def epilogue_us(problem: Problem, outputs: float) -> float:
    tensors = sum(EPILOGUES[step].operand == "tensor" for step in problem.chain)
    moved = outputs * (problem.out.bytes + tensors * problem.dtype.bytes) / _STORE
    operations = (
        outputs
        * (_STAGING_OPERATIONS + sum(EPILOGUES[step].cost for step in problem.chain))
        / LANES
    )
    return _EPILOGUE_US + (moved + operations) / CLOCKS_PER_US
