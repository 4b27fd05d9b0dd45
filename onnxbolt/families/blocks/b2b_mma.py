"""Back-to-back products with mma.sync; intermediate results stay in registers or in shared memory
(Bolt, section 3.1.1): the first product and the last epilogue are CUTLASS 2.x's.

custom_ops/mma/b2b/shape.h has the same formulas.

Threadblock residence: a block computes all columns of every layer, and the weights of all layers
but the first stay in shared memory. If a warp computes all columns, a layer's result stays in its
registers.

Times: a block's products one after the other, activations between them. The constants were fitted
to 43 measurements of 6 sequences of GEMMs on one H200, which ran kernels for sm_80 (root mean
square of the logarithm of the error 7%).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from onnxbolt.archs import Arch, Capability
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import layers, tensor_operands
from onnxbolt.families.base import Typed, access, positive, stage_count
from onnxbolt.families.blocks import b2b
from onnxbolt.families.blocks.access import alignment
from onnxbolt.families.blocks.b2b import LayersConfig, padded
from onnxbolt.families.blocks.memory import epilogue_cost, vector_operands
from onnxbolt.families.blocks.mma_sync import MAX_PREDICATES, needs_two_stages
from onnxbolt.families.blocks.tiled import FP32_LANES
from onnxbolt.families.row import at
from onnxbolt.integers import ceil_divide
from onnxbolt.kernel_time import SHARED_BYTES_PER_CLOCK, US, overlapped
from onnxbolt.problems import GemmProblem

COLUMNS = (16, 32, 64, 128, 256)  # columns of one product; CUTLASS's epilogue has powers of two
_BASE_REGISTERS = 40  # registers besides accumulators and operands
_BLOCK = 16  # columns, and values along k, of one step of a product
_ROW_GAP = 8  # elements between rows in shared memory, so that ldmatrix reads from all banks
# rows of a warp that the epilogue stages at a time; padding behind them in bytes
_STAGED_ROWS, _UNUSED = 8, 16

_TENSOR_EFFICIENCY = 0.59  # part of the rate of mma.sync, in main loops as short as these
_L2 = 0.79  # part of arch.l2_bandwidth
_BLOCK_US = 2.1  # a block's first loads and last stores, which other blocks of its SM can hide
_LOSS = 0.26  # part of the shorter of (compute, memory) that is not hidden behind the longer


@dataclass(frozen=True, kw_only=True)
class B2bMmaConfig(LayersConfig):
    """Beside a `LayersConfig`, whose depth here is that of a k-block: the columns of later
    layers, zero where there is none; a warp's rows and columns of the first layer."""

    later: tuple[int, ...] = at("warp_m", "warp_n", "warp_k")  # type: ignore[misc]
    warp: tuple[int, int] = at("instruction_m", "instruction_n", sound=positive)
    stages: int = at("stages", sound=stage_count)
    access_k: int = at("align_a", "align_b", repeated=True, sound=access)
    access_n: int = at("align_c", sound=access)

    @property
    def across(self) -> int:
        """The number of warps that share the columns; 1: results stay in registers."""
        return self.columns // self.warp[1]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.rows // self.warp[0] * self.across


M = TypeVar("M", bound=B2bMmaConfig)
FIXED_SLOTS = {"instruction_k": 0}


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
_TILES = tuple(_Tile(*tile, k) for tile in _IN_REGISTERS + _IN_SHARED_MEMORY for k in (32, 64))
# the most elements along k in a ring: more do not hide more latency
_RING = 128


def candidates(kind: type[M], problem: GemmProblem, arch: Arch, **fields: Any) -> tuple[M, ...]:
    """Every feasible configuration; none on architectures where wgmma has faster kernels."""
    if arch.has(Capability.WGMMA) or not arch.supports(problem.dtype):
        return ()
    if not b2b.serves(problem.dtype, problem.widths, problem.chain):
        return ()
    found = (
        next(
            (
                c
                for c in _configs(kind, tile, problem, arch, fields)
                if is_feasible(c, problem, arch)
            ),
            None,
        )
        for tile in _TILES
    )
    return tuple(config for config in found if config is not None)


