"""Depthwise convolutions in NHWC, on any architecture: each thread computes neighbouring channels
of a small tile of output pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from onnxbolt.archs import Arch
from onnxbolt.families.base import KernelConfig, access, tile_size
from onnxbolt.families.blocks.access import alignment
from onnxbolt.families.blocks.memory import epilogue_cost, memory_us
from onnxbolt.families.row import at
from onnxbolt.integers import ceil_divide
from onnxbolt.kernel_time import US, overlapped
from onnxbolt.problems import ConvProblem, QuantizedConvProblem

Convolved: TypeAlias = ConvProblem | QuantizedConvProblem

# threads of a block: few enough for several blocks to take turns in loading and computing
_THREADS = 128
# size and stride of square filters with kernels of their own; a loop walks all others
_FIXED = ((3, 1), (3, 2), (5, 1), (5, 2), (7, 1))
_SUMS = 64  # the most sums of a thread, in registers
# the most sums for filters (R, S, stride) where the compiler keeps more of the window in registers;
# more would spill
_FEWER_SUMS = {(5, 5, 1): 56, (5, 5, 2): 32, (7, 7, 1): 56}
_SPILLED = {(7, 7, 1, 1, 4, 1)}  # filter, rows, columns and channels of tiles that spill as well
_REGISTERS = 235  # the most per thread, as `registers` counts them; more would spill
_BASE_REGISTERS = 25  # pointers, bounds, the epilogue's vector
# the largest filter, in numbers, that stays in registers; larger ones are read from shared memory
# (custom_ops/channelwise/tile.h)
_KEPT_FILTER = 72
_ANY = (0, 0, 0)
# the most of a thread if the filter is not known when the kernel is compiled
_ANY_SUMS, _ANY_COLUMNS = 16, 4
SHARED_MEMORY = 48 * 1024  # bytes of a block, which hold the filters of its channels as fp32

# The constants were fitted to measurements of MobileNetV3's depthwise layers on one H200
# (tests/families/test_depthwise.py holds them). Instructions of a thread, as compiled: for each
# access to its window, for each of its results, and all others.
_ACCESS, _RESULT, _THREAD = 7.0, 6.0, 120.0
# Instructions that take as long as a read of a filter's weights from shared memory, of up to 16
# bytes. Fitted to 72 measurements of ConvNeXt-T's 7x7 layers on one H200.
_SHARED = 8.4
# the part of an SM's instruction rate that is reached, by the number of resident warps
_ISSUE, _ISSUE_OF_WARP, _MOST_ISSUE = 0.36, 0.022, 0.75


@dataclass(frozen=True, kw_only=True)
class ChannelwiseConfig(KernelConfig):
    """Rows and columns of a thread's tile of output pixels, and the thread's channels. `filter` is
    (R, S, stride) of the filters that the kernel serves; zeros stand for any."""

    rows: int = at("tile_m", sound=tile_size)
    columns: int = at("tile_n", sound=tile_size)
    threads: int = at("tile_k", default=_THREADS, sound=tile_size)
    filter: tuple[int, int, int] = at("warp_m", "warp_n", "warp_k")
    access: int = at("align_a", "align_b", "align_c", repeated=True, sound=access)

    @property
    def registers(self) -> int:
        """The approximate registers of a thread: sums, a row of the window, and the filter if it is
        kept."""
        r, s, stride = self.filter
        row, taps = ((self.columns - 1) * stride + s) * self.access, r * s * self.access
        sums = self.rows * self.columns * self.access
        return sums + row + (taps if taps <= _KEPT_FILTER else 0) + _BASE_REGISTERS


_TILES = tuple(
    (rows, columns, width)
    for width in (8, 4, 2, 1)
    for rows, columns in ((4, 4), (2, 7), (2, 4), (1, 7), (1, 4), (2, 2), (1, 2))
    # tiles of many single channels spill for their bounds
    if rows * columns * width <= _SUMS and (width > 1 or columns < 7)
)


C = TypeVar("C", bound=ChannelwiseConfig)


def candidates(kind: type[C], problem: Convolved, arch: Arch) -> tuple[C, ...]:
    """Configurations for depthwise convolutions; empty for other groups and for filters that exceed
    shared memory."""
    if not problem.depthwise:
        return ()
    most = alignment(problem.c, problem.dtype)
    tiles, known = _TILES, fixed(problem)
    if known == _ANY:
        tiles = tuple((1, min(_ANY_COLUMNS, _ANY_SUMS // n), n) for n in (8, 4, 2, 1))
    found = (
        kind(arch=arch.number, rows=rows, columns=columns, filter=known, access=width)
        for rows, columns, width in tiles
        if width <= most and 4 * problem.r * problem.s * width <= SHARED_MEMORY
    )
    return tuple(config for config in found if known == _ANY or _fits(config))


def predicted_us(problem: Convolved, config: ChannelwiseConfig, arch: Arch) -> float:
    """Microseconds of one launch; instructions count besides bytes."""
    return arch.launch_us + overlapped(_compute_us(problem, config, arch), memory_us(problem, arch))


def fixed(problem: Convolved) -> tuple[int, int, int]:
    """R, S and stride if there are kernels compiled for them, else zeros."""
    square = problem.r == problem.s and problem.strides[0] == problem.strides[1]
    if square and (problem.r, problem.strides[0]) in _FIXED and problem.dilations == (1, 1):
        return problem.r, problem.s, problem.strides[0]
    return _ANY


def _fits(config: ChannelwiseConfig) -> bool:
    """True if the kernel compiles without spills."""
    sums = config.rows * config.columns * config.access
    if (*config.filter, config.rows, config.columns, config.access) in _SPILLED:
        return False
    return sums <= _FEWER_SUMS.get(config.filter, _SUMS) and config.registers <= _REGISTERS


def _compute_us(problem: Convolved, config: ChannelwiseConfig, arch: Arch) -> float:
    """Microseconds of all threads' instructions, memory aside."""
    rows, columns, width = config.rows, config.columns, config.access
    tiles = problem.n * ceil_divide(problem.p, rows) * ceil_divide(problem.q, columns)
    threads = tiles * problem.c // width
    instructions = _THREAD + _accesses(problem, config) * (_ACCESS + width)
    taps = problem.r * problem.s + epilogue_cost(problem.chain)
    instructions += rows * columns * (_RESULT + width * taps)
    instructions += rows * _reads(config) * _SHARED
    return threads * instructions / (_issue(config, arch) * arch.fp32_flops / 2) * US


def _reads(config: ChannelwiseConfig) -> int:
    """Accesses to the filter in shared memory for a row of the tile; 0 for a filter that stays in
    registers, or whose extents are not known."""
    r, s, _ = config.filter
    kept = r * s * config.access <= _KEPT_FILTER
    return 0 if kept else r * s * ceil_divide(config.access, 4)


def _issue(config: ChannelwiseConfig, arch: Arch) -> float:
    threads = config.threads
    by_registers = arch.registers_per_sm // (config.registers * threads)
    blocks = min(by_registers, arch.threads_per_sm // threads)
    return min(_ISSUE + _ISSUE_OF_WARP * blocks * threads / 32, _MOST_ISSUE)


def _accesses(problem: Convolved, config: ChannelwiseConfig) -> int:
    """The number of channel vectors that a thread loads: each pixel of its window once, or once per
    tap if the filter is not fixed."""
    r, s, stride = config.filter
    if not r:
        return problem.r * problem.s * config.columns
    return ((config.rows - 1) * stride + r) * ((config.columns - 1) * stride + s)
