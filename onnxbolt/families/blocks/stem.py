"""Stem convolutions (a model's first ones) on sm_90a: few channels, read from NCHW without a layout
conversion (custom_ops/sm90/stem/plan.h has the same formulas)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.families.base import KernelConfig, Stem, positive, tile_size, warpgroups
from onnxbolt.families.blocks.memory import memory_us, vector_operands
from onnxbolt.families.blocks.staging import staging_bytes
from onnxbolt.families.row import at
from onnxbolt.integers import ceil_divide, round_up
from onnxbolt.kernel_time import SHARED_BYTES_PER_CLOCK, US, overlapped
from onnxbolt.problems import ConvProblem, StemCodesProblem

# output channels of a product
COLUMNS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128)
# output pixels of a tile, in rows of 16
_TILES, _TILES_OF_FEW = (128, 64), (256, 128, 64)
_CODES = 16  # output channels that are stored together where the output has 8 bits
_FEW = 32  # output channels whose tiles are small enough to have more pixels
_GROUPS, _MOST_GROUPS = 4, 6  # warpgroups of a block: the usual number and the most
_MOST_CHANNELS, _LARGEST_FILTER, _LARGEST_STRIDE = 4, 11, 4
_QUAD, _CHUNK, _GROUP_THREADS, _TILE_COLUMNS = 4, 8, 128, 16
_STEPS_AT_ONCE, _CHUNKS_AT_ONCE, _BASE_REGISTERS = 6, 4, 36

# Times: bound by the output in device memory, or by shared memory, through which fragments, weights
# and the output pass.
_PROLOGUE_US = 2.0  # weights into shared memory
# parts of shared memory's bandwidth that a tile's pixels and the rest reach
_TILE_US, _SHARED_EFFICIENCY = 0.02, 0.65
# the part of the time that stays unused for each warpgroup fewer than this number
_BUSY_GROUPS, _IDLE = 4, 0.05


@dataclass(frozen=True, kw_only=True)
class StemConfig(KernelConfig):
    """A block's output pixels and channels, and the product's depth; the filter is (rows, columns,
    channels)."""

    later_columns: ClassVar[int] = 0  # channels of a 1x1 convolution behind it

    pixels: int = at("tile_m", sound=tile_size)
    columns: int = at("tile_n", sound=tile_size)
    depth: int = at("tile_k", sound=positive)
    filter: tuple[int, int, int] = at("warp_m", "warp_n", "warp_k", sound=positive)
    strides: tuple[int, int] = at("instruction_m", "instruction_n", sound=positive)
    consumers: int = at("consumers", sound=warpgroups)  # warpgroups of a block


F = TypeVar("F", bound=StemConfig)
# activations and weights need no alignment, and weights stay in shared memory
FIXED_SLOTS = {"align_a": 1, "align_b": 1, "resident": 1}


def serves(
    dtype: DType,
    weight: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> bool:
    """True if there is a kernel for a filter [K, C, R, S]."""
    if dtype.bytes != 2 or len(weight) != 4 or groups != 1 or any(d != 1 for d in dilations):
        return False
    k, c, r, s = weight
    small = max(r, s) <= _LARGEST_FILTER and max(strides) <= _LARGEST_STRIDE
    return k % 8 == 0 and c <= _MOST_CHANNELS and small


def is_served(stem: Stem) -> bool:
    """The same, for the first layer of a `Stem`."""
    weight = (stem.widths[0], *stem.filter)
    return serves(stem.dtype, weight, stem.strides, stem.dilations, stem.groups)


def configurations(
    kind: type[F], problem: ConvProblem | StemCodesProblem, arch: Arch, **fields: Any
) -> list[F]:
    """All configurations, feasible or not."""
    weight = (problem.k, problem.c, problem.r, problem.s)
    if not serves(problem.dtype, weight, problem.strides, problem.dilations, problem.groups):
        return []
    stored = _CODES if problem.out.is_code else 1
    if problem.k % stored:
        return []
    whole = [n for n in COLUMNS if n % stored == 0]
    columns = min(whole, key=lambda n: (-(-problem.k // n) * n, -n))
    return [
        kind(
            arch=arch.number,
            pixels=pixels,
            columns=columns,
            depth=_depth(problem),
            filter=(problem.r, problem.s, problem.c),
            strides=problem.strides,
            consumers=groups,
            **fields,
        )
        for pixels in (_TILES_OF_FEW if columns <= _FEW else _TILES)
        for groups in range(1, _MOST_GROUPS + 1)
    ]


def busiest(feasible: Sequence[F]) -> tuple[F, ...]:
    """For each tile, the configurations with the most warpgroups and with the usual number."""
    by_groups = sorted(feasible, key=lambda config: config.consumers)
    most = {config.pixels: config.consumers for config in by_groups}
    return tuple(
        config
        for config in feasible
        if config.consumers in (most[config.pixels], min(_GROUPS, most[config.pixels]))
    )


def fits(config: StemConfig, arch: Arch, of_thread: int, of_block: int) -> bool:
    """True if a block of the configuration's warpgroups runs with `of_thread` registers per thread
    and `of_block` bytes of shared memory."""
    threads = config.consumers * _GROUP_THREADS
    most = min(arch.registers_per_sm // threads // 8 * 8, arch.registers_per_thread)
    return of_thread <= most and of_block <= arch.shared_memory_per_block


def _depth(problem: ConvProblem | StemCodesProblem) -> int:
    """K of the product: each row of the filter is a run of neighbouring elements, padded to an even
    number of chunks."""
    run = problem.s * _stored_channels(problem.c, problem.strides[1])
    chunks = problem.r * -(-run // _CHUNK)
    return -(-chunks // 2) * 2 * _CHUNK


def registers(config: StemConfig, behind: int = 0) -> int:
    """Registers of a thread: the next tile's pixels; the most of weights in transit, accumulators
    with fragments, and `behind` (registers used after the product); and a fixed rest."""
    n, k = config.columns, config.depth
    rows, quads = _patch(config)
    pixels = -(-rows * quads // _GROUP_THREADS) * _QUAD * config.filter[2]
    threads = config.consumers * _GROUP_THREADS
    weights = min(-(-n * k // _CHUNK // threads), _CHUNKS_AT_ONCE) * _CHUNK
    products = n // 2 + 4 * min(k // 16, _STEPS_AT_ONCE)
    return pixels + max(weights, products, behind) + _BASE_REGISTERS


def shared_memory(config: StemConfig, columns: int = 0) -> int:
    """The most bytes of a block: each warpgroup's staging, vectors (of `columns`, if the output has
    another number) and pixels, and the weights."""
    n, k = config.columns, config.depth
    rows, quads = _patch(config)
    stored = columns or n
    staging = max(staging_bytes(stored, out, residual=False) for out in (DType.F16, DType.F32))
    vectors = 4 * 4 * stored
    channels = _stored_channels(config.filter[2], config.strides[1])
    patch = (rows * quads * _QUAD * channels + 2 * _CHUNK) * 2
    return config.consumers * (staging + vectors + patch) + 2 * n * k


def block_bytes(config: StemConfig, out: DType, steps: tuple[str, ...], columns: int) -> int:
    """Bytes of a block of the compiled kernel, whose output has `columns` channels behind the
    epilogue `steps`: each warpgroup's staging, the weights, then vectors and pixels."""
    groups, (rows, quads) = config.consumers, _patch(config)
    staging = groups * staging_bytes(columns, out, residual=False)
    vectors = groups * vector_operands(steps) * columns * 4
    channels = _stored_channels(config.filter[2], config.strides[1])
    patch = round_up((1 + rows * quads * _QUAD * channels + _CHUNK) * 2, 16)
    weights = 2 * config.columns * config.depth
    return round_up(staging + weights + vectors, 16) + groups * patch


