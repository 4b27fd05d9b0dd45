"""Our own persistent kernels for GEMM and implicit GEMM on sm_90a: tiles, shared memory and times.

A block has a producer warpgroup and one to three consumer warpgroups. One thread of the producer
loads operands by TMA, another one residuals; consumers multiply by wgmma, 64 rows at a time. In a
swapped kernel the rows of the product are output channels, and its columns are rows of A, any
multiple of 16. The formulas for shared memory repeat custom_ops/sm90/shape.h.

Times: each SM runs one block. A k-block is bound by tensor cores, shared memory or TMA, whichever
is slowest. COOPERATIVE adds a tile's epilogue to its main loop; PINGPONG hides epilogues under
other tiles' main loops, all but the last, and pays for the turns. The constants were fitted to 307
measurements on one H200: fifteen of ResNet-50's convolutions at batch 32, up to 38 tiles for each
(root mean square of the relative error 16%; the predicted choice takes 1.024 times the best,
geometric mean), beginning with constants that 800 others had given. The cost of copies with short
rows was fitted to 2,839 more: layers of four CNNs and BERT (root mean square 23% to 16%, the
predicted choice 1.060 to 1.033). The cost of weights whose rows begin within a sector was fitted to
these and to 595 others with 24 to 672 channels (on the latter, the predicted choice 1.076 to
1.049). Those of products of codes were fitted to 52 measurements on one H200: fp8 and int8 GEMMs of
transformers and ResNet-50's convolutions (root mean square 11% for int8, 13% for fp8).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import STORE, epilogue_bytes, gates, rotates, tensor_operands
from onnxbolt.families.base import (
    FLAG,
    SCHEDULES,
    KernelConfig,
    Schedule,
    Typed,
    access,
    clusters,
    positive,
    stage_count,
    tile_size,
    warpgroups,
)
from onnxbolt.families.blocks.memory import epilogue_cost, vector_operands
from onnxbolt.families.blocks.staging import (
    BARRIER,
    MOST_BUFFERS,
    SWIZZLED_ROWS,
    buffers,
    loads_residual,
    staged,
    staging_bytes,
    stored_columns,
)
from onnxbolt.families.row import at
from onnxbolt.integers import ceil_divide, round_up
from onnxbolt.kernel_time import overlapped
from onnxbolt.problems import Conv3dProblem, ConvProblem, Product, QuantizedConvProblem

_C, _P = Schedule.COOPERATIVE, Schedule.PINGPONG
# columns of one wgmma instruction that custom_ops/sm90/wgmma.h declares
COLUMNS = (8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 160, 192, 224, 256)
_WIDE_COLUMNS = (64, 96, 128, 192, 256)
_CODES_COLUMNS = 16  # divides the columns of tiles of codes: wgmma of integers has few others
_WASTE = 0.25  # the part of a tile's columns that may lie outside the output
_K = (64, 48, 32, 16)  # elements of a k-block, for types of 2 bytes
_MAX_BOX = 256  # rows of one copy by TMA
_SPLITS = (2, 4, 8)
# beside resident weights: bytes of a ring that hide the memory's latency, and the least number of
# stages
_RING_BYTES, _RESIDENT_STAGES = 65536, 4
# the stages of a kernel of codes whose resident weights leave no room for the first number of them
_FEWER_STAGES = {8: 6}

_WIDE = 16  # the least bytes that TMA moves
_MAX_STAGES, _MIN_STAGES = 16, 3
FIXED_BYTES = 2048  # barriers, and the padding for alignment
# the most per thread without spills, by consumer warpgroups
MAX_ACCUMULATORS = {1: 128, 2: 128, 3: 96}
# the first of TMA's im2col corners that is too far, by the number of spatial axes, and the most of
# a stride
_FAR, _MAX_STRIDE = {2: 128, 3: 16}, 8

CLOCKS_PER_US = 1755.0  # under load
# a launch that follows another of these kernels, before whose end it begins; the same for clusters
LAUNCH_US, _CLUSTER_US = 0.93, 0.15
_PRODUCTS = 4096 * 0.89  # FLOP a clock of one SM's tensor cores, types of 2 bytes
_SHARED = 128.0  # bytes a clock of shared memory, reads and writes
_MATRIX_LOAD, _IM2COL_LOAD, _WEIGHT_LOAD = 74.5, 75.0, 78.0  # bytes per clock that TMA loads
_IM2COL_CLOCKS = 30.0  # for each k-block that im2col copies, whatever its size
# the least clocks of each row of a copy: of a matrix or weights, and by im2col
_ROW, _IM2COL_ROW = 2.0, 1.45
# bytes of a sector of L2; additional clocks of a row of weights that begins within a sector, when
# all SMs read it
_SECTOR, _BROKEN_ROW = 32, 12.0
# the factor for rows that span lines of memory, since images do not begin at multiples of their
# width
_ACROSS = 2.0
_LATENCY_CLOCKS = 1400.0  # from a stage's request to its next one, with L2 under load
# the factor for k-blocks of several boxes: the ring has fewer stages, and the first one arrives
# later
_DEEP = 1.04
# the factor of a k-block's products with PINGPONG, and the time of a turn
_PINGPONG_BLOCK, _TURN_US = 0.895, 0.31
_EPILOGUE_US = 0.06
_STORE = 33.0  # bytes per clock that one SM stores, residuals included
LANES = 128 * 1.97  # an SM's epilogue operations per clock
_STAGING_OPERATIONS = 1.8  # for each output, besides its epilogue's
# further ones of products of codes: conversions, and places of bytes; beside those of E4M3 other
# warpgroups add up sums of k-blocks
_CODE_OPERATIONS = {DType.I8: 4.0, DType.U8: 4.0, DType.E4M3: 14.0}
# pixels that a warp stores at once in each of eight channels of NCHW output; clocks of an SM per
# value
_PLANE_PIXELS, _PLANE_VALUE = 8, 0.25
# sums of k-blocks that an SM adds in fp32 in a clock, where kernels of codes do: with two sets of
# registers for them, and with one by the warpgroups that share a tile, which wait for the products
# of each k-block while others multiply
_ADDITIONS_OF_TWO, _ADDITIONS_OF_ONE = 256.0, {1: 32.0, 2: 48.0, 3: 128.0}
_SPLIT_US = 0.7  # for the barriers of a cluster
_REMOTE = 8.6  # bytes per clock that one SM receives from others
# the part of cooperative epilogues that is not hidden when a block has several tiles
_OVERLAPPED = 0.68
_MEMORY = 0.91  # relative to a plain copy of the same bytes
_LOSS = 0.57  # part of the shorter of (compute, memory) that is not hidden behind the longer


@dataclass(frozen=True, kw_only=True)
class ProductConfig(KernelConfig):
    """A block's tile of `rows` x `columns`, multiplied in k-blocks of `k` elements.

    `resident`: the weights of a block's output columns stay in shared memory. `stages` are those of
    the ring; 0: as many as shared memory holds.
    """

    cluster: ClassVar[tuple[int, int]] = (1, 1)
    swapped: ClassVar[bool] = False
    split_k: ClassVar[int] = 1
    partial_sums: ClassVar[int] = 0  # sets of registers for sums of k-blocks

    rows: int = at("tile_m", sound=tile_size)
    columns: int = at("tile_n", sound=tile_size)
    k: int = at("tile_k", sound=positive)
    stages: int = at("stages", default=0, sound=stage_count)
    schedule: Schedule = at("schedule", numbers=SCHEDULES)
    consumers: int = at("consumers", sound=warpgroups)  # consumer warpgroups
    resident: bool = at("resident", default=False, numbers=FLAG)

    @property
    def product(self) -> tuple[int, int]:
        """Rows and columns of a tile's product."""
        return (self.columns, self.rows) if self.swapped else (self.rows, self.columns)

    @property
    def tile_groups(self) -> int:
        """Consumer warpgroups that share a tile."""
        return 1 if self.schedule is _P else self.consumers

    @property
    def group_rows(self) -> int:
        """Rows of a tile's product that one warpgroup has."""
        return self.product[0] // self.tile_groups


