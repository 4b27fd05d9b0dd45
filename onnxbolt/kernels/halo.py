"""Convolutions on sm_90a from spatial tiles with their border, without im2col traffic: which tiles,
and what they cost an SM.

A tile is `images` x `rows` x `columns` output pixels and 64 output channels for each consumer
warpgroup that shares it. Its input is one TMA box for each k-block of channels, and each filter
position is a view of it. The product has output channels as rows and positions, pixels of the box
in groups of eight, as columns. The formulas repeat custom_ops/halo/geometry.h and
custom_ops/halo/block.h.

Columns of a configuration: `threadblock` = (output channels, positions, input channels of a
k-block), `warp` = (columns, rows, images) of a tile, chosen at launch, `instruction[0]` = pixels
that an input stage holds, `stages` = input stages, `cluster[1]` = blocks that share filter loads.
PINGPONG: each warpgroup has tiles of its own.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES
from onnxbolt.integers import ceil_divide
from onnxbolt.kernels.config import UNBOUNDED, ConvProblem, Family, KernelConfig, Schedule

# widths that wgmma is declared for (custom_ops/sm90/wgmma.h)
POSITIONS = (64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)
K_BLOCKS = (64, 48, 32, 16)  # channels; 48 of them lie in rows of 64
_GROUP = 8  # positions that are neighbours in shared memory
CHANNELS = 64  # output channels of a warpgroup
_MAX_BOX = 256  # extent of a TMA box
_BARRIERS, _PLACES = 1024, 256 * 8  # bytes of shared memory
_MAX_INPUT_STAGES, _MAX_FILTER_STAGES, _MIN_FILTER_STAGES = 8, 48, 4
_PADDING = 1.15  # of the channels, for wider k-blocks
_INPUT_SHARE = 0.6  # of shared memory that input stages take beside streamed filters
_KINDS = ((Schedule.PINGPONG, 2), (Schedule.COOPERATIVE, 2), (Schedule.COOPERATIVE, 1))
_MOST_PARTS, _MOST_HEIGHTS = 4, 6  # of a row, and of tiles of one width
_KEPT = 10  # candidates of a problem; a kind of kernel (all but the tile) appears twice at most
# Cycles of an SM, fitted to 43 measurements on one H200 (the first loads again, to 30 later ones):
# wgmma's rate; bytes of shared memory in a cycle; a position of the epilogue, and that of a
# cooperative tile with more tiles behind it; a pixel that TMA gathers with a stride; each filter
# position, where it stays in shared memory and where it is streamed; each tile; the first loads,
# and the blocks of a cluster that wait for one another.
_TENSOR_EFFICIENCY, _SHARED_BYTES, _POSITION, _EXPOSED_POSITION, _STRIDED_PIXEL = (
    1.0,
    130,
    9.0,
    18.0,
    5.0,
)
_KEPT_TAP, _STREAMED_TAP, _TILE, START, _CLUSTER = 56.0, 68.0, 200.0, 2200.0, 1800.0


@dataclass(frozen=True)
class Geometry:
    """A tile of a problem, and how its pixels lie in shared memory (custom_ops/halo/geometry.h)."""

    columns: int
    rows: int
    images: int
    row_pitch: int  # pixels from one row of the box to the next
    image_rows: int  # rows of the box from one image to the next
    group_pitch: int  # pixels from one group of positions to the next
    row_positions: int
    zero_pixels: int  # behind the box
    tiles: int

    @property
    def positions(self) -> int:
        return (
            (self.images - 1) * self.image_rows + self.rows - 1
        ) * self.row_positions + self.columns

    @property
    def box_pixels(self) -> int:
        return self.row_pitch * self.image_rows * self.images

    @property
    def stage_pixels(self) -> int:
        """Rounded to the period of a swizzle."""
        return ceil_divide(self.box_pixels + self.zero_pixels, _GROUP) * _GROUP


def geometry(problem: ConvProblem, columns: int, rows: int, images: int) -> Geometry:
    """The tile of at most columns x rows x images output pixels."""
    columns, rows, images = min(columns, problem.q), min(rows, problem.p), min(images, problem.n)
    top, left, bottom, right = problem.pads
    stride = problem.strides[0]
    whole_rows, whole_images = (
        stride == 1 and columns == problem.q,
        stride == 1 and rows == problem.p,
    )
    row_pitch = problem.w + max(left, right) if whole_rows else columns + (problem.s - 1) // stride
    image_rows = problem.h + max(top, bottom) if whole_images else rows + (problem.r - 1) // stride
    zeros = (min(top, bottom) * row_pitch if whole_images else 0) + (
        min(left, right) if whole_rows else 0
    )
    tiles = (
        ceil_divide(problem.q, columns)
        * ceil_divide(problem.p, rows)
        * ceil_divide(problem.n, images)
    )
    narrow = columns <= _GROUP
    return Geometry(
        columns,
        rows,
        images,
        row_pitch,
        image_rows,
        row_pitch if narrow else _GROUP,
        _GROUP if narrow else row_pitch,
        zeros,
        tiles,
    )


def supports(problem: ConvProblem, arch: Arch) -> bool:
    """Whether the family can run `problem`; a filter of one position gains nothing from a
    border."""
    return (
        arch.wgmma
        and problem.dtype in (DType.F16, DType.BF16)
        and not problem.nchw
        and problem.dilations == (1, 1)
        and min(problem.pads) >= 0
        and problem.strides in ((1, 1), (2, 2))
        and problem.r * problem.s > 1
        and problem.depth % 8 == 0
        and problem.k // problem.groups % 8 == 0
    )


def candidates(problem: ConvProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """The configurations that load an SM least, the best first; empty where the family cannot
    run `problem`."""
    if not supports(problem, arch):
        return ()
    ranked = sorted(
        (cycles(problem, config, arch), config) for config in dict.fromkeys(_configs(problem, arch))
    )
    kinds: dict[tuple[object, ...], int] = {}
    kept: list[KernelConfig] = []
    for _, config in ranked:
        kind = (
            config.threadblock[0],
            config.threadblock[2],
            config.cluster,
            config.schedule,
            config.consumers,
            config.resident,
        )
        kinds[kind] = kinds.get(kind, 0) + 1
        if kinds[kind] <= 2 and len(kept) < _KEPT:
            kept.append(config)
    return tuple(kept)


def shared_memory(config: KernelConfig, tensors: int, element_bytes: int, output_bytes: int) -> int:
    """Bytes of a block whose chain has that many tensor operands."""
    filters = filter_stages(config, tensors, element_bytes, output_bytes) * _filter_bytes(
        config, element_bytes
    )
    return _fixed_bytes(config, tensors, element_bytes, output_bytes) + filters


def filter_stages(
    config: KernelConfig,
    tensors: int,
    element_bytes: int,
    output_bytes: int,
    block_bytes: int = 227 * 1024,
) -> int:
    """Filter positions that fit beside everything else; below 2 the kernel does not compile."""
    room = block_bytes - _fixed_bytes(config, tensors, element_bytes, output_bytes)
    return min(_MAX_FILTER_STAGES, room // _filter_bytes(config, element_bytes))


def cycles(problem: ConvProblem, config: KernelConfig, arch: Arch) -> float:
    """Of the most loaded SM, beside launch and device memory: rounds of tiles, and what does not
    overlap with others."""
    count, exposed = rounds(problem, config, arch), _POSITION
    if config.schedule is Schedule.COOPERATIVE:
        exposed += (count - 1) * _EXPOSED_POSITION
    start = START + (_CLUSTER if config.cluster[1] > 1 else 0.0)
    return start + count * main_loop_cycles(problem, config) + exposed * config.threadblock[1]


def rounds(problem: ConvProblem, config: KernelConfig, arch: Arch) -> int:
    """Tiles of the most loaded SM."""
    blocks = problem.groups * ceil_divide(problem.k // problem.groups, config.threadblock[0])
    clusters = ceil_divide(geometry(problem, *config.warp).tiles, config.cluster[1])
    return ceil_divide(clusters * blocks, arch.sm_count // config.cluster[1])


def main_loop_cycles(problem: ConvProblem, config: KernelConfig) -> float:
    """Of a tile: bound by products, by shared memory or by TMA."""
    channels, positions, k_block = config.threadblock
    tile = geometry(problem, *config.warp)
    groups, row_bytes = channels // CHANNELS, pixel_bytes(config, problem.dtype.bytes)
    boxes = ceil_divide(problem.depth, k_block) * _phases(problem)
    taps = ceil_divide(problem.depth, k_block) * problem.r * problem.s
    steps = taps * k_block // 16  # wgmma instructions of a warpgroup
    loads = boxes * tile.box_pixels * row_bytes + (
        0 if config.resident else taps * channels * row_bytes
    )
    read = steps * groups * (CHANNELS + positions) * 32
    gathered = boxes * tile.box_pixels * _STRIDED_PIXEL if problem.strides[0] > 1 else 0.0
    main = max(
        steps * groups * positions / 2 / _TENSOR_EFFICIENCY,
        (read + loads) / _SHARED_BYTES,
        gathered,
    )
    return main + taps * (_KEPT_TAP if config.resident else _STREAMED_TAP) + _TILE


def _configs(problem: ConvProblem, arch: Arch) -> Iterator[KernelConfig]:
    for tile, (schedule, consumers), k_block in itertools.product(
        tiles(problem), _KINDS, k_blocks(problem.depth)
    ):
        positions = next(count for count in POSITIONS if count >= tile.positions)
        channels = CHANNELS * (1 if schedule is Schedule.PINGPONG else consumers)
        if channels > CHANNELS and problem.k // problem.groups <= CHANNELS:
            continue
        for resident, cluster in ((1, 1), (0, 1), (0, 2)):
            config = KernelConfig(
                arch.number,
                0,
                UNBOUNDED,
                Family.HALO_SM90,
                (channels, positions, k_block),
                (tile.columns, tile.rows, tile.images),
                (tile.stage_pixels, 0, 0),
                cluster=(1, cluster),
                schedule=schedule,
                consumers=consumers,
                resident=resident,
            )
            yield from with_stages(problem, config, arch)


def with_stages(problem: ConvProblem, config: KernelConfig, arch: Arch) -> Iterator[KernelConfig]:
    """The configuration with as many input stages as its share of shared memory holds, if that
    is enough to run."""
    size = problem.dtype.bytes
    stage = config.instruction[0] * pixel_bytes(config, size)
    tensors, out = (
        sum(EPILOGUES[step].operand == "tensor" for step in problem.chain),
        problem.out.bytes,
    )
    filters = ceil_divide(problem.depth, config.threadblock[2]) * problem.r * problem.s
    room = arch.shared_memory_per_block - _fixed_bytes(config, tensors, size, out)
    if config.resident:
        room -= filters * _filter_bytes(config, size)
    else:
        room = min(room, int(_INPUT_SHARE * arch.shared_memory_per_block))
    needed = filters if config.resident else _MIN_FILTER_STAGES
    for stages in range(min(_MAX_INPUT_STAGES, room // stage), 1, -1):
        config = dataclasses.replace(config, stages=stages)
        if filter_stages(config, tensors, size, out) >= needed:
            if _last_byte(problem, config) <= shared_memory(config, tensors, size, out):
                yield config
            return


def tiles(problem: ConvProblem) -> Iterator[Geometry]:
    """Tiles that a block can take at once: 8 columns, for which no position lies beyond a row,
    or an even share of a row."""
    widths = {
        min(_GROUP, problem.q),
        *(ceil_divide(problem.q, parts) for parts in range(1, _MOST_PARTS + 1)),
    }
    for columns in sorted(widths):
        most = min(problem.p, POSITIONS[-1])  # a row has one position at least
        heights = [
            rows
            for rows in range(most, 0, -1)
            if _fits(problem, geometry(problem, columns, rows, 1))
        ]
        blocks = {ceil_divide(problem.p, rows) for rows in heights}
        for rows in sorted(
            {ceil_divide(problem.p, count) for count in sorted(blocks)[:_MOST_HEIGHTS]}
        ):
            yield geometry(problem, columns, rows, 1)
        if heights and heights[0] == problem.p:
            several = (
                geometry(problem, columns, problem.p, images) for images in range(2, problem.n + 1)
            )
            yield from itertools.takewhile(lambda tile: _fits(problem, tile), several)


def _fits(problem: ConvProblem, tile: Geometry) -> bool:
    widest = max(
        tile.row_pitch * problem.strides[1], tile.image_rows * problem.strides[0], tile.images
    )
    return tile.positions <= POSITIONS[-1] and widest <= _MAX_BOX


def _last_byte(problem: ConvProblem, config: KernelConfig) -> int:
    """Where the reads of a kernel's positions end, those beyond the tile among them, in the last
    input stage."""
    stride, row_bytes, tile = (
        problem.strides[0],
        pixel_bytes(config, problem.dtype.bytes),
        geometry(problem, *config.warp),
    )
    shift = (problem.r - 1) // stride * tile.row_pitch + (problem.s - 1) // stride
    last = (config.threadblock[1] // _GROUP - 1) * tile.group_pitch + _GROUP + shift
    return ((config.stages - 1) * config.instruction[0] + last) * row_bytes


def k_blocks(channels: int) -> list[int]:
    """The two widest of those that pad the channels least; wide blocks save more than a little
    padding costs."""
    least = min(ceil_divide(channels, block) * block for block in K_BLOCKS)
    most = max(least, int(_PADDING * channels))
    return [block for block in K_BLOCKS if ceil_divide(channels, block) * block <= most][:2]


def _fixed_bytes(config: KernelConfig, tensors: int, element_bytes: int, output_bytes: int) -> int:
    """Input stages, further layers' weights, each warpgroup's tile for a further layer and its
    staging (two chunks of the output and of each tensor operand), barriers, places."""
    chunk = (64 if config.consumers == 1 else 32) * CHANNELS
    staging = 2 * chunk * (output_bytes + tensors * element_bytes)
    blocks = [
        channels // CHANNELS
        for channels in (config.threadblock[0], *config.instruction[1:])
        if channels
    ]
    weights = (
        sum(before * after for before, after in itertools.pairwise(blocks))
        * CHANNELS**2
        * element_bytes
    )
    tile = config.threadblock[1] * CHANNELS * element_bytes if weights else 0
    becomes_staging = config.schedule is Schedule.PINGPONG and len(blocks) == 2 and blocks[1] == 1
    warpgroup = max(tile, staging) if becomes_staging else tile + staging
    inputs = config.stages * config.instruction[0] * pixel_bytes(config, element_bytes)
    return inputs + weights + config.consumers * warpgroup + _BARRIERS + _PLACES


def _filter_bytes(config: KernelConfig, element_bytes: int) -> int:
    return config.threadblock[0] * pixel_bytes(config, element_bytes)


def pixel_bytes(config: KernelConfig, element_bytes: int) -> int:
    """Of a pixel of a k-block: the width of a swizzle."""
    k_block = config.threadblock[2]
    return (64 if k_block == 48 else k_block) * element_bytes


def _phases(problem: ConvProblem) -> int:
    """Boxes of a k-block: one for each parity of rows and columns that a filter with stride 2
    meets."""
    return min(problem.strides[0], problem.r) * min(problem.strides[1], problem.s)
