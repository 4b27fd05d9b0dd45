"""Convolutions on sm_90a by spatial tiles with their border, without im2col traffic: the possible
tiles and their time on an SM.

A tile is images x rows x columns of output pixels and 64 output channels for each consumer
warpgroup that shares it. Its input is one TMA box for each k-block of channels, and each filter
position is a view of it. The rows of the product are output channels; its columns are positions,
the pixels of the box in groups of eight. The formulas repeat custom_ops/sm90/halo/geometry.h and
block.h.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from onnxbolt.archs import Arch, get
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import tensor_operands
from onnxbolt.families.base import (
    FLAG,
    SCHEDULES,
    Compiled,
    KernelConfig,
    Schedule,
    positive,
    stage_count,
    tile_size,
    warpgroups,
)
from onnxbolt.families.row import at
from onnxbolt.integers import ceil_divide
from onnxbolt.problems import ConvProblem

# positions of a tile for which wgmma is declared (custom_ops/sm90/wgmma.h)
POSITIONS = (64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)
K_BLOCKS = (64, 48, 32, 16)  # channels; 48 are stored in rows of 64
_GROUP = 8  # consecutive positions that are neighbours in shared memory
CHANNELS = 64  # output channels of a warpgroup
_MAX_BOX = 256  # extent of a TMA box
_BLOCK_BYTES = 227 * 1024  # shared memory of a block
_BARRIERS, _PLACES = 1024, 256 * 8  # bytes of shared memory
_MAX_INPUT_STAGES, _MAX_FILTER_STAGES, _MIN_FILTER_STAGES = 8, 48, 4
_PADDING = 1.15  # the most by which channels are padded for wider k-blocks
_INPUT_SHARE = 0.6  # part of shared memory for input stages when filters are streamed
_MOST_PARTS, _MOST_HEIGHTS = 4, 6  # the most parts of a row, and heights of tiles of one width
# Cycles of an SM, fitted to 43 measurements on one H200 (the first loads again to 30 later ones):
# wgmma's rate; bytes of shared memory per cycle; a position of an epilogue, and of a cooperative
# tile that more tiles follow; a pixel that TMA gathers with a stride; a filter position that stays
# in shared memory, and one that is streamed; a tile; the first loads; and the blocks of a cluster
# waiting for one another.
_TENSOR_EFFICIENCY, _SHARED_BYTES, _POSITION, _EXPOSED_POSITION = 1.0, 130, 9.0, 18.0
_STRIDED_PIXEL = 5.0
_KEPT_TAP, _STREAMED_TAP, _TILE, START, _CLUSTER = 56.0, 68.0, 200.0, 2200.0, 1800.0


@dataclass(frozen=True, kw_only=True)
class HaloConfig(KernelConfig):
    """A block's output channels and positions, multiplied in k-blocks of input channels.

    `image_tile` is (columns, rows, images) of a tile, chosen at launch; `stage_pixels` are what an
    input stage holds; `resident`: the filters of a block's output channels stay in shared memory.
    """

    sharing: ClassVar[int] = 1
    later: ClassVar[tuple[int, ...]] = ()

    channels: int = at("tile_m", sound=tile_size)
    positions: int = at("tile_n", sound=tile_size)
    k_block: int = at("tile_k", sound=positive)
    image_tile: tuple[int, int, int] = at("warp_m", "warp_n", "warp_k", compiled=(0, 0, 0))
    stage_pixels: int = at("instruction_m", default=0)
    stages: int = at("stages", default=0, sound=stage_count)  # stages of the input
    schedule: Schedule = at("schedule", numbers=SCHEDULES)
    consumers: int = at("consumers", sound=warpgroups)  # consumer warpgroups
    resident: bool = at("resident", default=False, numbers=FLAG)

    @property
    def layers(self) -> tuple[int, ...]:
        """Channels of each layer, zeros included."""
        return (self.channels, *filter(None, self.later))


H = TypeVar("H", bound=HaloConfig)


@dataclass(frozen=True)
class Geometry:
    """A tile of a problem, and how its pixels lie in shared memory.

    custom_ops/sm90/halo/geometry.h has the same formulas."""

    columns: int
    rows: int
    images: int
    row_pitch: int  # pixels from one row of the box to the next
    image_rows: int  # rows of the box from one image to the next
    group_pitch: int  # pixels from one group of positions to the next
    row_positions: int
    zero_pixels: int  # pixels of zeros behind the box
    tiles: int

    @property
    def positions(self) -> int:
        """The tile's positions, gaps included."""
        whole_rows = (self.images - 1) * self.image_rows + self.rows - 1
        return whole_rows * self.row_positions + self.columns

    @property
    def box_pixels(self) -> int:
        """Pixels of the TMA box."""
        return self.row_pitch * self.image_rows * self.images

    @property
    def stage_pixels(self) -> int:
        """Pixels of an input stage, rounded up to the period of a swizzle."""
        return ceil_divide(self.box_pixels + self.zero_pixels, _GROUP) * _GROUP


