"""Two GEMMs, or two 1x1 convolutions, in one kernel on sm_90a. The first one's result is stored as
well, since other nodes read it, or its epilogue adds residuals, or both.

custom_ops/families/b2b_stored_sm90/shape.h has the same formulas.

The first result is finished 64 columns at a time, so that its layer may be wide; the second result
has all columns in registers. A block of weights belongs to 64 columns of the first layer; all
blocks stay in shared memory (`resident`) or pass through a ring.

Times: the constants were fitted to 17 measurements of five problems on one H200 (root mean square
of the logarithm of the error 5%).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from onnxbolt.archs import Arch, Capability, get
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import (
    EPILOGUES,
    MAX_PARAMS,
    MAX_TENSORS,
    STORE,
    has_inner_residual,
    layers,
    tensor_operands,
)
from onnxbolt.families.base import (
    FLAG,
    Compiled,
    Family,
    KernelConfig,
    Layers,
    Typed,
    positive,
    stage_count,
    tile_size,
    warpgroups,
)
from onnxbolt.families.blocks.b2b import COLUMNS
from onnxbolt.families.blocks.memory import memory_us, vector_operands
from onnxbolt.families.blocks.staging import BARRIER, MOST_BUFFERS, stored_columns
from onnxbolt.families.row import at
from onnxbolt.integers import round_up
from onnxbolt.kernel_time import US, overlapped
from onnxbolt.problems import ConvProblem, GemmProblem, Product

# columns of the first layer that are computed at a time; the second layer sums as many values along
# k
BLOCK = 64
ROWS = 64  # rows of a warpgroup's tile
_GROUPS = (3, 2, 1)  # consumer warpgroups
_STAGES = (3, 2)  # stages of the ring of weights, if not all weights fit
# tiles of the first result in shared memory: one is stored, or its residual loaded, while the next
# is computed
_LEAST_UNITS = 2
# registers of a consumer's thread, by the number of consumer warpgroups
_REGISTERS = {1: 255, 2: 224, 3: 152}
_BASE_REGISTERS = 40  # registers besides accumulators and operand
_BARRIERS = 1024  # bytes, with the padding for alignment

_LAUNCH_US = 2.5  # the first loads and the last stores included
_MEMORY = 1.10  # relative to a plain copy of the same bytes
_LOSS = 0.41  # part of the shorter of (blocks, memory) that is not hidden behind the longer
# for 64 rows of a block: each value along k of the first product, or each column of the second
_VALUE_US = 0.00106
_L2 = 1.9  # factor of arch.l2_bandwidth: thread blocks read the same weights


@dataclass(frozen=True, kw_only=True)
class B2bStoredSm90Config(KernelConfig):
    """A block's rows, the columns of both layers, and the first one's depth, zeros included;
    stages are blocks of weights."""

    rows: int = at("tile_m", sound=tile_size)
    columns: int = at("tile_n", sound=tile_size)
    depth: int = at("tile_k", sound=positive)
    last_columns: int = at("warp_m", sound=tile_size)
    stages: int = at("stages", sound=stage_count)
    consumers: int = at("consumers", sound=warpgroups)  # consumer warpgroups
    resident: bool = at("resident", numbers=FLAG)

    @property
    def widths(self) -> tuple[int, int]:
        """Columns of both layers, zeros included."""
        return self.columns, self.last_columns


class B2bStoredSm90(Family[B2bStoredSm90Config]):
    """Serves two GEMMs, or two 1x1 convolutions that read pixels as GEMM reads rows."""

    number, name, config = 21, "b2b_stored_sm90", B2bStoredSm90Config
    takes = ("element", "output", "stores", "layers")
    problems = (GemmProblem, ConvProblem)
    kinds = frozenset({"gemm", "gemm_chain", "conv", "conv1d", "conv_chain"})
    needs = frozenset({Capability.TMA, Capability.WGMMA})

    def candidates(self, problem: Product, arch: Arch) -> tuple[B2bStoredSm90Config, ...]:
        if not problem.inner or not arch.supports(problem.dtype):
            return ()
        if not problem.writes_rows or not serves(problem.dtype, problem.widths, problem.chain):
            return ()
        first, wide = problem.layers[0], problem.dtype.alignment
        if not first.is_matrix or first.groups > 1 or first.nchw:
            return ()
        k = first.depth
        if k % wide or problem.columns * problem.out.bytes % 16:
            return ()
        inner = round_up(problem.inner[0], BLOCK)
        columns = next(n for n in COLUMNS if n >= problem.columns)
        all_blocks = inner // BLOCK
        configs = (
            B2bStoredSm90Config(
                arch=arch.number,
                rows=ROWS * groups,
                columns=inner,
                depth=round_up(k, _box(k)),
                last_columns=columns,
                stages=stages,
                consumers=groups,
                resident=stages == all_blocks,
            )
            for groups, stages in itertools.product(_GROUPS, dict.fromkeys((all_blocks, *_STAGES)))
        )
        feasible = [config for config in configs if is_feasible(config, problem, arch)]
        resident = {config.consumers for config in feasible if config.resident}
        return tuple(
            config for config in feasible if config.resident or config.consumers not in resident
        )

    def shared_memory(self, kernel: Compiled) -> int:
        return compiled_bytes(kernel.config, kernel)

    def predicted_us(self, problem: Product, config: B2bStoredSm90Config, arch: Arch) -> float:
        """A warpgroup computes the blocks of the stored result one after another."""
        tiles = -(-problem.rows // ROWS)
        thread_blocks = min(tiles, arch.sm_count)
        rounds = -(-tiles // (thread_blocks * config.rows // ROWS))
        values = config.depth + config.last_columns
        from_l2 = _L2 * arch.l2_bandwidth / thread_blocks
        weights = BLOCK * values * problem.dtype.bytes / from_l2 * US
        block = _VALUE_US * values + (0.0 if config.resident else weights)
        busy = rounds * (config.columns // BLOCK) * block
        return _LAUNCH_US + overlapped(busy, memory_us(problem, arch) * _MEMORY, _LOSS)

    def joins(self, layers: Layers) -> bool:
        return layers.pointwise and serves(layers.dtype, layers.widths, layers.steps)


def serves(dtype: DType, widths: tuple[int, ...], steps: tuple[str, ...]) -> bool:
    """True if there may be a kernel for layers with these columns and this epilogue, the first of
    which is stored or has residuals: other families serve other epilogues."""
    if dtype.bytes != 2 or len(widths) != 2 or not (STORE in steps or has_inner_residual(steps)):
        return False
    first, last = ([EPILOGUES[step] for step in layer] for layer in layers(steps))
    params = sum(len(row.params) for row in (*first, *last))
    tensors = [row.operand for row in first].count("tensor")
    few = params <= MAX_PARAMS and tensors <= MAX_TENSORS
    plain = not any(row.operand == "tensor" for row in last)
    return few and plain and widths[0] % dtype.alignment == 0 and widths[1] <= COLUMNS[-1]


def is_feasible(config: B2bStoredSm90Config, problem: Product, arch: Arch) -> bool:
    """True if a block fits an SM, and no accumulator is spilled."""
    registers = _BASE_REGISTERS + config.last_columns // 2 + BLOCK // 2 + BLOCK // 4
    most = min(_REGISTERS[config.consumers], arch.registers_per_thread)
    return registers <= most and shared_memory(config, problem) <= arch.shared_memory_per_block


def shared_memory(config: B2bStoredSm90Config, problem: Product) -> int:
    """The least bytes of a block. The kernel uses the remaining bytes for a second tile of rows and
    for more units of the first result."""
    size, depth, (inner, columns) = problem.dtype.bytes, config.depth, config.widths
    blocks = inner // BLOCK if config.resident else config.stages
    weights = blocks * BLOCK * (depth + columns) * size
    unit = stored_columns(columns, problem.out, residual=False) * problem.out.bytes
    first, last = (vector_operands(layer) for layer in layers(problem.chain))
    rows = ROWS * (depth * size + _LEAST_UNITS * BLOCK * size + unit)
    group = rows + 4 * (first * inner + last * columns)
    return weights + config.rows // ROWS * group + _BARRIERS


def compiled_bytes(config: B2bStoredSm90Config, kernel: Typed) -> int:
    """Bytes of a block of the compiled kernel: beside the weights, each warpgroup has one or two
    tiles of rows, and as many units of the first result as it can use."""
    size, groups, (inner, columns) = kernel.dtype.bytes, config.consumers, config.widths
    first, last = layers(kernel.chain)
    stages = inner // BLOCK if config.resident else config.stages
    rows, unit = ROWS * config.depth * size, ROWS * BLOCK * size
    weights = stages * (rows + columns * BLOCK * size)
    staging = ROWS * stored_columns(columns, kernel.out, residual=False) * kernel.out.bytes
    vectors = 4 * (vector_operands(first) * inner + vector_operands(last) * columns)
    free = get(config.arch).shared_memory_per_block - _BARRIERS - weights
    group = free // groups - vectors - staging
    tiles = 2 if group >= 2 * rows + _LEAST_UNITS * unit else 1
    most = MOST_BUFFERS if tensor_operands(first) else _LEAST_UNITS
    units = min((group - tiles * rows) // unit, most)
    barriers = 2 * stages + 2 * groups * (tiles + units)
    return weights + groups * (tiles * rows + units * unit + staging + vectors) + barriers * BARRIER


def _box(k: int) -> int:
    """Values along k in one copy by TMA."""
    return next((box for box in (16, 32) if k <= box), BLOCK)
