"""A convolution, by im2col or as a matrix, and 1x1 convolutions behind it in one kernel on sm_90a:
The first convolution uses the tiles of implicit GEMM, each with all output channels, and the
operand of each further product stays in registers. Weights stay in shared memory (`resident`) or
pass through the ring, where those of further layers follow a tile's k-blocks.

custom_ops/families/b2b_conv_sm90/shape.h has the same formulas.

Times: the formulas of the first convolution, with the last one's output, and the further products.
Within 25% of 40 measurements on one H200 (Bolt's table 2, RepVGGAug, ResNet-50; batch 32) except
tiles that nearly run out of registers.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from onnxbolt.archs import Arch, Capability, get
from onnxbolt.epilogues import MAX_LAYERS, MEAN, fits_several, layers
from onnxbolt.families.base import Compiled, Family, Layers, Schedule, Typed, access
from onnxbolt.families.blocks import b2b, sm90
from onnxbolt.families.blocks.b2b import COLUMNS, padded
from onnxbolt.families.blocks.memory import epilogue_cost, memory_us, vector_operands
from onnxbolt.families.blocks.sm90 import ProductConfig
from onnxbolt.families.blocks.staging import BARRIER, buffers, loads_residual, staging_bytes
from onnxbolt.families.row import at
from onnxbolt.integers import ceil_divide, round_up
from onnxbolt.problems import ConvProblem

# rows, schedule and consumer warpgroups of a tile
_TILES = (
    (128, Schedule.PINGPONG, 2),
    (64, Schedule.PINGPONG, 2),
    (64, Schedule.PINGPONG, 3),
    (256, Schedule.COOPERATIVE, 2),
    (192, Schedule.COOPERATIVE, 3),
    (128, Schedule.COOPERATIVE, 2),
    (64, Schedule.COOPERATIVE, 1),
)
_WIDE_BLOCK = 64  # channels that fill a swizzled row
_PART = 128  # columns of the last product at a time
# registers of a consumer's thread: the most, and those besides accumulators and operands
_REGISTERS, _BASE_REGISTERS = {1: 255, 2: 224, 3: 144}, 56
_BOXES = (64, 32, 16)  # elements of a swizzled row
_MIN_STAGES, _MAX_STAGES, _FIXED_BYTES = 3, 16, 2048

_RATE = 2800.0  # FLOP a clock of one SM's tensor cores, operand from registers
# bytes of a line of memory, and how much longer it takes to gather pixels that span two lines
_LINE, _ACROSS = 128, 0.6
_LATENCY_US = 0.15  # each further product waits for the one before it


@dataclass(frozen=True, kw_only=True)
class B2bConvSm90Config(ProductConfig):
    """Beside a `ProductConfig`: the columns of the layers behind the first, zero where there is
    none."""

    later: tuple[int, ...] = at("warp_m", "warp_n", "warp_k")
    access: int = at("align_a", "align_b", "align_c", repeated=True, default=8, sound=access)

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each layer, zeros included."""
        return (self.columns, *(n for n in self.later if n))


class B2bConvSm90(Family[B2bConvSm90Config]):
    """Serves layers of up to 256 channels."""

    number, name, config = 14, "b2b_conv_sm90", B2bConvSm90Config
    takes = ("element", "output", "layers")
    problems, kinds = (ConvProblem,), frozenset({"conv", "conv1d", "conv_chain"})
    needs = frozenset({Capability.TMA, Capability.WGMMA})

    def candidates(self, problem: ConvProblem, arch: Arch) -> tuple[B2bConvSm90Config, ...]:
        if not problem.inner or problem.nchw or problem.y_nchw or MEAN in problem.chain:
            return ()
        widths, dtype = problem.widths, problem.dtype
        if dtype.bytes != 2 or max(widths) > COLUMNS[-1] or len(widths) > MAX_LAYERS:
            return ()
        if not fits_several(problem.chain):
            return ()
        if not all(sm90.supports(each, arch) for each in (problem, problem.layers[0])):
            return ()
        if not sm90.im2col_reaches(problem):
            return ()
        first, *others = (next(n for n in COLUMNS if n >= width) for width in widths)
        # 48 channels take three copies by TMA; 64 with zeros take one
        k_blocks = dict.fromkeys((sm90.k_block(problem.c, dtype), _WIDE_BLOCK))
        configs = (
            B2bConvSm90Config(
                arch=arch.number,
                rows=rows,
                columns=first,
                k=k,
                later=padded(others),
                schedule=schedule,
                access=dtype.alignment,
                consumers=groups,
                resident=resident,
            )
            for (rows, schedule, groups), resident, k in itertools.product(
                _TILES, (True, False), k_blocks
            )
        )
        fitting = (_with_stages(config, problem, arch) for config in configs)
        return tuple(config for config in fitting if config is not None)

    def shared_memory(self, kernel: Compiled) -> int:
        config, size, columns = kernel.config, kernel.dtype.bytes, kernel.config.widths[-1]
        layout = columns, kernel.out, loads_residual(kernel), config.group_rows // 64
        *_, last = layers(kernel.chain)
        finish = sm90.Finish(
            staging_bytes(*layout), vector_operands(last) * columns * 4, buffers(*layout)
        )
        extra = inner_bytes(config, kernel)
        return sm90.block_bytes(config, size, finish, get(config.arch), extra)

    def predicted_us(self, problem: ConvProblem, config: B2bConvSm90Config, arch: Arch) -> float:
        alone, rows, k = problem.layers[0], config.rows, config.k
        aligned = replace(alone, c=ceil_divide(alone.c, k) * k)  # the same number of k-blocks
        clocks = sm90.k_blocks(config, alone) * sm90.block_clocks(aligned, config, arch)
        main = clocks / sm90.CLOCKS_PER_US
        if not alone.is_matrix:
            size = alone.dtype.bytes
            across = _across(alone.c * size, sm90.boxes(k, alone.dtype), k * size)
            main *= 1 + _ACROSS * across
        end = _behind_us(problem, config) + sm90.epilogue_us(problem, rows * config.widths[-1])
        tiles = ceil_divide(ceil_divide(problem.rows, rows), arch.sm_count)
        busy = sm90.tiles_us(tiles, main, end, config)
        return sm90.LAUNCH_US + sm90.overlapped_us(busy, memory_us(problem, arch))

    def joins(self, layers: Layers) -> bool:
        return b2b.joins_convs(layers)