def geometry(problem: ConvProblem, columns: int, rows: int, images: int) -> Geometry:
    """The tile of at most columns x rows x images output pixels."""
    columns, rows, images = min(columns, problem.q), min(rows, problem.p), min(images, problem.n)
    top, left, bottom, right = problem.pads
    stride = problem.strides[0]
    whole_rows = stride == 1 and columns == problem.q
    whole_images = stride == 1 and rows == problem.p
    row_pitch = columns + (problem.s - 1) // stride
    if whole_rows:
        row_pitch = problem.w + max(left, right)
    image_rows = rows + (problem.r - 1) // stride
    if whole_images:
        image_rows = problem.h + max(top, bottom)
    zeros = min(top, bottom) * row_pitch if whole_images else 0
    zeros += min(left, right) if whole_rows else 0
    tiles = ceil_divide(problem.q, columns) * ceil_divide(problem.p, rows)
    tiles *= ceil_divide(problem.n, images)
    pitches = (row_pitch, _GROUP) if columns <= _GROUP else (_GROUP, row_pitch)
    return Geometry(columns, rows, images, row_pitch, image_rows, *pitches, zeros, tiles)


def supports(problem: ConvProblem) -> bool:
    """True if the family can run `problem`; a filter of one position gains nothing from a
    border."""
    return (
        problem.dtype in (DType.F16, DType.BF16)
        and not problem.nchw
        and problem.dilations == (1, 1)
        and min(problem.pads) >= 0
        and problem.strides in ((1, 1), (2, 2))
        and problem.r * problem.s > 1
        and problem.depth % 8 == 0
        and problem.k // problem.groups % 8 == 0
    )


def shared_memory(
    config: HaloConfig, tensors: int, size: int, out_size: int, most: int = _BLOCK_BYTES
) -> int:
    """Bytes of a block, `most` at most, whose epilogue reads `tensors` tensor operands; `size` and
    `out_size` are bytes of an element."""
    fixed, filter_bytes = _fixed_bytes(config, tensors, size, out_size), _filter_bytes(config, size)
    return fixed + _fitting_filters(most - fixed, filter_bytes) * filter_bytes


def compiled_bytes(kernel: Compiled) -> int:
    """Bytes of a block of the compiled kernel."""
    tensors, most = tensor_operands(kernel.chain), get(kernel.config.arch).shared_memory_per_block
    return shared_memory(kernel.config, tensors, kernel.dtype.bytes, kernel.out.bytes, most)


def filter_stages(config: HaloConfig, tensors: int, size: int, out_size: int) -> int:
    """Filter positions that fit beside everything else; below 2 the kernel does not compile."""
    room = _BLOCK_BYTES - _fixed_bytes(config, tensors, size, out_size)
    return _fitting_filters(room, _filter_bytes(config, size))