@dataclass(frozen=True, kw_only=True)
class Sm90Config(ProductConfig):
    """Beside a `ProductConfig`: `cluster`, the blocks of a cluster along rows and columns;
    `split_k`, the blocks that share a tile's k-blocks; `swizzle`, the number of neighbouring rows
    of tiles that blocks walk through together."""

    swapped: bool = at("instruction_m", default=False, numbers=FLAG)  # type: ignore[misc]
    swizzle: int = at("swizzle", default=1, compiled=1, sound=positive)
    cluster: tuple[int, int] = at(  # type: ignore[misc]
        "cluster_m", "cluster_n", default=(1, 1), sound=clusters
    )
    access_in: int = at("align_a", "align_b", repeated=True, default=8, sound=access)
    access_out: int = at("align_c", default=8, sound=access)  # 1 where y is written as NCHW
    split_k: int = at("split_k", default=1, compiled=1, sound=positive)  # type: ignore[misc]


S = TypeVar("S", bound=Sm90Config)


@dataclass(frozen=True)
class Tile90:
    """A tile without its columns, which follow from the problem. `deep`: its k-blocks have twice
    the length."""

    rows: int
    schedule: Schedule
    consumers: int
    cluster: tuple[int, int] = (1, 1)
    deep: bool = False
    resident: bool = False


