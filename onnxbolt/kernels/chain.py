"""Several GEMMs in one kernel on sm_90a, what lies between them in registers (Bolt, section 3.1.1;
custom_ops/chain/shape.h has the same formulas).

Threadblock residence here: a block has all columns of every layer, hence at most 256 of them.
Shared memory holds the weights of all layers (`resident`), or all but the first one's, which then
come through the ring with the rows. `align_a` is 8 where TMA reads the rows of A, and 1 where their
pitch is no multiple of 16 bytes (custom_ops/chain/rows.h).
"""

from __future__ import annotations

import itertools

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, MAX_LAYERS, fits_several, layers
from onnxbolt.integers import round_up
from onnxbolt.kernels.config import UNBOUNDED, Family, GemmProblem, KernelConfig
from onnxbolt.kernels.staging import loads_residual, staging_bytes

COLUMNS = (16, 32, 48, 64, 96, 128, 192, 256)  # of one product
_GROUPS = (4, 3, 2, 1)  # consumer warpgroups
_STAGES = (8, 6, 5, 4, 3, 2)  # the deepest ring that fits is the one
_DEEPER = 10  # stages of a second one, where three or four rings are read at once
_BOX = 64  # elements along k of one copy
# of a consumer's thread by the formula below, by the number of consumer warpgroups: what compiles
# without spills (threads have 255, 224, 152 and 112)
_REGISTERS = {1: 255, 2: 232, 3: 160, 4: 112}
_BASE_REGISTERS = 48  # beside accumulators and operands
_ROWS = 64  # of one product
_CHUNK = 16  # bytes, to which rows have to be aligned for TMA, and of a copy without it


def serves(
    dtype: DType, widths: tuple[int, ...], chain: tuple[str, ...], widest: int = COLUMNS[-1]
) -> bool:
    """Whether there may be a kernel for layers with these columns, at most `widest`, and this
    chain of steps: residuals may stand behind the last one."""
    return (
        dtype.bytes == 2
        and 2 <= len(widths) <= MAX_LAYERS
        and max(widths) <= widest
        and fits_several(chain)
    )


def candidates(problem: GemmProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """Every feasible configuration: `threadblock` is (rows, columns of the first layer, k),
    `warp` the other layers' columns."""
    served = arch.wgmma and serves(problem.dtype, (*problem.inner, problem.n), problem.chain)
    return configs(problem, arch) if served else ()


def configs(problem: GemmProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """As `candidates`, for layers that there are kernels for, one or several."""
    padded = [next(n for n in COLUMNS if n >= width) for width in (*problem.inner, problem.n)]
    others = [*padded[1:], 0, 0, 0]
    depth, align_a = (
        first_depth(problem.k),
        (8 if problem.k * problem.dtype.bytes % _CHUNK == 0 else 1),
    )
    found: list[KernelConfig] = []
    for resident, groups in itertools.product((1, 0), _GROUPS):
        rows = _ROWS if resident else _ROWS * groups
        deepest = (
            KernelConfig(
                arch.number,
                0,
                UNBOUNDED,
                Family.B2B_GEMM_SM90,
                (rows, padded[0], depth),
                (others[0], others[1], others[2]),
                stages=stages,
                align_a=align_a,
                consumers=groups,
                resident=resident,
            )
            for stages in ((_DEEPER, *_STAGES) if resident and groups > 2 else _STAGES)
        )
        fitting = [config for config in deepest if is_feasible(config, problem, arch)]
        found += fitting[:2] if fitting and fitting[0].stages == _DEEPER else fitting[:1]
    return tuple(found)


def first_depth(k: int) -> int:
    """Of the first layer, zeros included: long rows to a copy, where they do not cost much."""
    multiple = 16 if k < _BOX else 32 if k % 32 == 0 and k < 3 * _BOX else _BOX
    return -(-k // multiple) * multiple


def is_feasible(config: KernelConfig, problem: GemmProblem, arch: Arch) -> bool:
    """Whether a block fits an SM and no accumulator is spilled."""
    return shared_memory(config, problem) <= arch.shared_memory_per_block and registers(
        config
    ) <= min(_REGISTERS[config.consumers], arch.registers_per_thread)


def columns(config: KernelConfig) -> tuple[int, ...]:
    """Of each layer, zeros included."""
    return (config.threadblock[1], *(n for n in config.warp if n))


def registers(config: KernelConfig) -> int:
    """Of a consumer's thread: where one layer follows another, its accumulators and the operand
    that the one before left; in the first one two boxes of rows, unless these stay in shared
    memory."""
    widths = columns(config)
    first = widths[0] // 2 + (0 if config.align_a == 8 else 2 * _box(config) // 4)
    return _BASE_REGISTERS + max(
        [first, *(before // 4 + after // 2 for before, after in itertools.pairwise(widths))]
    )


def shared_memory(config: KernelConfig, problem: GemmProblem) -> int:
    """Bytes of a block: weights that stay, rings, staging of the output, vectors, barriers."""
    size, widths = problem.dtype.bytes, columns(config)
    depths = (config.threadblock[2], *widths)
    weights = [round_up(n * k * size, 1024) for n, k in zip(widths, depths, strict=False)]
    box = _box(config)
    row = box * size + (0 if config.align_a == 8 else _CHUNK)
    stage = config.threadblock[0] * row + (0 if config.resident else widths[0] * box * size)
    rings = config.consumers if config.resident else 1
    staging = staging_bytes(
        widths[-1], problem.out, residual=config.align_a == 8 and loads_residual(problem)
    )
    vectors = [
        sum(EPILOGUES[step].operand == "vector" for step in layer)
        for layer in layers(problem.chain)
    ]
    all_vectors = sum(v * n for v, n in zip(vectors, widths, strict=True)) * 4
    return (
        sum(weights[0 if config.resident else 1 :])
        + rings * config.stages * round_up(stage, 1024)
        + config.consumers * round_up(staging, 1024)
        + all_vectors
        + _BARRIERS
    )


_BARRIERS = 1024  # bytes, and what aligns them


def _box(config: KernelConfig) -> int:
    """Elements along k of a stage."""
    return next(box for box in (_BOX, 32, 16) if config.threadblock[2] % box == 0)
