"""A convolution, by im2col or as a matrix, and 1x1 convolutions behind it in one kernel on sm_90a:
the first one's tiles are CONV_SM90's, with all of its channels; each further product's operand
stays in registers (custom_ops/chain/conv_shape.h has the same formulas). Weights stay in shared
memory (`resident`), or pass through the ring, those of further layers behind a tile's k-blocks.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from onnxbolt.archs import Arch
from onnxbolt.epilogues import EPILOGUES, MAX_LAYERS, layers
from onnxbolt.integers import round_up
from onnxbolt.kernels import sm90
from onnxbolt.kernels.chain import COLUMNS, columns
from onnxbolt.kernels.config import UNBOUNDED, ConvProblem, Family, KernelConfig, Schedule
from onnxbolt.kernels.staging import loads_residual, staging_bytes

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
_WIDE_BLOCK = 64  # channels: a swizzled row
_PART = 128  # columns of the last product at a time
# registers of a consumer's thread; beside accumulators and operands
_REGISTERS, _BASE_REGISTERS = (
    {
        1: 255,
        2: 224,
        3: 144,
    },
    56,
)
_BOXES = (64, 32, 16)  # elements of a swizzled row
_MIN_STAGES, _MAX_STAGES, _FIXED_BYTES = 3, 16, 2048


def candidates(problem: ConvProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """Every feasible configuration: `threadblock` is the first convolution's, `warp` the
    channels of the others."""
    first, widths = problem.layers[0], (*problem.inner, problem.k)
    if problem.dtype.bytes != 2 or max(widths) > COLUMNS[-1] or len(widths) > MAX_LAYERS:
        return ()
    if not sm90.supports(problem, arch) or not sm90.supports(first, arch):
        return ()
    padded = [next(n for n in COLUMNS if n >= width) for width in widths]
    others = [*padded[1:], 0, 0]
    # a k-block of 48 channels comes as three copies, one of 64 with zeros as one
    k_blocks = dict.fromkeys((sm90.k_block(problem.c, problem.dtype), _WIDE_BLOCK))
    access = problem.dtype.alignment
    configs = (
        KernelConfig(
            arch.number,
            0,
            UNBOUNDED,
            Family.B2B_CONV_SM90,
            (rows, padded[0], k),
            (others[0], others[1], others[2]),
            schedule=schedule,
            align_a=access,
            align_b=access,
            align_c=access,
            consumers=groups,
            resident=resident,
        )
        for (rows, schedule, groups), resident, k in itertools.product(_TILES, (1, 0), k_blocks)
    )
    return tuple(
        config
        for config in (_with_stages(config, problem, arch) for config in configs)
        if config is not None
    )


def _with_stages(config: KernelConfig, problem: ConvProblem, arch: Arch) -> KernelConfig | None:
    """The configuration with as deep a ring as shared memory holds beside everything else; None
    where it does not fit."""
    size, (rows, inner, k) = problem.dtype.bytes, config.threadblock
    if registers(config) > _REGISTERS[config.consumers]:
        return None
    free = arch.shared_memory_per_block - fixed_bytes(config, problem)
    weights = inner * k * size
    if config.resident:
        free -= sm90.k_blocks(config, problem) * weights
    stages = min(free // (rows * k * size + (0 if config.resident else weights)), _MAX_STAGES)
    return (
        replace(config, stages=stages)
        if stages >= max(_MIN_STAGES, stages_behind(config, size) + 1)
        else None
    )


def registers(config: KernelConfig) -> int:
    """Of a consumer's thread: a tile's accumulators, of which 64 rows at a time become the
    operand of the next product."""
    groups = 1 if config.schedule is Schedule.PINGPONG else config.consumers
    blocks, widths = config.threadblock[0] // groups // 64, columns(config)
    # a layer's accumulators and the operand that they become
    finishing = [n // 2 + n // 4 for n in widths[:-1]]
    sums = [*widths[1:-1], min(widths[-1], _PART)]
    multiplying = [before // 4 + after // 2 for before, after in zip(widths, sums, strict=False)]
    return _BASE_REGISTERS + (blocks - 1) * widths[0] // 2 + max(*finishing, *multiplying)


def fixed_bytes(config: KernelConfig, problem: ConvProblem) -> int:
    """Shared memory beside the ring and the first weights: the other weights, vectors, staging
    of the output, barriers."""
    widths, chains, size = columns(config), layers(problem.chain), problem.dtype.bytes
    vectors = [
        sum(EPILOGUES[step].operand == "vector" for step in chain) * n * 4
        for chain, n in zip(chains, widths, strict=True)
    ]
    weights = (
        0
        if stages_behind(config, size)
        else sum(round_up(n * k * size, 1024) for k, n in itertools.pairwise(widths))
    )
    staging = staging_bytes(
        widths[-1], problem.out, loads_residual(problem), sm90.group_rows(config) // 64
    )
    return (
        _FIXED_BYTES
        + weights
        + round_up(sum(vectors[:-1]) + 8, 1024)
        + config.consumers * (staging + vectors[-1])
    )


def stages_behind(config: KernelConfig, size: int) -> int:
    """How many stages of the ring the further layers' weights take behind a tile's k-blocks; 0
    where they stay in shared memory."""
    widths = columns(config)
    room, count = widths[0] * config.threadblock[2] * size, 0
    for k, n in itertools.pairwise(widths):
        box = next(box for box in _BOXES if k % box == 0)
        if config.resident or n * box * size > room:
            return 0
        count += -(-(k // box) // (room // (n * box * size)))
    return count
