"""Several GEMMs of up to 512 columns in one kernel on sm_90a, what lies between them in shared
memory (Bolt, section 3.1.1; custom_ops/chain/wide_shape.h has the same formulas).

Two consumer warpgroups share the columns of 64 rows, or have 64 rows each. All weights come through
a ring. `align_a` is as that of B2B_GEMM_SM90.
"""

from __future__ import annotations

import itertools

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, MAX_LAYERS, layers
from onnxbolt.integers import round_up
from onnxbolt.kernels import chain as gemm_chain
from onnxbolt.kernels.chain import columns, first_depth
from onnxbolt.kernels.config import UNBOUNDED, Family, GemmProblem, KernelConfig
from onnxbolt.kernels.staging import staging_bytes

COLUMNS = (32, 64, 96, 128, 192, 256, 384, 512)  # of a layer, zeros included
# columns up to which registers hold what B2B_GEMM_SM90 keeps there without spoiling its other
# choices
_NARROW = 192
_ROWS = (64, 128)  # of a tile
_STAGES = (8, 7, 6, 5, 4, 3)  # the deepest ring that fits is the one
_ROW_STAGES = 2  # of the rows' own ring, at least: it has what is left
_GROUPS = 2  # consumer warpgroups
_MAX_BLOCK = 256  # columns of one product
# of weights, for tiles of 64 rows; half of that for 128, whose activations leave less room
_STAGE_BYTES = 32768
_BOX_BYTES = 64 * 128  # 64 rows of 64 activations
_REGISTERS, _BASE_REGISTERS = 224, 72  # of a consumer's thread; beside accumulators and operands
_FINISHED = 64  # columns that go through an epilogue at a time, half a value each to a thread
_BARRIERS = 256  # bytes, and what aligns them


def serves(dtype: DType, widths: tuple[int, ...], chain: tuple[str, ...]) -> bool:
    """Whether there may be a kernel for layers with these columns and this chain of steps:
    residuals may stand behind the last one."""
    return gemm_chain.serves(dtype, widths, chain, COLUMNS[-1])


def candidates(problem: GemmProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """Every feasible configuration: `threadblock` is (rows, columns of the first layer, k),
    `warp` the other layers' columns."""
    widths = (*problem.inner, problem.n)
    if not arch.wgmma or max(widths) <= _NARROW or not serves(problem.dtype, widths, problem.chain):
        return ()
    first, *others = [next(n for n in COLUMNS if n >= width) for width in widths]
    others += [0] * (MAX_LAYERS - len(widths))
    align_a = problem.dtype.alignment if problem.k % problem.dtype.alignment == 0 else 1
    found: list[KernelConfig] = []
    for rows in _ROWS:
        configs = (
            KernelConfig(
                arch.number,
                0,
                UNBOUNDED,
                Family.B2B_GEMM_WIDE_SM90,
                (rows, first, first_depth(problem.k)),
                (others[0], others[1], others[2]),
                stages=stages,
                align_a=align_a,
                consumers=_GROUPS,
            )
            for stages in _STAGES
        )
        found += itertools.islice(
            (config for config in configs if is_feasible(config, problem, arch)), 1
        )
    return tuple(found)


def is_feasible(config: KernelConfig, problem: GemmProblem, arch: Arch) -> bool:
    """Whether a block fits an SM, no accumulator is spilled, and each layer but the first has
    one pass."""
    one_pass = all(n <= shares(config) * _MAX_BLOCK for n in columns(config)[1:])
    return (
        one_pass
        and shared_memory(config, problem) <= arch.shared_memory_per_block
        and registers(config, problem) <= _REGISTERS
    )


def shares(config: KernelConfig) -> int:
    """Warpgroups that have the same rows."""
    return config.consumers * 64 // config.threadblock[0]


def passes(config: KernelConfig, layer: int) -> int:
    """In how many parts a warpgroup computes its columns of a layer."""
    return 1 if columns(config)[layer] <= shares(config) * _MAX_BLOCK else 2


def boxes(config: KernelConfig, problem: GemmProblem) -> tuple[int, ...]:
    """Of each layer the elements along k of a stage."""
    widths, limit = columns(config), _STAGE_BYTES // (config.threadblock[0] // 64)
    depths = (config.threadblock[2], *widths)
    of_pass = [n // passes(config, layer) * problem.dtype.bytes for layer, n in enumerate(widths)]
    return tuple(
        next((box for box in (64, 32) if k % box == 0 and n * box <= limit), 16)
        for n, k in zip(of_pass, depths, strict=False)
    )


def registers(config: KernelConfig, problem: GemmProblem) -> int:
    """Of a consumer's thread: accumulators, beside two boxes of rows that TMA does not read, or
    beside values that go through the last epilogue: residuals, and results of 4 bytes, which do not
    take the place of their accumulators.
    """
    accumulators = [
        n // passes(config, layer) // shares(config) // 2 for layer, n in enumerate(columns(config))
    ]
    rows = 0 if config.align_a == problem.dtype.alignment else 2 * boxes(config, problem)[0] // 4
    beside = sum(EPILOGUES[step].operand == "tensor" for step in problem.chain) + (
        problem.out.bytes == 4
    )
    return _BASE_REGISTERS + max(
        accumulators[0] + rows, *accumulators, accumulators[-1] + _FINISHED // 2 * beside
    )


def shared_memory(config: KernelConfig, problem: GemmProblem) -> int:
    """Bytes of a block: both rings, activations (or the staged output in their place), vectors,
    barriers."""
    size, widths, rows, along = (
        problem.dtype.bytes,
        columns(config),
        config.threadblock[0],
        boxes(config, problem),
    )
    stage = max(
        n // passes(config, layer) * box * size
        for layer, (n, box) in enumerate(zip(widths, along, strict=True))
    )
    row = along[0] * size + (0 if config.align_a == problem.dtype.alignment else 16)
    staging = staging_bytes(widths[-1] // shares(config), problem.out, residual=False)
    activations = max(
        round_up(max(widths[:-1]), 64) // 64 * _BOX_BYTES, shares(config) * round_up(staging, 1024)
    )
    counts = [
        sum(EPILOGUES[step].operand == "vector" for step in layer)
        for layer in layers(problem.chain)
    ]
    vectors = sum(count * n for count, n in zip(counts, widths, strict=True))
    rings = config.stages * round_up(stage, 1024) + _ROW_STAGES * round_up(rows * row, 1024)
    return rings + rows // 64 * activations + vectors * 4 + _BARRIERS