def _stored_channels(channels: int, stride: int) -> int:
    """Channels as stored: padded by one if pixels would begin at odd elements."""
    return channels + channels * stride % 2


def _patch(config: StemConfig) -> tuple[int, int]:
    """Rows of the image under a tile, and groups of four columns, wherever in a group the first
    column is."""
    r, s, _ = config.filter
    stride_h, stride_w = config.strides
    columns = (_TILE_COLUMNS - 1) * stride_w + s
    rows = (config.pixels // _TILE_COLUMNS - 1) * stride_h + r
    return rows, -(-(columns + _QUAD - 1) // _QUAD)


def predicted_us(problem: ConvProblem | StemCodesProblem, config: StemConfig, arch: Arch) -> float:
    """Microseconds of one launch."""
    busy = overlapped(_compute_us(problem, config, arch), memory_us(problem, arch))
    return arch.launch_us + _PROLOGUE_US + busy


def _compute_us(problem: ConvProblem | StemCodesProblem, config: StemConfig, arch: Arch) -> float:
    """The most loaded SM's time, device memory aside; with a 1x1 convolution behind, whose
    weights pass shared memory as well."""
    rows, columns, size = config.pixels, config.columns, problem.dtype.bytes
    output = config.later_columns or columns
    tiles = problem.n * ceil_divide(problem.p, rows // 16) * ceil_divide(problem.q, 16)
    tiles *= ceil_divide(problem.k, output)
    product = config.depth * (64 + columns) * size + 2 * 64 * output * problem.out.bytes
    product += columns * output * size if config.later_columns else 0
    rate = SHARED_BYTES_PER_CLOCK * _SHARED_EFFICIENCY * arch.clock
    passing = product / rate * US
    idle = _IDLE * max(_BUSY_GROUPS - config.consumers, 0)
    return ceil_divide(tiles, arch.sm_count) * (_TILE_US + rows // 64 * passing) * (1 + idle)
