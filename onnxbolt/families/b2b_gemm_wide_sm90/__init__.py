"""Back-to-back GEMMs of up to 512 columns in one kernel on sm_90a; intermediate results stay in
shared memory (Bolt, section 3.1.1; custom_ops/families/b2b_gemm_wide_sm90/shape.h has the same
formulas).

Two consumer warpgroups share the columns of 64 rows, or compute 64 rows each. All weights pass
through a ring.

Times: the layers of a tile run one after another; each stage is bound by tensor cores, shared
memory or TMA. The constants were fitted to 36 measurements on one H200: two to four layers of 512,
256 and fewer columns, 1,024 to 65,536 rows of 13 to 512 values, tiles of 64 and of 128 rows (root
mean square of the logarithm of the error 5.5%).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from onnxbolt.archs import Arch, Capability, get
from onnxbolt.epilogues import MAX_LAYERS, layers, tensor_operands
from onnxbolt.families.base import Compiled, Family, Layers, Typed, stage_count, warpgroups
from onnxbolt.families.blocks import b2b
from onnxbolt.families.blocks.b2b import TMA_ROWS, LayersConfig, first_depth, padded
from onnxbolt.families.blocks.memory import memory_us, vector_operands
from onnxbolt.families.blocks.sm90 import CLOCKS_PER_US
from onnxbolt.families.blocks.staging import BARRIER, staging_bytes
from onnxbolt.families.row import at
from onnxbolt.integers import ceil_divide, round_up
from onnxbolt.kernel_time import overlapped
from onnxbolt.problems import GemmProblem

COLUMNS = (32, 64, 96, 128, 192, 256, 384, 512)  # columns of a layer, zeros included
# the most columns for which kernels that keep intermediate results in registers are faster
_NARROW = 192
_ROWS = (64, 128)  # rows of a tile
_STAGES = (8, 7, 6, 5, 4, 3)  # the deepest ring that fits is chosen
# stages of the ring of rows, which gets the remaining memory: the least and the most
_ROW_STAGES, _MOST_ROW_STAGES = 2, 8
_GROUPS = 2  # consumer warpgroups
_MAX_BLOCK = 256  # columns of one product
# bytes of a stage of weights for tiles of 64 rows; half for 128, whose activations leave less room
_STAGE_BYTES = 32768
_BOX_BYTES = 64 * 128  # 64 rows of 64 activations
# registers of a consumer's thread: the most, and those besides accumulators and operands
_REGISTERS, _BASE_REGISTERS = 224, 72
_FINISHED = 64  # columns that an epilogue processes at a time: half a value per thread each
_BARRIERS = 256  # bytes, with the padding for alignment

_LAUNCH_US = 1.76  # the first loads and the last stores included
_PRODUCTS = 3230.0  # FLOP a clock of one SM's tensor cores
_SHARED = 128.0  # bytes a clock of shared memory, reads and writes
_ROW = 0.54  # the least clocks of each row that TMA copies
# clocks of a value's epilogue and its store to shared memory, during which nothing is multiplied
_ACTIVATION = 0.0138
# the least clocks between a layer's last product and the next layer's first
_BETWEEN = 430.0
_GATHERED = 17.2  # bytes a clock of rows that TMA cannot read
# additional clocks per byte of weights when all SMs load at the same time
_CROWDED = 0.0066
_MEMORY = 1.15  # relative to a plain copy of the same bytes
_LOSS = 0.24  # part of the shorter of (compute, memory) that is not hidden behind the longer


@dataclass(frozen=True, kw_only=True)
class B2bGemmWideSm90Config(LayersConfig):
    """Beside a `LayersConfig`: the columns of the layers behind the first, zero where there is
    none; stages of the ring of weights; `tma_rows`: TMA reads the rows of A."""

    later: tuple[int, ...] = at("warp_m", "warp_n", "warp_k")  # type: ignore[misc]
    stages: int = at("stages", sound=stage_count)
    tma_rows: bool = at("align_a", numbers=TMA_ROWS)
    consumers: int = at("consumers", default=_GROUPS, sound=warpgroups)  # consumer warpgroups

    @property
    def sharing(self) -> int:
        """Warpgroups that have the same rows."""
        return self.consumers * 64 // self.rows

    def passes(self, layer: int) -> int:
        """The number of parts in which a warpgroup computes its columns of a layer."""
        return 1 if self.widths[layer] <= self.sharing * _MAX_BLOCK else 2


class B2bGemmWideSm90(Family[B2bGemmWideSm90Config]):
    """Serves layers of which one has more than 192 columns."""

    number, name, config = 20, "b2b_gemm_wide_sm90", B2bGemmWideSm90Config
    takes = ("element", "output", "layers")
    problems, kinds = (GemmProblem,), frozenset({"gemm", "gemm_chain"})
    needs = frozenset({Capability.TMA, Capability.WGMMA})

    def candidates(self, problem: GemmProblem, arch: Arch) -> tuple[B2bGemmWideSm90Config, ...]:
        dtype, widths = problem.dtype, problem.widths
        if not problem.inner or not arch.supports(dtype):
            return ()
        if max(widths) <= _NARROW or not b2b.serves(dtype, widths, problem.chain, COLUMNS[-1]):
            return ()
        first, *others = (next(n for n in COLUMNS if n >= width) for width in widths)
        found: list[B2bGemmWideSm90Config] = []
        for rows in _ROWS:
            configs = (
                B2bGemmWideSm90Config(
                    arch=arch.number,
                    rows=rows,
                    columns=first,
                    depth=first_depth(problem.k),
                    later=padded(others, MAX_LAYERS - 1),
                    stages=stages,
                    tma_rows=problem.k % dtype.alignment == 0,
                )
                for stages in _STAGES
            )
            feasible = (config for config in configs if is_feasible(config, problem, arch))
            found += itertools.islice(feasible, 1)
        return tuple(found)

    def shared_memory(self, kernel: Compiled) -> int:
        return compiled_bytes(kernel.config, kernel)

    def predicted_us(
        self, problem: GemmProblem, config: B2bGemmWideSm90Config, arch: Arch
    ) -> float:
        tiles = ceil_divide(problem.m, config.rows)
        crowd = min(tiles / arch.sm_count, 1.0) * _CROWDED * _weight_bytes(problem, config)
        clocks = _tile_clocks(problem, config) + crowd
        compute = ceil_divide(tiles, arch.sm_count) * clocks / CLOCKS_PER_US
        return _LAUNCH_US + overlapped(compute, memory_us(problem, arch) * _MEMORY, _LOSS)

    def joins(self, layers: Layers) -> bool:
        return b2b.serves(layers.dtype, layers.widths, layers.steps, COLUMNS[-1])


def is_feasible(config: B2bGemmWideSm90Config, problem: GemmProblem, arch: Arch) -> bool:
    """True if a block fits an SM, no accumulator is spilled, and every layer after the first takes
    one pass."""
    one_pass = all(n <= config.sharing * _MAX_BLOCK for n in config.widths[1:])
    fits = one_pass and shared_memory(config, problem) <= arch.shared_memory_per_block
    return fits and registers(config, problem) <= _REGISTERS


def boxes(config: B2bGemmWideSm90Config, problem: Typed) -> tuple[int, ...]:
    """For each layer, the elements along k of a stage."""
    widths, limit = config.widths, _STAGE_BYTES // (config.rows // 64)
    depths = (config.depth, *widths)
    of_pass = [n // config.passes(layer) * problem.dtype.bytes for layer, n in enumerate(widths)]
    return tuple(
        next((box for box in (64, 32) if k % box == 0 and n * box <= limit), 16)
        for n, k in zip(of_pass, depths, strict=False)
    )


def registers(config: B2bGemmWideSm90Config, problem: GemmProblem) -> int:
    """Registers of a consumer's thread: accumulators and, whichever is more, two boxes of rows that
    TMA does not read or the values of the last epilogue (residuals, and results of 4 bytes, which
    cannot reuse their accumulators' registers)."""
    accumulators = [
        n // config.passes(layer) // config.sharing // 2 for layer, n in enumerate(config.widths)
    ]
    rows = 0 if config.tma_rows else 2 * boxes(config, problem)[0] // 4
    beside = tensor_operands(problem.chain) + (problem.out.bytes == 4)
    finishing = accumulators[-1] + _FINISHED // 2 * beside
    return _BASE_REGISTERS + max(accumulators[0] + rows, *accumulators, finishing)


def shared_memory(config: B2bGemmWideSm90Config, problem: Typed) -> int:
    """Bytes of a block, at least: both rings, activations (or the staged output in their place),
    vectors, barriers."""
    fixed, row_stage, vectors = _parts(config, problem)
    return fixed + _ROW_STAGES * row_stage + vectors + _BARRIERS


def compiled_bytes(config: B2bGemmWideSm90Config, kernel: Typed) -> int:
    """Bytes of a block of the compiled kernel: the ring of rows gets the remaining memory."""
    fixed, row_stage, vectors = _parts(config, kernel)
    vectors = round_up(vectors, 16)
    free = get(config.arch).shared_memory_per_block - fixed - vectors
    free -= 2 * (config.stages + _MOST_ROW_STAGES) * BARRIER
    stages = min(free // row_stage, _MOST_ROW_STAGES)
    return fixed + stages * row_stage + vectors + 2 * (config.stages + stages) * BARRIER


def _parts(config: B2bGemmWideSm90Config, problem: Typed) -> tuple[int, int, int]:
    """Bytes of the weights' ring with the activations, of a stage of the rows' ring, and of all
    vectors."""
    size, widths, along = problem.dtype.bytes, config.widths, boxes(config, problem)
    stage = max(
        n // config.passes(layer) * box * size
        for layer, (n, box) in enumerate(zip(widths, along, strict=True))
    )
    row = along[0] * size + (0 if config.tma_rows else 16)
    staging = staging_bytes(widths[-1] // config.sharing, problem.out, residual=False)
    activations = max(
        round_up(max(widths[:-1]), 64) // 64 * _BOX_BYTES,
        config.sharing * round_up(staging, 1024),
    )
    vectors = sum(
        vector_operands(layer) * n for layer, n in zip(layers(problem.chain), widths, strict=True)
    )
    fixed = config.stages * round_up(stage, 1024) + config.rows // 64 * activations
    return fixed, round_up(config.rows * row, 1024), vectors * 4


def _tile_clocks(problem: GemmProblem, config: B2bGemmWideSm90Config) -> float:
    rows, widths, size = config.rows, config.widths, problem.dtype.bytes
    depths = (config.depth, *widths)
    clocks = rows * sum(widths) * _ACTIVATION + (len(widths) - 1) * _BETWEEN
    shapes = zip(widths, depths, boxes(config, problem), strict=False)
    for layer, (n, k, box) in enumerate(shapes):
        passes = config.passes(layer)
        clocks += passes * k // box * _stage_clocks(config, layer, n // passes, box * size)
    if not config.tma_rows:
        clocks += config.passes(0) * rows * depths[0] * size / _GATHERED
    return clocks


def _weight_bytes(problem: GemmProblem, config: B2bGemmWideSm90Config) -> int:
    """Bytes of the weights of all layers, zeros included."""
    widths = config.widths
    values = sum(n * k for n, k in zip(widths, (config.depth, *widths), strict=False))
    return values * problem.dtype.bytes


def _stage_clocks(config: B2bGemmWideSm90Config, layer: int, width: int, depth: int) -> float:
    """Clocks of one stage in a pass of `width` columns; `depth` is in bytes along k."""
    rows = config.rows
    loaded = width + (rows if layer == 0 else 0)  # rows of the weights, and of A
    read = config.consumers * (64 + width // config.sharing)
    return max(rows * width * depth / _PRODUCTS, (read + loaded) * depth / _SHARED, loaded * _ROW)
