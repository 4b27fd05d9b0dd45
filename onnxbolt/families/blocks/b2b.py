"""Back-to-back products on sm_90a; intermediate results stay in registers (Bolt, section 3.1.1;
custom_ops/sm90/b2b/shape.h has the same formulas).

Threadblock residence here: a block computes all columns of every layer, hence at most 256. Shared
memory holds the weights of all layers (`resident`), or of all but the first, whose weights then
pass through the ring with the rows.

Times: weights and rows come through L2, and layers run one after another. The constants were fitted
to 219 measurements of 56 sequences of GEMMs on one H200: layers of 16 to 256 columns, two to four
of them together, 1,024 to 128,320 rows (root mean square of the logarithm of the error 12%); those
of device memory were fitted again to 38 later ones (6%).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import MAX_LAYERS, fits_several, layers
from onnxbolt.families.base import (
    FLAG,
    KernelConfig,
    Layers,
    Typed,
    positive,
    stage_count,
    tile_size,
    warpgroups,
)
from onnxbolt.families.blocks.memory import vector_operands
from onnxbolt.families.blocks.staging import BARRIER, buffers, loads_residual, staging_bytes
from onnxbolt.families.row import at
from onnxbolt.integers import ceil_divide, round_up
from onnxbolt.kernel_time import US, overlapped
from onnxbolt.problems import GemmProblem

COLUMNS = (16, 32, 48, 64, 96, 128, 192, 256)  # columns of one product
# channels of inner layers and of the last one, behind a convolution
_MOST_INNER, _MOST_LAST = 256, 512
_GROUPS = (4, 3, 2, 1)  # consumer warpgroups
_STAGES = (8, 6, 5, 4, 3, 2)  # the deepest ring that fits is chosen
_DEEPER = 10  # stages of a second candidate where three or four rings are read at once
_BOX = 64  # elements along k of one copy
# Registers of a consumer's thread, as `registers` counts them, that compile without spills, by the
# number of consumer warpgroups (threads have 255, 224, 152 and 112).
_REGISTERS = {1: 255, 2: 232, 3: 160, 4: 112}
_BASE_REGISTERS = 48  # registers besides accumulators and operands
_ROWS = 64  # rows of one product
_CHUNK = 16  # bytes: the alignment of rows that TMA needs, and a copy without TMA
_BARRIERS = 1024  # bytes, with the padding for alignment

_LAUNCH_US = 1.8  # the first loads and the last stores included
_PRODUCTS = 0.70  # part of the data sheet's rate, when all warpgroups of an SM multiply
# the epilogue of 64 rows of one column, during which their warpgroup multiplies nothing
_ACTIVATION_US = 0.0024
_L2 = 1.44  # factor of arch.l2_bandwidth: blocks read the same weights
_STAYING = 0.35  # part of the weights' arrival that products have to wait for
# bytes per microsecond of rows that TMA cannot read; this time adds to the rest of a tile
_GATHERED = 4.5e4
_MEMORY = 1.04  # relative to a plain copy of the same bytes
_LOSS = 0.15  # part of the shorter of (compute, memory) that is not hidden behind the longer

TMA_ROWS = {True: 8, False: 1}  # `align_a` of rows that TMA reads, and of others


@dataclass(frozen=True, kw_only=True)
class LayersConfig(KernelConfig):
    """A block's rows, the columns of the first layer and its depth, zeros included."""

    later: ClassVar[tuple[int, ...]] = ()

    rows: int = at("tile_m", sound=tile_size)
    columns: int = at("tile_n", sound=tile_size)
    depth: int = at("tile_k", sound=positive)

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each layer, zeros included."""
        return (self.columns, *(n for n in self.later if n))


@dataclass(frozen=True, kw_only=True)
class B2bConfig(LayersConfig):
    """Beside a `LayersConfig`: the ring's stages; `tma_rows`: TMA reads the rows of A, whose
    pitch is a multiple of 16 bytes; `resident`: the first layer's weights stay in shared memory."""

    stages: int = at("stages", sound=stage_count)
    tma_rows: bool = at("align_a", numbers=TMA_ROWS)
    consumers: int = at("consumers", sound=warpgroups)  # consumer warpgroups
    resident: bool = at("resident", numbers=FLAG)


B = TypeVar("B", bound=B2bConfig)


def serves(
    dtype: DType, widths: tuple[int, ...], steps: tuple[str, ...], widest: int = COLUMNS[-1]
) -> bool:
    """True if there may be a kernel for layers with these columns, at most `widest`, and this
    epilogue: residuals may stand behind the last layer."""
    several = 2 <= len(widths) <= MAX_LAYERS and fits_several(steps)
    return dtype.bytes == 2 and several and max(widths) <= widest


def joins_convs(layers: Layers) -> bool:
    """True if there may be a kernel for a convolution and 1x1 convolutions behind it: residuals may
    stand behind the last one."""
    narrow = max(layers.widths[:-1], default=0) <= _MOST_INNER and layers.widths[-1] <= _MOST_LAST
    several = 2 <= len(layers.widths) <= MAX_LAYERS and fits_several(layers.steps)
    return layers.dtype.bytes == 2 and several and narrow


def configs(kind: type[B], problem: GemmProblem, arch: Arch) -> tuple[B, ...]:
    """Every feasible configuration for one or several layers that kernels exist for."""
    first, *others = (next(n for n in COLUMNS if n >= width) for width in problem.widths)
    later: dict[str, Any] = {"later": padded(others)} if others else {}
    found: list[B] = []
    for resident, groups in itertools.product((True, False), _GROUPS):
        deepest = (
            kind(
                arch=arch.number,
                rows=_ROWS if resident else _ROWS * groups,
                columns=first,
                depth=first_depth(problem.k),
                stages=stages,
                tma_rows=problem.k * problem.dtype.bytes % _CHUNK == 0,
                consumers=groups,
                resident=resident,
                **later,
            )
            for stages in ((_DEEPER, *_STAGES) if resident and groups > 2 else _STAGES)
        )
        fitting = [config for config in deepest if is_feasible(config, problem, arch)]
        found += fitting[:2] if fitting and fitting[0].stages == _DEEPER else fitting[:1]
    return tuple(found)