# Large tiles load the fewest bytes per product, and L2 and shared memory limit a Hopper kernel
# before tensor cores do. Three warpgroups divide some outputs better among the SMs; small tiles are
# for small problems. Resident weights and deep k-blocks leave more of TMA's rate to the
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

# Tiles of swapped kernels, with one warpgroup each. If an SM has more than two tiles, other kernels
# divide evenly, too, and hide their epilogues.
_SWAPPED_COLUMNS, _SWAPPED_ROWS, _SWAPPED_ROUNDS = 128, (80, 96, 112), 2


# --- the problem ----------------------------------------------------------------------------------


def supports(problem: Product, arch: Arch) -> bool:
    """True if TMA can read and write the problem's rows of 16 bytes; convolutions have to be within
    im2col's limits as well."""
    if not arch.supports(problem.dtype) or not _tile_columns(problem):
        return False
    wide_out = max(_access_out(problem), _WIDE // problem.out.bytes)
    return not (problem.depth % problem.dtype.alignment or problem.columns % wide_out)


def _access_out(problem: Product) -> int:
    """Elements of one access to y, and to what the epilogue reads."""
    return (_WIDE // problem.out.bytes) if problem.dtype.is_code else problem.dtype.alignment


def im2col_reaches(problem: ConvProblem | Conv3dProblem | QuantizedConvProblem) -> bool:
    """True if the filter's corners, its reach and the strides are within im2col's limits, or no
    im2col is needed."""
    if problem.is_matrix:
        return True
    axes, pads = len(problem.filter), problem.pads
    reach = [
        (size - 1) * step for size, step in zip(problem.filter, problem.dilations, strict=True)
    ]
    ends = (end - span for end, span in zip(pads[axes:], reach, strict=True))
    far = _FAR[axes]
    within = all(-far <= corner < far for corner in (*(-pad for pad in pads[:axes]), *ends))
    return within and max(reach) < 2 * far and max(problem.strides) <= _MAX_STRIDE


def k_blocks(config: ProductConfig, problem: Product) -> int:
    """Steps of a tile's main loop, all splits together."""
    return problem.taps * ceil_divide(problem.depth, config.k)


def boxes(k: int, dtype: DType) -> int:
    """The number of TMA copies for a k-block's rows, each as wide as a swizzled row can be."""
    size = k * dtype.bytes
    return size // next(width for width in SWIZZLED_ROWS if size % width == 0)


def k_block(channels: int, dtype: DType) -> int:
    """Elements of a k-block: the number that pads `channels` least, the largest of equals."""
    sizes = (size * 2 // dtype.bytes for size in _K)
    return min(sizes, key=lambda size: (ceil_divide(channels, size) * size, -size))


# --- candidates -----------------------------------------------------------------------------------


def candidates(kind: type[S], problem: Product, arch: Arch, swizzle: int) -> tuple[S, ...]:
    """Every configuration for `problem`, each for all m; empty where TMA cannot read or write its
    rows."""
    if not supports(problem, arch):
        return ()
    depths = _block_depths(problem)
    found = [
        _config(kind, tile, columns, k, problem, arch, swizzle)
        for k in depths
        for columns in _tile_columns(problem)
        for tile in TILES
    ]
    found += (config for k in depths for config in _swapped(kind, k, problem, arch, swizzle))
    shrunk = (_beside_weights(config, problem, arch) for config in dict.fromkeys(found))
    feasible = (config for config in shrunk if fits(config, problem, arch))
    return tuple(
        variant for config in feasible for variant in (config, *_splits(config, problem, arch))
    )


def _tile_columns(problem: Product) -> list[int]:
    """Numbers of columns worth trying. With several groups, a tile's columns belong to one group,
    since TMA cannot separate groups."""
    if problem.groups > 1:
        widths = [width for width in COLUMNS if problem.columns // problem.groups % width == 0]
        return [width for width in widths if 2 * width >= widths[-1]]
    count, step = problem.product_columns, _CODES_COLUMNS if problem.dtype.is_code else 1
    # the narrowest tile that holds all columns, and wide ones with little waste
    narrow = [width for width in COLUMNS if width >= count and width % step == 0][:1]
    return narrow + [
        width
        for width in _WIDE_COLUMNS
        if width < count and ceil_divide(count, width) * width * (1 - _WASTE) <= count
    ]


def _config(
    kind: type[S], tile: Tile90, columns: int, k: int, problem: Product, arch: Arch, swizzle: int
) -> S:
    wide, k = problem.dtype.alignment, k * (2 if tile.deep else 1)
    ring = min(_RING_BYTES // (tile.rows * k * problem.dtype.bytes), _MAX_STAGES)
    return kind(
        arch=arch.number,
        rows=tile.rows,
        columns=columns,
        k=k,
        stages=max(_RESIDENT_STAGES, ring) if tile.resident else 0,
        swizzle=swizzle,
        cluster=tile.cluster,
        schedule=tile.schedule,
        access_in=wide,
        access_out=_access_out(problem),
        consumers=tile.consumers,
        resident=tile.resident,
    )


def _beside_weights(config: S, problem: Product, arch: Arch) -> S:
    """The configuration with fewer stages if resident weights take the room of some. Values of 16
    bits have not been measured with fewer."""
    if not config.resident or not problem.dtype.is_code or fits(config, problem, arch):
        return config
    return replace(config, stages=_FEWER_STAGES.get(config.stages, config.stages))


def _swapped(kind: type[S], k: int, problem: Product, arch: Arch, swizzle: int) -> Iterator[S]:
    """The swapped kernel that divides few tiles best among the SMs, if it does so better than tiles
    of 64 or 128 rows."""
    across = tensor_operands(problem.chain) or gates(problem.chain) or rotates(problem.chain)
    if across or problem.out.bytes != 2 or problem.dtype.is_code:
        return
    if _SWAPPED_COLUMNS not in _tile_columns(problem):
        return
    columns = ceil_divide(problem.columns, _SWAPPED_COLUMNS)
    rows_of_sm = {
        rows: ceil_divide(ceil_divide(problem.rows, rows) * columns, arch.sm_count) * rows
        for rows in (64, *_SWAPPED_ROWS, 128)
    }
    rows = min(rows_of_sm, key=rows_of_sm.__getitem__)
    if rows in _SWAPPED_ROWS and rows_of_sm[rows] <= _SWAPPED_ROUNDS * rows:
        tile = Tile90(rows, _C, 1)
        config = _config(kind, tile, _SWAPPED_COLUMNS, k, problem, arch, swizzle)
        yield replace(config, swapped=True)


def _block_depths(problem: Product) -> tuple[int, ...]:
    """Elements of k-blocks worth trying: the number with the least padding, and the widest if it
    takes fewer TMA copies. With groups, only the former: a wide block reads further into the next
    group, and infinities there times weights of zero would give NaN."""
    dtype, depth = problem.dtype, problem.depth
    least, widest = k_block(depth, dtype), _K[0] * 2 // dtype.bytes
    copies, fewest = (ceil_divide(depth, k) * boxes(k, dtype) for k in (least, widest))
    return (least, widest) if fewest < copies and problem.groups == 1 else (least,)


def _splits(config: S, problem: Product, arch: Arch) -> Iterator[S]:
    """The configuration with a tile's k-blocks split among the blocks of a cluster, if tiles alone
    leave SMs idle."""
    for split in splits(config, problem, arch):
        idle = tiles(config, problem) * split <= arch.sm_count
        if split <= k_blocks(config, problem) and idle:
            yield replace(config, split_k=split)


def launch_splits(config: S) -> Sequence[S]:
    """The splits that the tuner tries, whatever was predicted."""
    return [replace(config, split_k=split) for split in (1, 2, 4)]


def launch_swizzles(config: S) -> Sequence[S]:
    """The swizzles that the tuner tries, whatever was predicted."""
    return [replace(config, swizzle=swizzle) for swizzle in (1, 2, 4, 8)]


# --- feasibility ----------------------------------------------------------------------------------


def splits(config: Sm90Config, kernel: Typed, arch: Arch) -> list[int]:
    """The numbers of blocks that can share a tile's k-blocks; none if clusters already serve
    another purpose, or if shared memory has no room for the exchange."""
    if config.schedule is not _C or config.cluster != (1, 1) or config.resident or config.swapped:
        return []
    rows, columns = config.rows, config.columns
    stage = (rows + columns) * config.k * kernel.dtype.bytes
    ring, pieces = stage * stages(config, kernel, arch), units(config, kernel)
    if loads_residual(kernel) and pieces // config.tile_groups > MOST_BUFFERS:
        return []
    shared = [split for split in _SPLITS if pieces % split == 0 or split % pieces == 0]
    return [
        split for split in shared if max(split, pieces) * (rows * columns * 4 // pieces) <= ring
    ]


def fits(config: Sm90Config, problem: Product, arch: Arch) -> bool:
    """True if registers, shared memory and resident weights allow the kernel to compile without
    spills and to run `problem`."""
    rows, columns, (m, n) = config.rows, config.columns, config.cluster
    if accumulators(config) > MAX_ACCUMULATORS[config.consumers]:
        return False
    if columns % (8 * m) or rows % (8 * n):
        return False  # the blocks of a cluster load whole groups of eight swizzled rows
    if rows // n > _MAX_BOX or columns // m > _MAX_BOX:
        return False
    if not config.resident:
        return stages(config, problem, arch) >= _MIN_STAGES
    ring = config.stages * rows * config.k * problem.dtype.bytes
    weights = k_blocks(config, problem) * columns * config.k * problem.dtype.bytes
    if weights > _free_bytes(config, problem, arch) - ring:
        return False
    return ceil_divide(problem.product_columns, columns) <= arch.sm_count < tiles(config, problem)


def accumulators(config: ProductConfig) -> int:
    """Sums of the product that a thread holds."""
    return config.group_rows // 64 * config.product[1] // 2


def stages(config: ProductConfig, kernel: Typed, arch: Arch) -> int:
    """Stages of the ring that the kernel will have."""
    if config.stages:
        return config.stages
    stage = (config.rows + config.columns) * config.k * kernel.dtype.bytes
    return min(_free_bytes(config, kernel, arch) // stage, _MAX_STAGES)


def _free_bytes(config: ProductConfig, kernel: Typed, arch: Arch) -> int:
    """Bytes of shared memory besides the epilogues' staging buffers and vectors."""
    free = arch.shared_memory_per_block - FIXED_BYTES
    if config.swapped:  # units hold 64 channels of all rows; vectors are in registers
        return free - config.consumers * 2 * config.rows * 64 * kernel.out.bytes
    blocks, columns = config.group_rows // 64, result_columns(config, kernel)
    staging = staging_bytes(columns, staged(kernel), loads_residual(kernel), blocks)
    vectors = vector_operands(kernel.chain) * columns * 4
    return free - config.consumers * (staging + vectors)


@dataclass(frozen=True)
class Finish:
    """A warpgroup's epilogue in shared memory: bytes of staging and of vectors, and how many units
    the staging holds."""

    staging: int
    vectors: int
    buffers: int


def shared_memory(config: Sm90Config, kernel: Typed, arch: Arch, staged_in_rows: bool) -> int:
    """Bytes of a block of the compiled kernel; tiles are staged where y has its channels last."""
    if config.swapped:
        finish = Finish(2 * config.rows * 64 * kernel.out.bytes, 0, 2)
    else:
        columns, blocks = result_columns(config, kernel), config.group_rows // 64
        layout = columns, staged(kernel), loads_residual(kernel), blocks
        vectors = vector_operands(kernel.chain) * columns * 4
        finish = Finish(staging_bytes(*layout) * staged_in_rows, vectors, buffers(*layout))
    return block_bytes(config, kernel.dtype.bytes, finish, arch)


def block_bytes(
    config: ProductConfig, size: int, finish: Finish, arch: Arch, extra: int = 0
) -> int:
    """Bytes of a block whose operands' elements have `size` bytes: the ring of A, the weights (a
    ring, or resident), `extra` for further layers, each warpgroup's epilogue, barriers."""
    groups = config.consumers
    rows, weights = config.rows * config.k * size, config.columns * config.k * size
    stage = rows + (0 if config.resident else weights)
    epilogues = groups * (finish.staging + finish.vectors)
    free = arch.shared_memory_per_block - FIXED_BYTES - extra - epilogues
    stages = config.stages or min(free // stage, _MAX_STAGES)
    blocks = (free - stages * stage) // weights if config.resident else stages
    barriers = 2 * stages + 2 + groups + 2 * groups * finish.buffers
    operands = round_up(stages * rows + blocks * weights, 1024)
    return operands + extra + epilogues + barriers * BARRIER


def tiles(config: ProductConfig, problem: Product) -> int:
    """Tiles of the output. Each block of a cluster has one, even outside the output."""
    m, n = config.cluster
    across = ceil_divide(problem.product_columns, config.columns * n)
    return ceil_divide(problem.rows, config.rows * m) * across * m * n


def result_columns(config: ProductConfig, kernel: Typed) -> int:
    """Columns of the result that a tile makes: half of the product's where the epilogue has a
    gate."""
    return config.columns // (1 + gates(kernel.chain))


def units(config: ProductConfig, kernel: Typed) -> int:
    """The number of pieces of 64 rows in which a tile is stored; blocks that split k divide them
    among themselves."""
    columns = result_columns(config, kernel)
    return (
        config.rows
        // 64
        * (columns // stored_columns(columns, staged(kernel), loads_residual(kernel)))
    )


# --- times ----------------------------------------------------------------------------------------


def predicted_us(
    problem: Product, config: ProductConfig, arch: Arch, memory_us: float, share: float = 1.0
) -> float:
    """Microseconds of one launch; `memory_us` is the time of a copy of all operands, `share` that
    of the k-blocks which the mean tile has."""
    launch = LAUNCH_US + (_CLUSTER_US if config.cluster != (1, 1) else 0.0)
    return launch + overlapped_us(_compute_us(problem, config, arch, share), memory_us)


def overlapped_us(compute: float, memory_us: float) -> float:
    """Microseconds of the busiest SM's computing overlapped with device memory."""
    return overlapped(compute, memory_us * _MEMORY, _LOSS)


def _compute_us(problem: Product, config: ProductConfig, arch: Arch, share: float = 1.0) -> float:
    """Microseconds of the busiest SM, without device memory."""
    rows, columns, split = config.rows, config.columns, config.split_k
    steps = ceil_divide(k_blocks(config, problem), split) * share
    main = steps * block_clocks(problem, config, arch) / CLOCKS_PER_US
    outputs = rows * result_columns(config, problem) / min(split, units(config, problem))
    epilogue = epilogue_us(problem, outputs)
    if split > 1:  # the time of a block that adds up units
        received = (split - 1) * rows * columns * 4 / min(split, units(config, problem))
        epilogue += _SPLIT_US + received / _REMOTE / CLOCKS_PER_US
    count = _tiles_of_sm(problem, config, arch)
    total = tiles_us(count, main, epilogue, config)
    # warpgroups that take turns share the SM's lanes, which epilogues of codes fill
    return max(total, main + count * epilogue) if problem.dtype.is_code else total


def terms(problem: Product, config: ProductConfig, arch: Arch) -> dict[str, float]:
    """The terms of `predicted_us`: of the busiest SM, of a tile and of a k-block."""
    return {
        "tiles": _tiles_of_sm(problem, config, arch),
        "k-blocks": k_blocks(config, problem) / config.split_k,
        "clocks": block_clocks(problem, config, arch),
        "stages": stages(config, problem, arch),
        "epilogue us": epilogue_us(problem, config.rows * result_columns(config, problem)),
        "compute us": _compute_us(problem, config, arch),
    }


def nchw_output_us(problem: ConvProblem, config: ProductConfig, arch: Arch) -> float:
    """Microseconds that NCHW output adds to a kernel that stores rows; nothing hides them."""
    real = min(config.columns, problem.k - problem.padding)
    values = config.rows * real / min(config.split_k, units(config, problem))
    across = _ACROSS if problem.p * problem.q % _PLANE_PIXELS else 1.0
    stored = _tiles_of_sm(problem, config, arch) * values
    return stored * across * _PLANE_VALUE / CLOCKS_PER_US


def _tiles_of_sm(problem: Product, config: ProductConfig, arch: Arch) -> int:
    """The most tiles that one SM computes, alone or with others."""
    blocks = config.cluster[0] * config.cluster[1]
    return ceil_divide(tiles(config, problem) * config.split_k, arch.sm_count // blocks * blocks)


def tiles_us(count: int, main: float, epilogue: float, config: ProductConfig) -> float:
    """Microseconds of an SM's tiles, one after another."""
    if config.schedule is Schedule.PINGPONG:
        main += _TURN_US
        return max(count * main, count * (main + epilogue) / config.consumers) + epilogue
    return count * (main + epilogue * (_OVERLAPPED if count > 1 else 1.0))


def block_clocks(problem: Product, config: ProductConfig, arch: Arch) -> float:
    """Clocks of one k-block of one tile. Multicast in clusters saved no time wherever it was
    measured."""
    rows, columns, k, dtype = config.rows, config.columns, config.k, problem.dtype
    size = dtype.bytes
    products = 2 * rows * columns * k / (_PRODUCTS * 2 / size)
    if config.partial_sums:
        one = _ADDITIONS_OF_ONE[config.tile_groups]
        products += rows * columns / (_ADDITIONS_OF_TWO if config.partial_sums > 1 else one)
    a, b = rows * k * size, 0 if config.resident else columns * k * size
    product_rows, product_columns = config.product
    shared = (product_rows // 64 * (64 + product_columns) * k * size + a + b) / _SHARED
    weights = 0.0
    if not config.resident:
        row = _weight_row(problem, config, arch)
        weights = _copy_clocks(columns, k, dtype, _WEIGHT_LOAD, row)
    if problem.is_matrix:
        pixels = _copy_clocks(rows, k, dtype, _MATRIX_LOAD, _ROW)
    else:
        pixels = _im2col_clocks(problem, rows, k)
    load = weights + pixels
    deep = _DEEP if boxes(k, dtype) > 1 else 1.0
    ring = stages(config, problem, arch)
    latency = _LATENCY_CLOCKS / max(ring - 1, min(ring, 1))  # one is being multiplied
    busy = _PINGPONG_BLOCK if config.schedule is Schedule.PINGPONG else 1.0
    return max(products * busy, shared * busy, load, latency) * deep


def _weight_row(problem: Product, config: ProductConfig, arch: Arch) -> float:
    """The least clocks of a row of weights. A row that begins within a sector takes the longer, the
    more SMs read it at once."""
    if problem.depth * problem.dtype.bytes % _SECTOR == 0:
        return _ROW
    busy = tiles(config, problem) * config.split_k / arch.sm_count
    return _ROW + _BROKEN_ROW * min(busy, 1.0)


def _copy_clocks(rows: int, k: int, dtype: DType, bytes_a_clock: float, least: float) -> float:
    """Clocks that TMA takes for the rows of a k-block, each in pieces as wide as a swizzle, and at
    least `least` for each piece."""
    pieces = boxes(k, dtype)
    return rows * pieces * max(k * dtype.bytes / pieces / bytes_a_clock, least)


def _im2col_clocks(problem: Product, rows: int, k: int) -> float:
    """Clocks that TMA takes to gather the pixels of one k-block."""
    size = problem.dtype.bytes
    row = k * size // boxes(k, problem.dtype)
    across = problem.depth * size % row > 0
    gather = _copy_clocks(rows, k, problem.dtype, _IM2COL_LOAD, _IM2COL_ROW)
    return _IM2COL_CLOCKS + gather * (_ACROSS if across else 1.0)


def epilogue_us(problem: Product, outputs: float) -> float:
    """Microseconds of the epilogue of `outputs` values of one tile."""
    # kernels that store rows in front of another form or product are measured as a whole
    chain = tuple(step for step in problem.chain if step != STORE)
    beside = epilogue_bytes(chain, problem.dtype)
    moved = outputs * (problem.out.bytes + beside) / _STORE
    exact = problem.dtype.is_code  # kernels of codes approximate no step
    steps = epilogue_cost(problem.chain, exact) + _CODE_OPERATIONS.get(problem.dtype, 0.0)
    operations = outputs * (_STAGING_OPERATIONS + steps) / LANES
    return _EPILOGUE_US + (moved + operations) / CLOCKS_PER_US