def shortage(kind: type[M], problem: GemmProblem, arch: Arch, **fields: Any) -> str | None:
    """The reason, for a report, why threadblock residence is impossible for these layers; None if
    there are candidates, or if there are none for layers of any width."""
    if arch.has(Capability.WGMMA) or not arch.supports(problem.dtype) or problem.dtype.bytes != 2:
        return None
    if max(problem.widths) > COLUMNS[-1]:
        return f"a block has {COLUMNS[-1]} columns at most"
    configs = [c for tile in _TILES for c in _configs(kind, tile, problem, arch, fields)]
    if any(is_feasible(config, problem, arch) for config in configs):
        return None
    needed = min(shared_memory(config, problem) for config in configs)
    if needed > arch.shared_memory_per_block:
        kilobytes = f"{-(-needed // 1024)} KB of shared memory"
        has = arch.shared_memory_per_block // 1024
        return f"a block needs {kilobytes}, of which {arch.name} has {has}"
    return "its accumulators exceed the registers of a thread"


def _configs(
    kind: type[M], tile: _Tile, problem: GemmProblem, arch: Arch, fields: dict[str, Any]
) -> Iterator[M]:
    """The configurations of a tile, the deepest ring first."""
    first, *others = (_padded(width, _BLOCK * tile.across) for width in problem.widths)
    access_k = alignment(problem.k, problem.dtype)
    two_stages = not arch.has(Capability.CP_ASYNC) or needs_two_stages(access_k, problem.dtype)
    for stages in range(2 if two_stages else max(_RING // tile.k, 3), 1, -1):
        yield kind(
            arch=arch.number,
            rows=tile.rows,
            columns=first,
            depth=tile.k,
            later=padded(others),
            warp=(tile.warp_rows, first // tile.across),
            stages=stages,
            # CUTLASS begins with the part of k that fills no whole tile, so both decide the
            # alignment
            access_k=access_k,
            access_n=alignment(problem.n, problem.dtype),
            **fields,
        )


def _padded(width: int, multiple: int) -> int:
    return next(n for n in COLUMNS if n >= max(width, multiple))


def is_feasible(config: B2bMmaConfig, problem: GemmProblem, arch: Arch) -> bool:
    """True if the block's threads copy whole tiles, a block fits an SM, and no accumulator is
    spilled."""
    rows, first, k, threads = config.rows, config.columns, config.depth, config.threads
    copied = threads * problem.dtype.alignment
    most = min(arch.registers_per_thread, arch.registers_per_sm // threads)
    return (
        rows * k % copied == 0
        and first * k % copied == 0
        and max(rows, first) * k // config.access_k // threads <= MAX_PREDICATES
        and shared_memory(config, problem) <= arch.shared_memory_per_block
        and registers(config, problem) <= most
    )


def registers(config: B2bMmaConfig, problem: GemmProblem) -> int:
    """Registers of a thread, the most of three phases. First product: accumulators, two buffers of
    operands, pointers along k and, with two stages, the values copied for the next tile. Between
    layers: the result that becomes the next operand, if it is in registers, and the next
    accumulators. Last epilogue: the accumulators and 8 rows of values, residuals both as loaded and
    converted."""
    (rows, first), warps, widths = config.warp, config.across, config.widths
    copied = 0
    if config.stages == 2:
        copied = (config.rows + config.columns) * config.depth // config.threads // 2
    begin = rows * first // 32 + (rows + first) // 2 + config.depth // 8 + copied
    behind = (
        rows * after // warps // 32 + (rows * before // 64 if warps == 1 else rows // 4)
        for before, after in itertools.pairwise(widths)
    )
    end = widths[-1] // warps * (rows + 8 * (1 + 2 * tensor_operands(problem.chain))) // 32
    return _BASE_REGISTERS + max(begin, *behind, end)


def shared_memory(config: B2bMmaConfig, problem: Typed) -> int:
    """Bytes of a block: one space that the first product's ring, the results between layers and the
    last epilogue's staging use in turn; resident weights; and inner layers' vectors."""
    rows, widths, size = config.rows, config.widths, problem.dtype.bytes
    ring = config.stages * (rows + config.columns) * config.depth * size
    results = 0 if config.across == 1 else rows * (max(widths[:-1]) + _ROW_GAP) * size
    staged_rows = rows // config.warp[0] * _staged_rows(config, problem.dtype)
    staging = staged_rows * (widths[-1] + _ROW_GAP) * 4 + _UNUSED
    weights = sum(n * (depth + _ROW_GAP) * size for depth, n in itertools.pairwise(widths))
    inner = zip(layers(problem.chain)[:-1], widths[:-1], strict=True)
    vectors = sum(vector_operands(layer) * n * 4 for layer, n in inner)
    return max(ring, results, staging) + weights + vectors


def _staged_rows(config: B2bMmaConfig, dtype: DType) -> int:
    """Rows that a warp's epilogue stages; CUTLASS reserves twice as many where it stages half_t
    without bank conflicts."""
    columns = config.widths[-1] // config.across
    wide = min(config.access_n, columns // 4) == 8
    return _STAGED_ROWS * (2 if dtype is DType.F16 and columns <= 64 and wide else 1)


def predicted_us(problem: GemmProblem, config: B2bMmaConfig, arch: Arch, memory_us: float) -> float:
    """Microseconds of one launch; `memory_us` is the time of a copy of x, the weights and y."""
    # blocks that one SM runs one after another
    turns = ceil_divide(ceil_divide(problem.m, config.rows), arch.sm_count)
    resident = min(blocks_per_sm(problem, config, arch), turns)
    compute = turns * _busy_us(problem, config, arch) + ceil_divide(turns, resident) * _BLOCK_US
    return arch.launch_us + overlapped(compute, memory_us, _LOSS)


def blocks_per_sm(problem: GemmProblem, config: B2bMmaConfig, arch: Arch) -> int:
    """Blocks that one SM holds at a time."""
    reserved = (
        arch.shared_memory_per_sm - arch.shared_memory_per_block
    )  # shared memory that the CUDA runtime takes from each block
    by_memory = arch.shared_memory_per_sm // (shared_memory(config, problem) + reserved)
    by_registers = arch.registers_per_sm // (registers(config, problem) * config.threads)
    return min(by_memory, by_registers, arch.threads_per_sm // config.threads)


def _busy_us(problem: GemmProblem, config: B2bMmaConfig, arch: Arch) -> float:
    """Microseconds of a block that has its SM to itself: the slowest of products, reads of shared
    memory and loads from L2, plus activations."""
    rows, size, widths = config.rows, problem.dtype.bytes, config.widths
    depth = ceil_divide(problem.k, config.depth) * config.depth
    weights = sum(n * k for k, n in itertools.pairwise((depth, *widths)))
    rate = arch.flops[problem.dtype] / arch.sm_count * _TENSOR_EFFICIENCY * arch.mma_sync_share
    products = 2 * rows * weights / rate
    across = config.across
    # each of these warps reads all weights; the warps across the columns each read all rows
    along = rows // config.warp[0]
    between = 0 if across == 1 else sum(widths[:-1])
    read = (along * weights + across * rows * (depth + between)) * size
    shared = read / (SHARED_BYTES_PER_CLOCK * arch.clock)
    from_l2 = _L2 * arch.l2_bandwidth / arch.sm_count
    loads = (rows + widths[0]) * depth * size / from_l2
    # weights that later products wait for
    staying = sum(n * k for k, n in itertools.pairwise(widths)) * size / from_l2
    steps = sum(
        n * (1 + epilogue_cost(layer))
        for n, layer in zip(widths, layers(problem.chain), strict=True)
    )
    activations = rows * steps / (FP32_LANES * arch.clock)
    return (max(products, shared, loads) + staying + activations) * US
