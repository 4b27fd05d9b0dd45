"""Several GEMMs in one kernel with mma.sync, what lies between them in registers or in shared
memory (Bolt, section 3.1.1): the first product and the last epilogue are CUTLASS 2.x's
(custom_ops/chain/shape_2x.h has the same formulas).

Threadblock residence: a block has all columns of every layer, and the weights of all layers but the
first stay in shared memory. Where a warp has all columns (`instruction`: a warp's rows and columns
of the first layer), a layer's result stays in its registers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, layers
from onnxbolt.kernels.chain import columns, serves
from onnxbolt.kernels.config import UNBOUNDED, Family, GemmProblem, KernelConfig
from onnxbolt.kernels.feasibility import MAX_PREDICATES, alignment, needs_two_stages

COLUMNS = (16, 32, 64, 128, 256)  # of one product; CUTLASS's epilogue has powers of two
_BASE_REGISTERS = 40  # beside accumulators and operands
_BLOCK = 16  # columns, and values along k, that a step of a product has
_ROW_GAP = 8  # elements between rows in shared memory, so that ldmatrix meets all banks
# rows of a warp that the epilogue stages at a time; bytes behind them
_STAGED_ROWS, _UNUSED = 8, 16


@dataclass(frozen=True)
class _Tile:
    """Rows of a block and of a warp, warps across the columns, and k."""

    rows: int
    warp_rows: int
    across: int
    k: int


_IN_REGISTERS = ((64, 16, 1), (128, 32, 1), (256, 32, 1))
_IN_SHARED_MEMORY = (
    (64, 32, 2),
    (128, 32, 2),
    (128, 64, 2),
    (256, 64, 2),
    (64, 32, 4),
    (128, 64, 4),
)
_TILES = tuple(
    _Tile(rows, warp_rows, across, k)
    for rows, warp_rows, across in _IN_REGISTERS + _IN_SHARED_MEMORY
    for k in (32, 64)
)
_RING = 128  # elements along k that a ring holds at most: more of them do not hide more latency


def candidates(problem: GemmProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """Every feasible configuration: `threadblock` is (rows, columns of the first layer, k),
    `warp` the other layers' columns. None where wgmma has faster kernels."""
    if (
        arch.wgmma
        or not arch.supports(problem.dtype)
        or not serves(problem.dtype, (*problem.inner, problem.n), problem.chain)
    ):
        return ()
    found = (
        next(
            (
                config
                for config in _configs(tile, problem, arch)
                if is_feasible(config, problem, arch)
            ),
            None,
        )
        for tile in _TILES
    )
    return tuple(config for config in found if config is not None)


def shortage(problem: GemmProblem, arch: Arch) -> str | None:
    """What threadblock residence lacks for these layers, for a report; None where there are
    candidates, or where there would be none for layers of any width."""
    if arch.wgmma or not arch.supports(problem.dtype) or problem.dtype.bytes != 2:
        return None
    if max(*problem.inner, problem.n) > COLUMNS[-1]:
        return f"a block has {COLUMNS[-1]} columns at most"
    configs = [config for tile in _TILES for config in _configs(tile, problem, arch)]
    if any(is_feasible(config, problem, arch) for config in configs):
        return None
    needed = min(shared_memory(config, problem) for config in configs)
    if needed > arch.shared_memory_per_block:
        return (
            f"a block needs {-(-needed // 1024)} KB of shared memory, of which {arch.name} has"
            f" {arch.shared_memory_per_block // 1024}"
        )
    return "its accumulators exceed the registers of a thread"