def padded(later: list[int], count: int = 3) -> tuple[int, ...]:
    """The columns of later layers, with a zero for each missing layer."""
    return (*later, *[0] * (count - len(later)))


def first_depth(k: int) -> int:
    """The first layer's depth, zeros included: padded to long copies where that costs little."""
    multiple = 16 if k < _BOX else 32 if k % 32 == 0 and k < 3 * _BOX else _BOX
    return -(-k // multiple) * multiple


def is_feasible(config: B2bConfig, problem: GemmProblem, arch: Arch) -> bool:
    """True if a block fits an SM and no accumulator is spilled."""
    most = min(_REGISTERS[config.consumers], arch.registers_per_thread)
    fits = shared_memory(config, problem) <= arch.shared_memory_per_block
    return fits and registers(config) <= most


def registers(config: B2bConfig) -> int:
    """Registers of a consumer's thread, the most at any time: accumulators and, in the first layer,
    two boxes of rows unless these stay in shared memory; in later layers, the operand that the
    previous layer left."""
    widths = config.widths
    first = widths[0] // 2 + (0 if config.tma_rows else 2 * _box(config) // 4)
    pairs = itertools.pairwise(widths)
    return _BASE_REGISTERS + max([first, *(before // 4 + after // 2 for before, after in pairs)])


def shared_memory(config: B2bConfig, problem: Typed) -> int:
    """Bytes of a block: resident weights, rings, staging of the output, vectors and barriers."""
    size, widths = problem.dtype.bytes, config.widths
    depths = (config.depth, *widths)
    weights = [round_up(n * k * size, 1024) for n, k in zip(widths, depths, strict=False)]
    box = _box(config)
    row = box * size + (0 if config.tma_rows else _CHUNK)
    stage = config.rows * row + (0 if config.resident else widths[0] * box * size)
    rings = config.consumers if config.resident else 1
    residual = config.tma_rows and loads_residual(problem)
    staging = staging_bytes(widths[-1], problem.out, residual=residual)
    vectors = sum(
        vector_operands(layer) * n for layer, n in zip(layers(problem.chain), widths, strict=True)
    )
    return (
        sum(weights[0 if config.resident else 1 :])
        + rings * config.stages * round_up(stage, 1024)
        + config.consumers * round_up(staging, 1024)
        + vectors * 4
        + _BARRIERS
    )


def compiled_bytes(config: B2bConfig, kernel: Typed) -> int:
    """Bytes of a block of the compiled kernel: as `shared_memory`, with the barriers that it
    has."""
    residual, rings = config.tma_rows and loads_residual(kernel), 1
    if config.resident:
        rings = config.consumers
    units = buffers(config.widths[-1], kernel.out, residual)
    barriers = len(config.widths) + 2 * rings * config.stages + 2 * config.consumers * units
    return round_up(shared_memory(config, kernel) - _BARRIERS, 16) + barriers * BARRIER


def _box(config: B2bConfig) -> int:
    """Elements along k of a stage."""
    return next(box for box in (_BOX, 32, 16) if config.depth % box == 0)


def layer_flops(config: LayersConfig) -> list[int]:
    """For each layer, the FLOP of a row, which equal the bytes of its weights; zeros included."""
    widths = config.widths
    return [2 * n * k for n, k in zip(widths, (config.depth, *widths), strict=False)]


def predicted_us(problem: GemmProblem, config: B2bConfig, arch: Arch, memory_us: float) -> float:
    """Microseconds of one launch; `memory_us` is the time of a copy of x, the weights and y."""
    return _LAUNCH_US + overlapped(_tiles_us(problem, config, arch), memory_us * _MEMORY, _LOSS)


def terms(problem: GemmProblem, config: B2bConfig, arch: Arch) -> dict[str, float]:
    """The terms of `predicted_us`, and what a block takes of an SM."""
    flops = layer_flops(config)
    return {
        "tiles us": _tiles_us(problem, config, arch),
        "products of a row": sum(flops),
        "products of the first layer": flops[0],
        "registers": registers(config),
        "shared memory": shared_memory(config, problem),
    }


def _tiles_us(problem: GemmProblem, config: B2bConfig, arch: Arch) -> float:
    """Microseconds of the tiles that follow one another on each ring: bound by the products of all
    warpgroups, by loads from L2 or by a single warpgroup."""
    rows, flops, size = config.rows, layer_flops(config), problem.dtype.bytes
    rings = config.consumers if config.resident else 1
    tiles = ceil_divide(problem.m, rows)
    blocks = min(tiles, arch.sm_count)
    from_l2 = _L2 * arch.l2_bandwidth / blocks / US  # bytes in a microsecond that one block gets
    passing = rows * config.depth * size * rings + (0 if config.resident else flops[0])
    rate = arch.flops[problem.dtype] / arch.sm_count / US
    group = 64 * sum(flops) / rate + _ACTIVATION_US * sum(config.widths)
    gathering = 0.0 if config.tma_rows else rows * config.depth * size / _GATHERED
    products = rows * sum(flops) * rings / (rate * _PRODUCTS)
    turn = max(products, passing / from_l2, group) + gathering
    staying = sum(flops if config.resident else flops[1:])
    return _STAYING * staying / from_l2 + ceil_divide(tiles, blocks * rings) * turn
