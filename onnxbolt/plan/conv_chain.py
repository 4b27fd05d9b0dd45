"""Predicted microseconds of a convolution and 1x1 convolutions behind it in one kernel: the first one's formulas, with the output of
the last one and the products between. Within 25% of 40 measurements on one H200 (Bolt's table 2, RepVGGAug, ResNet-50; batch 32) but for
tiles whose registers are scarce.
"""
from __future__ import annotations

import itertools

from onnxbolt.archs import Arch
from onnxbolt.epilogues import EPILOGUES, layers
from onnxbolt.kernels import chain_conv
from onnxbolt.kernels.config import ConvProblem, KernelConfig
from onnxbolt.kernels.sm90 import k_blocks
from onnxbolt.plan import sm90

_RATE = 2800.0  # FLOP a clock of one SM's tensor cores, operand from registers
_NARROW_PIXEL = 1.3  # times what a k-block takes that reaches beyond a pixel's channels: 96 bytes straddle lines of 128
_LATENCY_US = 0.15  # of a further product, which waits for the one before


def fused_us(problem: ConvProblem, config: KernelConfig, arch: Arch, memory_us: float) -> float:
    """One launch of CHAIN_CONV_SM90; `memory_us` is what a copy of all operands takes."""
    alone, rows = problem.layers[0], config.threadblock[0]
    main = k_blocks(config, alone) * sm90.block_clocks(alone, config, arch) / sm90.CLOCKS_PER_US
    main *= _NARROW_PIXEL if problem.c < config.threadblock[2] else 1.0
    end = _behind_us(problem, config) + sm90.epilogue_us(problem, rows * chain_conv.columns(config)[-1])
    busy = sm90.tiles_us(_ceil(_ceil(problem.rows, rows), arch.sm_count), main, end, config)
    return sm90.LAUNCH_US + sm90.overlapped_us(busy, memory_us)


def _behind_us(problem: ConvProblem, config: KernelConfig) -> float:
    """A tile's inner epilogues and further products."""
    rows, widths = config.threadblock[0], chain_conv.columns(config)
    products = sum(2 * rows * n * k / _RATE for k, n in itertools.pairwise(widths)) / sm90.CLOCKS_PER_US
    inner = sum(rows * n * EPILOGUES[step].cost for n, chain in zip(widths, layers(problem.chain)[:-1], strict=False) for step in chain)
    return products + inner / sm90.LANES / sm90.CLOCKS_PER_US + _LATENCY_US * (len(widths) - 1)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