def _configs(tile: _Tile, problem: GemmProblem, arch: Arch) -> Iterator[KernelConfig]:
    """Of a tile, the deepest ring first."""
    first, *others = (_padded(width, _BLOCK * tile.across) for width in (*problem.inner, problem.n))
    warp = [*others, 0, 0]
    align_a, align_c = alignment(problem.k, problem.dtype), alignment(problem.n, problem.dtype)
    two_stages = not arch.cp_async or needs_two_stages(align_a, problem.dtype)
    for stages in range(2 if two_stages else max(_RING // tile.k, 3), 1, -1):
        yield KernelConfig(
            arch.number,
            0,
            UNBOUNDED,
            Family.B2B_GEMM_2X,
            (tile.rows, first, tile.k),
            (warp[0], warp[1], warp[2]),
            (tile.warp_rows, first // tile.across, 0),
            stages,
            align_a=align_a,
            align_b=align_a,
            # CUTLASS begins with what k leaves of a tile, hence aligned as both are
            align_c=align_c,
        )


def _padded(width: int, multiple: int) -> int:
    return next(n for n in COLUMNS if n >= max(width, multiple))


def is_feasible(config: KernelConfig, problem: GemmProblem, arch: Arch) -> bool:
    """Whether the block's threads copy whole tiles, a block fits an SM, and no accumulator is
    spilled."""
    rows, first, k = config.threadblock
    copied = threads(config) * problem.dtype.alignment
    return (
        rows * k % copied == 0
        and first * k % copied == 0
        and max(rows, first) * k // config.align_a // threads(config) <= MAX_PREDICATES
        and shared_memory(config, problem) <= arch.shared_memory_per_block
        and registers(config, problem)
        <= min(arch.registers_per_thread, arch.registers_per_sm // threads(config))
    )


def across(config: KernelConfig) -> int:
    """Warps across the columns; 1: results stay in registers."""
    return config.threadblock[1] // config.instruction[1]


def threads(config: KernelConfig) -> int:
    """Of a block."""
    return 32 * config.threadblock[0] // config.instruction[0] * across(config)


def registers(config: KernelConfig, problem: GemmProblem) -> int:
    """Of a thread: the first product's accumulators with two buffers of operands and pointers along
    k, and, with two stages, what it copies of the next tile; then, where one layer follows another,
    the result that is the next product's operand, if it is in registers, and its accumulators; in
    the end the last ones, and what the epilogue has of 8 rows, residuals as they come and
    converted.
    """
    rows, first, _ = config.instruction
    warps, widths = across(config), columns(config)
    copied = (
        sum(config.threadblock[:2]) * config.threadblock[2] // threads(config) // 2
        if config.stages == 2
        else 0
    )
    begin = rows * first // 32 + (rows + first) // 2 + config.threadblock[2] // 8 + copied
    behind = (
        rows * after // warps // 32 + (rows * before // 64 if warps == 1 else rows // 4)
        for before, after in itertools.pairwise(widths)
    )
    tensors = sum(EPILOGUES[step].operand == "tensor" for step in problem.chain)
    end = widths[-1] // warps * (rows + 8 * (1 + 2 * tensors)) // 32
    return _BASE_REGISTERS + max(begin, *behind, end)


def shared_memory(config: KernelConfig, problem: GemmProblem) -> int:
    """Bytes of a block: what the first product's ring, results between layers and the last
    epilogue's staging have one after the other, then weights that stay, and inner layers'
    vectors."""
    (rows, first, k), widths, size = config.threadblock, columns(config), problem.dtype.bytes
    ring = config.stages * (rows + first) * k * size
    results = 0 if across(config) == 1 else rows * (max(widths[:-1]) + _ROW_GAP) * size
    staging = (
        rows
        // config.instruction[0]
        * _staged_rows(config, problem.dtype)
        * (widths[-1] + _ROW_GAP)
        * 4
        + _UNUSED
    )
    weights = sum(n * (depth + _ROW_GAP) * size for depth, n in itertools.pairwise(widths))
    vectors = sum(
        sum(EPILOGUES[step].operand == "vector" for step in layer) * n * 4
        for layer, n in zip(layers(problem.chain)[:-1], widths[:-1], strict=True)
    )
    return max(ring, results, staging) + weights + vectors


def _staged_rows(config: KernelConfig, dtype: DType) -> int:
    """Of a warp; CUTLASS has room for twice as many where it stages half_t without bank
    conflicts."""
    warp_columns = columns(config)[-1] // across(config)
    return _STAGED_ROWS * (
        2
        if dtype is DType.F16 and warp_columns <= 64 and min(config.align_c, warp_columns // 4) == 8
        else 1
    )
