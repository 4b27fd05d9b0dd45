"""Depthwise convolution kernels in NHWC: a thread computes neighbouring channels of a small tile
of output pixels."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.kernels.config import UNBOUNDED, ConvProblem, Family, KernelConfig
from onnxbolt.kernels.feasibility import alignment

# threads of a block: few enough that several blocks take turns in loading and computing
_THREADS = 128
_FIXED = (3, 5)  # square filters that kernels are compiled for; others are walked by a loop
_STRIDES = (1, 2)
_SUMS = 64  # of a thread, in registers
# windows for which the compiler needs more registers; with fewer it spills
_FEWER_SUMS = {(5, 5, 1): 56, (5, 5, 2): 32}
_REGISTERS = 235  # by the formula below; what needs more spills
_BASE_REGISTERS = 25  # pointers, bounds, the epilogue's vector
_KEPT_FILTER = 72  # numbers: a larger filter stays in shared memory (custom_ops/depthwise/tile.h)
_ANY = (0, 0, 0)
_ANY_SUMS, _ANY_COLUMNS = 16, 4  # of a thread where the filter is not known
_SHARED_MEMORY = 48 * 1024  # bytes of a block, where the filters of its channels lie as fp32


@dataclass(frozen=True)
class Tile:
    """The output pixels of a thread, and its channels."""

    rows: int
    columns: int
    width: int


_TILES = tuple(
    Tile(rows, columns, width)
    for width in (8, 4, 2, 1)
    for rows, columns in ((4, 4), (2, 7), (2, 4), (1, 7), (1, 4), (2, 2), (1, 2))
    if rows * columns * width <= _SUMS
    and (width > 1 or columns < 7)  # the bounds of many single channels spill
)


def candidates(problem: ConvProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """Every configuration for a depthwise `problem`, on any architecture; empty for other groups
    and for filters beyond shared memory.

    `threadblock` = rows and columns of a thread's tile of output pixels, and threads; `warp` = R, S
    and stride of the filters that it serves, zeros for any; the alignments are a thread's channels.
    """
    if not problem.c == problem.k == problem.groups:
        return ()
    most = alignment(problem.c, problem.dtype)
    filters = fixed(problem)
    tiles = (
        [tile for tile in _TILES if tile.width <= most and _fits(tile, filters)]
        if filters != _ANY
        else [
            Tile(1, min(_ANY_COLUMNS, _ANY_SUMS // width), width)
            for width in (8, 4, 2, 1)
            if width <= most
        ]
    )
    return tuple(
        KernelConfig(
            arch.number,
            0,
            UNBOUNDED,
            Family.DEPTHWISE,
            (tile.rows, tile.columns, _THREADS),
            filters,
            align_a=tile.width,
            align_b=tile.width,
            align_c=tile.width,
        )
        for tile in tiles
        if 4 * problem.r * problem.s * tile.width <= _SHARED_MEMORY
    )


def fixed(problem: ConvProblem) -> tuple[int, int, int]:
    """R, S and stride where kernels are compiled for them, else zeros."""
    square = (
        problem.r == problem.s
        and problem.strides[0] == problem.strides[1]
        and problem.dilations == (1, 1)
    )
    known = square and problem.r in _FIXED and problem.strides[0] in _STRIDES
    return (problem.r, problem.s, problem.strides[0]) if known else _ANY


def registers(config: KernelConfig) -> int:
    """Of a thread, about: sums, a row of the window, and the filter where it is kept."""
    rows, columns, _ = config.threadblock
    return _registers(Tile(rows, columns, config.align_a), config.warp)


def _registers(tile: Tile, filters: tuple[int, int, int]) -> int:
    r, s, stride = filters
    row, taps = ((tile.columns - 1) * stride + s) * tile.width, r * s * tile.width
    return (
        tile.rows * tile.columns * tile.width
        + row
        + (taps if taps <= _KEPT_FILTER else 0)
        + _BASE_REGISTERS
    )


def _fits(tile: Tile, filters: tuple[int, int, int]) -> bool:
    """Whether the kernel compiles without spills."""
    sums = tile.rows * tile.columns * tile.width
    return sums <= _FEWER_SUMS.get(filters, _SUMS) and _registers(tile, filters) <= _REGISTERS
