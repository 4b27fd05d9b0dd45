"""Predicted microseconds of a convolution and 1x1 convolutions behind it in one kernel: the first
one's formulas, with the output of the last one and the products between. Within 25% of 40
measurements on one H200 (Bolt's table 2, RepVGGAug, ResNet-50; batch 32) but for tiles whose
registers are scarce.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from onnxbolt.archs import Arch
from onnxbolt.epilogues import EPILOGUES, layers
from onnxbolt.integers import ceil_divide
from onnxbolt.kernels.chain import columns
from onnxbolt.kernels.config import ConvProblem, KernelConfig
from onnxbolt.kernels.sm90 import boxes, is_matrix, k_blocks
from onnxbolt.plan import sm90

_RATE = 2800.0  # FLOP a clock of one SM's tensor cores, operand from registers
# bytes of a line of the memory, and by how much longer it takes to gather pixels that lie across
# two
_LINE, _ACROSS = 128, 0.6
_LATENCY_US = 0.15  # of a further product, which waits for the one before


def fused_us(problem: ConvProblem, config: KernelConfig, arch: Arch, memory_us: float) -> float:
    """One launch of B2B_CONV_SM90; `memory_us` is what a copy of all operands takes."""
    alone, rows = problem.layers[0], config.threadblock[0]
    k = config.threadblock[2]
    aligned = replace(alone, c=ceil_divide(alone.c, k) * k)  # as many k-blocks
    main = k_blocks(config, alone) * sm90.block_clocks(aligned, config, arch) / sm90.CLOCKS_PER_US
    if not is_matrix(alone):
        main *= 1 + _ACROSS * _across(
            alone.c * alone.dtype.bytes, boxes(k, alone.dtype), k * alone.dtype.bytes
        )
    end = _behind_us(problem, config) + sm90.epilogue_us(problem, rows * columns(config)[-1])
    busy = sm90.tiles_us(
        ceil_divide(ceil_divide(problem.rows, rows), arch.sm_count), main, end, config
    )
    return sm90.LAUNCH_US + sm90.overlapped_us(busy, memory_us)


def _across(pixel: int, copies: int, block: int) -> float:
    """The share of the rows of im2col's copies that lie across two lines; all in bytes."""
    row = block // copies
    rows = [
        (i * pixel + at, min(row, pixel - at)) for i in range(_LINE) for at in range(0, pixel, row)
    ]
    return sum(start % _LINE + size > _LINE for start, size in rows) / len(rows)


def _behind_us(problem: ConvProblem, config: KernelConfig) -> float:
    """A tile's inner epilogues and further products."""
    rows, widths = config.threadblock[0], columns(config)
    products = (
        sum(2 * rows * n * k / _RATE for k, n in itertools.pairwise(widths)) / sm90.CLOCKS_PER_US
    )
    inner = sum(
        rows * n * EPILOGUES[step].cost
        for n, chain in zip(widths, layers(problem.chain)[:-1], strict=False)
        for step in chain
    )
    return products + inner / sm90.LANES / sm90.CLOCKS_PER_US + _LATENCY_US * (len(widths) - 1)