def _fitting_filters(room: int, filter_bytes: int) -> int:
    return min(_MAX_FILTER_STAGES, room // filter_bytes)


def cycles(problem: ConvProblem, config: HaloConfig, arch: Arch) -> float:
    """Cycles of the busiest SM, without launch and device memory: rounds of tiles, and the parts
    that do not overlap with others."""
    tile = geometry(problem, *config.image_tile)
    count, exposed = rounds(problem, config, tile, arch), _POSITION
    if config.schedule is Schedule.COOPERATIVE:
        exposed += (count - 1) * _EXPOSED_POSITION
    start = START + (_CLUSTER if config.sharing > 1 else 0.0)
    return start + count * main_loop_cycles(problem, config, tile) + exposed * config.positions


def rounds(problem: ConvProblem, config: HaloConfig, tile: Geometry, arch: Arch) -> int:
    """The number of tiles of the busiest SM."""
    blocks = problem.groups * ceil_divide(problem.k // problem.groups, config.channels)
    clusters = ceil_divide(tile.tiles, config.sharing)
    return ceil_divide(clusters * blocks, arch.sm_count // config.sharing)


def main_loop_cycles(problem: ConvProblem, config: HaloConfig, tile: Geometry) -> float:
    """Cycles of a tile's main loop, bound by products, shared memory or TMA."""
    positions, k_block = config.positions, config.k_block
    groups, row_bytes = config.channels // CHANNELS, pixel_bytes(config, problem.dtype.bytes)
    box_count = ceil_divide(problem.depth, k_block) * _phases(problem)
    taps = ceil_divide(problem.depth, k_block) * problem.r * problem.s
    steps = taps * k_block // 16  # wgmma instructions of a warpgroup
    loads = box_count * tile.box_pixels * row_bytes
    loads += 0 if config.resident else taps * config.channels * row_bytes
    read = steps * groups * (CHANNELS + positions) * 32
    strided = problem.strides[0] > 1
    gathered = box_count * tile.box_pixels * _STRIDED_PIXEL if strided else 0.0
    products = steps * groups * positions / 2 / _TENSOR_EFFICIENCY
    main = max(products, (read + loads) / _SHARED_BYTES, gathered)
    return main + taps * (_KEPT_TAP if config.resident else _STREAMED_TAP) + _TILE


def with_stages(problem: ConvProblem, config: H, arch: Arch) -> Iterator[H]:
    """The configuration with as many input stages as its share of shared memory holds, if that is
    enough to run."""
    size, out_size = problem.dtype.bytes, problem.out.bytes
    needed = _MIN_FILTER_STAGES
    if config.resident:
        needed = ceil_divide(problem.depth, config.k_block) * problem.r * problem.s
    if needed > _MAX_FILTER_STAGES:
        return
    tensors = tensor_operands(problem.chain)
    room = arch.shared_memory_per_block - _fixed_bytes(config, tensors, size, out_size)
    room -= needed * _filter_bytes(config, size)
    if not config.resident:
        room = min(room, int(_INPUT_SHARE * arch.shared_memory_per_block))
    stage = config.stage_pixels * pixel_bytes(config, size)
    stages = min(_MAX_INPUT_STAGES, room // stage)
    if stages < 2:
        return
    config = replace(config, stages=stages)
    most = arch.shared_memory_per_block
    if _last_byte(problem, config) <= shared_memory(config, tensors, size, out_size, most):
        yield config


def tiles(problem: ConvProblem) -> Iterator[Geometry]:
    """The tiles that fit a block: 8 columns wide, which wastes no position, or an even share of a
    row."""
    parts = range(1, _MOST_PARTS + 1)
    widths = {min(_GROUP, problem.q), *(ceil_divide(problem.q, count) for count in parts)}
    for columns in sorted(widths):
        most = min(problem.p, POSITIONS[-1])  # a row has at least one position
        heights = [
            rows
            for rows in range(most, 0, -1)
            if _fits(problem, geometry(problem, columns, rows, 1))
        ]
        blocks = {ceil_divide(problem.p, rows) for rows in heights}
        even = {ceil_divide(problem.p, count) for count in sorted(blocks)[:_MOST_HEIGHTS]}
        for rows in sorted(even):
            yield geometry(problem, columns, rows, 1)
        if heights and heights[0] == problem.p:
            several = (
                geometry(problem, columns, problem.p, images) for images in range(2, problem.n + 1)
            )
            yield from itertools.takewhile(lambda tile: _fits(problem, tile), several)


def _fits(problem: ConvProblem, tile: Geometry) -> bool:
    height, width = tile.image_rows * problem.strides[0], tile.row_pitch * problem.strides[1]
    return tile.positions <= POSITIONS[-1] and max(width, height, tile.images) <= _MAX_BOX


def _last_byte(problem: ConvProblem, config: HaloConfig) -> int:
    """The end of a kernel's reads from the input stages, in bytes; positions beyond the tile are
    read as well."""
    stride, row_bytes = problem.strides[0], pixel_bytes(config, problem.dtype.bytes)
    tile = geometry(problem, *config.image_tile)
    shift = (problem.r - 1) // stride * tile.row_pitch + (problem.s - 1) // stride
    last = (config.positions // _GROUP - 1) * tile.group_pitch + _GROUP + shift
    return ((config.stages - 1) * config.stage_pixels + last) * row_bytes


def k_blocks(channels: int) -> list[int]:
    """The two widest k-blocks among those with little padding: width saves more than a little
    padding costs."""
    least = min(ceil_divide(channels, block) * block for block in K_BLOCKS)
    most = max(least, int(_PADDING * channels))
    return [block for block in K_BLOCKS if ceil_divide(channels, block) * block <= most][:2]


def _fixed_bytes(config: HaloConfig, tensors: int, size: int, out_size: int) -> int:
    """Bytes of input stages, further layers' weights, each warpgroup's tile for a further layer,
    its staging (two chunks of the output and of each tensor operand), barriers and places."""
    chunk = (64 if config.consumers == 1 else 32) * CHANNELS
    staging = 2 * chunk * (out_size + tensors * size)
    blocks = [channels // CHANNELS for channels in config.layers]
    products = sum(before * after for before, after in itertools.pairwise(blocks))
    weights = products * CHANNELS**2 * size
    tile = config.positions * CHANNELS * size if weights else 0
    becomes_staging = config.schedule is Schedule.PINGPONG and len(blocks) == 2 and blocks[1] == 1
    warpgroup = max(tile, staging) if becomes_staging else tile + staging
    inputs = config.stages * config.stage_pixels * pixel_bytes(config, size)
    return inputs + weights + config.consumers * warpgroup + _BARRIERS + _PLACES


def _filter_bytes(config: HaloConfig, size: int) -> int:
    return config.channels * pixel_bytes(config, size)


def pixel_bytes(config: HaloConfig, size: int) -> int:
    """Bytes of a pixel of a k-block: the width of a swizzle."""
    return (64 if config.k_block == 48 else config.k_block) * size


def _phases(problem: ConvProblem) -> int:
    """Boxes of a k-block: with stride 2, one for each parity of rows and columns that the filter
    reads."""
    return min(problem.strides[0], problem.r) * min(problem.strides[1], problem.s)
