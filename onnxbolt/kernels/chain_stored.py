"""Two GEMMs, or two 1x1 convolutions, in one kernel on sm_90a, the first one's result stored as
well, since others read it, or with residuals, or both (custom_ops/chain/stored_shape.h has the same
formulas).

The first result is finished 64 columns at a time, so that its layer may be wide; the second one has
all columns in registers. Weights come in blocks of as many of the first layer's columns: all stay
in shared memory (`resident`), or pass through a ring.
"""

from __future__ import annotations

import itertools

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, MAX_PARAMS, MAX_TENSORS, STORE, has_inner_residual, layers
from onnxbolt.integers import round_up
from onnxbolt.kernels.chain import COLUMNS
from onnxbolt.kernels.config import UNBOUNDED, ConvProblem, Family, GemmProblem, KernelConfig
from onnxbolt.kernels.sm90 import is_matrix
from onnxbolt.kernels.staging import stored_columns

Problem = GemmProblem | ConvProblem

# columns of the first layer at a time, which are as many values along the second layer's k
BLOCK = 64
ROWS = 64  # of a warpgroup's tile
_GROUPS = (3, 2, 1)  # consumer warpgroups
_STAGES = (3, 2)  # of a ring of weights, where not all fit
# units of the first result: one is written, or its residual loaded, while the next is computed
_LEAST_UNITS = 2
# registers of a consumer's thread, by the number of consumer warpgroups
_REGISTERS = {1: 255, 2: 224, 3: 152}
_BASE_REGISTERS = 40  # beside accumulators and operand
_BARRIERS = 1024  # bytes, and what aligns them


def serves(dtype: DType, widths: tuple[int, ...], chain: tuple[str, ...]) -> bool:
    """Whether there may be a kernel for layers with these columns and this chain of steps, the
    first of which is stored or has residuals: for other chains other families are."""
    if dtype.bytes != 2 or len(widths) != 2 or not (STORE in chain or has_inner_residual(chain)):
        return False
    first, last = ([EPILOGUES[step] for step in layer] for layer in layers(chain))
    few = (
        sum(len(row.params) for row in (*first, *last)) <= MAX_PARAMS
        and [row.operand for row in first].count("tensor") <= MAX_TENSORS
    )
    plain = not any(row.operand == "tensor" for row in last)
    return few and plain and widths[0] % dtype.alignment == 0 and widths[1] <= COLUMNS[-1]


def candidates(problem: Problem, arch: Arch) -> tuple[KernelConfig, ...]:
    """Every feasible configuration: `threadblock` is (rows, columns of the first layer, k),
    `warp[0]` the second layer's columns."""
    if not arch.wgmma or not serves(
        problem.dtype, (*problem.inner, extent(problem)), problem.chain
    ):
        return ()
    first = problem.layers[0]
    if not _is_product(first):
        return ()
    k, wide = first.c if isinstance(first, ConvProblem) else first.k, problem.dtype.alignment
    if k % wide or extent(problem) * problem.out.bytes % 16:
        return ()
    inner = round_up(problem.inner[0], BLOCK)
    columns = next(n for n in COLUMNS if n >= extent(problem))
    configs = [
        KernelConfig(
            arch.number,
            0,
            UNBOUNDED,
            Family.B2B_STORED_SM90,
            (ROWS * groups, inner, round_up(k, _box(k))),
            (columns, 0, 0),
            stages=stages,
            consumers=groups,
            resident=int(stages == inner // BLOCK),
        )
        for groups, stages in itertools.product(_GROUPS, dict.fromkeys((inner // BLOCK, *_STAGES)))
    ]
    feasible = [config for config in configs if is_feasible(config, problem, arch)]
    resident = {config.consumers for config in feasible if config.resident}
    return tuple(
        config for config in feasible if config.resident or config.consumers not in resident
    )


def extent(problem: Problem) -> int:
    """Columns of the output."""
    return problem.k if isinstance(problem, ConvProblem) else problem.n


def is_feasible(config: KernelConfig, problem: Problem, arch: Arch) -> bool:
    """Whether a block fits an SM, and no accumulator is spilled."""
    registers = _BASE_REGISTERS + config.warp[0] // 2 + BLOCK // 2 + BLOCK // 4
    return registers <= min(_REGISTERS[config.consumers], arch.registers_per_thread) and (
        shared_memory(config, problem) <= arch.shared_memory_per_block
    )


def shared_memory(config: KernelConfig, problem: Problem) -> int:
    """The least bytes of a block; the kernel takes what is left for a second tile of rows, and
    more units of the first result."""
    size, (rows, inner, depth), columns = problem.dtype.bytes, config.threadblock, config.warp[0]
    weights = (
        (inner // BLOCK if config.resident else config.stages) * BLOCK * (depth + columns) * size
    )
    unit = stored_columns(columns, problem.out, residual=False) * problem.out.bytes
    vectors = [
        sum(EPILOGUES[step].operand == "vector" for step in layer)
        for layer in layers(problem.chain)
    ]
    group = ROWS * (depth * size + _LEAST_UNITS * BLOCK * size + unit) + 4 * (
        vectors[0] * inner + vectors[1] * columns
    )
    return weights + rows // ROWS * group + _BARRIERS


def _is_product(layer: Problem) -> bool:
    """Whether a layer is a product of rows as they lie."""
    return is_matrix(layer) and (
        isinstance(layer, GemmProblem) or (layer.groups == 1 and not layer.nchw)
    )


def _box(k: int) -> int:
    """Values along k of one copy."""
    return next((box for box in (16, 32) if k <= box), BLOCK)
