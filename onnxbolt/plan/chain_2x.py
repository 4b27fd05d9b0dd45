"""Predicted microseconds of several GEMMs, or a convolution and 1x1 ones, in one kernel with
mma.sync: a block's products one after the other, activations between them.

The constants were fitted to 43 measurements of 6 chains of GEMMs on one H200, which ran kernels for
sm_80 (root mean square of the logarithm of the error 7%).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from onnxbolt.archs import Arch, get
from onnxbolt.epilogues import EPILOGUES, layers
from onnxbolt.integers import ceil_divide
from onnxbolt.kernels import chain_2x
from onnxbolt.kernels.chain import columns
from onnxbolt.kernels.chain_conv_2x import as_gemm
from onnxbolt.kernels.config import ConvProblem, GemmProblem, KernelConfig

_US = 1e6
_TENSOR_EFFICIENCY = 0.59  # of the rate of mma.sync, in main loops as short as these
_SHARED_BYTES_PER_CLOCK = 128
_FP32_LANES = 128  # instructions a clock on one SM
_L2 = 0.79  # of the rate in arch.l2_bandwidth
_BLOCK_US = 2.1  # a block's first loads and last stores, which other blocks of its SM can hide
_LOSS = 0.26  # part of the shorter of (compute, memory) that is not hidden behind the longer


def fused_us(problem: GemmProblem, config: KernelConfig, arch: Arch, memory_us: float) -> float:
    """One launch; `memory_us` is what a copy of x, the weights and y takes."""
    # blocks that one SM has one after the other
    turns = ceil_divide(ceil_divide(problem.m, config.threadblock[0]), arch.sm_count)
    resident = min(blocks_per_sm(problem, config, arch), turns)
    compute = turns * _busy_us(problem, config, arch) + ceil_divide(turns, resident) * _BLOCK_US
    return arch.launch_us + max(compute, memory_us) + _LOSS * min(compute, memory_us)


def conv_us(problem: ConvProblem, config: KernelConfig, arch: Arch, memory_us: float) -> float:
    """The same of a convolution and 1x1 ones behind it, whose k-blocks are of one filter
    position each."""
    k = config.threadblock[2]
    return fused_us(
        as_gemm(problem, problem.r * problem.s * ceil_divide(problem.c, k) * k),
        config,
        arch,
        memory_us,
    )


def shortage(problem: object, archs: Sequence[int]) -> str:
    """What a block lacks on the first of `archs` that has no kernel, in parentheses, for a
    report; empty where that is not known."""
    gemm = as_gemm(problem, problem.c) if isinstance(problem, ConvProblem) else problem
    lacking = (
        (chain_2x.shortage(gemm, get(number)) for number in archs)
        if isinstance(gemm, GemmProblem)
        else ()
    )
    return next((f" ({text})" for text in lacking if text), "")


def blocks_per_sm(problem: GemmProblem, config: KernelConfig, arch: Arch) -> int:
    """That one SM holds at a time."""
    threads = chain_2x.threads(config)
    # the runtime's share of each block
    reserved = arch.shared_memory_per_sm - arch.shared_memory_per_block
    by_memory = arch.shared_memory_per_sm // (chain_2x.shared_memory(config, problem) + reserved)
    return min(
        by_memory,
        arch.registers_per_sm // (chain_2x.registers(config, problem) * threads),
        arch.threads_per_sm // threads,
    )


def _busy_us(problem: GemmProblem, config: KernelConfig, arch: Arch) -> float:
    """Of a block that has its SM to itself: the slowest of products, reads of shared memory, and
    loads from L2, then activations."""
    rows, size = config.threadblock[0], problem.dtype.bytes
    widths, depth = (
        columns(config),
        ceil_divide(problem.k, config.threadblock[2]) * config.threadblock[2],
    )
    weights = sum(n * k for k, n in itertools.pairwise((depth, *widths)))
    products = (
        2
        * rows
        * weights
        / (arch.flops[problem.dtype] / arch.sm_count * _TENSOR_EFFICIENCY * arch.mma_sync_share)
    )
    across = chain_2x.across(config)
    # each of these warps reads all weights, each across all rows
    along = rows // config.instruction[0]
    between = 0 if across == 1 else sum(widths[:-1])
    shared = (
        (along * weights + across * rows * (depth + between))
        * size
        / (_SHARED_BYTES_PER_CLOCK * arch.clock)
    )
    from_l2 = _L2 * arch.l2_bandwidth / arch.sm_count
    loads = (rows + widths[0]) * depth * size / from_l2
    # weights that products behind the first one wait for
    staying = sum(n * k for k, n in itertools.pairwise(widths)) * size / from_l2
    steps = sum(
        n * (1 + sum(EPILOGUES[step].cost for step in layer))
        for n, layer in zip(widths, layers(problem.chain), strict=True)
    )
    return (
        max(products, shared, loads) + staying + rows * steps / (_FP32_LANES * arch.clock)
    ) * _US