def _with_stages(
    config: B2bConvSm90Config, problem: ConvProblem, arch: Arch
) -> B2bConvSm90Config | None:
    """The configuration with the deepest ring that fits into shared memory; None if not even the
    shallowest fits."""
    size = problem.dtype.bytes
    if registers(config) > _REGISTERS[config.consumers]:
        return None
    free = arch.shared_memory_per_block - fixed_bytes(config, problem)
    weights = config.columns * config.k * size
    if config.resident:
        free -= sm90.k_blocks(config, problem) * weights
    stage = config.rows * config.k * size + (0 if config.resident else weights)
    stages = min(free // stage, _MAX_STAGES)
    least = max(_MIN_STAGES, stages_behind(config, size) + 1)
    return replace(config, stages=stages) if stages >= least else None


def registers(config: B2bConvSm90Config) -> int:
    """Registers of a consumer's thread: a tile's accumulators, of which 64 rows at a time become
    the operand of the next product."""
    blocks, widths = config.rows // config.tile_groups // 64, config.widths
    # the accumulators of a layer, and the operand made from them
    finishing = [n // 2 + n // 4 for n in widths[:-1]]
    sums = [*widths[1:-1], min(widths[-1], _PART)]
    multiplying = [before // 4 + after // 2 for before, after in zip(widths, sums, strict=False)]
    return _BASE_REGISTERS + (blocks - 1) * widths[0] // 2 + max(*finishing, *multiplying)


def inner_bytes(config: B2bConvSm90Config, kernel: Typed) -> int:
    """Shared memory of the layers behind the first: weights that stay, the vectors of all layers
    but the last, and a barrier."""
    widths, size, weights = config.widths, kernel.dtype.bytes, 0
    if not stages_behind(config, size):
        weights = sum(round_up(n * k * size, 1024) for k, n in itertools.pairwise(widths))
    inner = zip(layers(kernel.chain)[:-1], widths, strict=False)
    vectors = sum(vector_operands(steps) * n * 4 for steps, n in inner)
    return weights + round_up(round_up(vectors, BARRIER) + BARRIER, 1024)


def fixed_bytes(config: B2bConvSm90Config, problem: ConvProblem) -> int:
    """Bytes of shared memory besides the ring and the first weights: the other weights, vectors,
    staging of the output, barriers."""
    widths, size = config.widths, problem.dtype.bytes
    vectors = [
        vector_operands(steps) * n * 4
        for steps, n in zip(layers(problem.chain), widths, strict=True)
    ]
    weights = 0
    if not stages_behind(config, size):
        weights = sum(round_up(n * k * size, 1024) for k, n in itertools.pairwise(widths))
    blocks = config.group_rows // 64
    staging = staging_bytes(widths[-1], problem.out, loads_residual(problem), blocks)
    inner = round_up(sum(vectors[:-1]) + 8, 1024)
    return _FIXED_BYTES + weights + inner + config.consumers * (staging + vectors[-1])


def stages_behind(config: B2bConvSm90Config, size: int) -> int:
    """The stages of the ring that weights of further layers take after a tile's k-blocks; 0 if
    these weights stay in shared memory."""
    room, count = config.columns * config.k * size, 0
    for k, n in itertools.pairwise(config.widths):
        box = next(box for box in _BOXES if k % box == 0)
        if config.resident or n * box * size > room:
            return 0
        count += -(-(k // box) // (room // (n * box * size)))
    return count


def _across(pixel: int, copies: int, block: int) -> float:
    """The share of the rows that im2col copies which span two lines of memory; arguments in
    bytes."""
    row = block // copies
    rows = [
        (i * pixel + at, min(row, pixel - at)) for i in range(_LINE) for at in range(0, pixel, row)
    ]
    return sum(start % _LINE + size > _LINE for start, size in rows) / len(rows)


def _behind_us(problem: ConvProblem, config: B2bConvSm90Config) -> float:
    """Microseconds of a tile's inner epilogues and further products."""
    rows, widths = config.rows, config.widths
    flops = sum(2 * rows * n * k / _RATE for k, n in itertools.pairwise(widths))
    products = flops / sm90.CLOCKS_PER_US
    inner = sum(
        rows * n * epilogue_cost((step,))
        for n, steps in zip(widths, layers(problem.chain)[:-1], strict=False)
        for step in steps
    )
    return products + inner / sm90.LANES / sm90.CLOCKS_PER_US + _LATENCY_US * (len(widths) - 1)
