"""Predicted microseconds of two products in one kernel, the first one's result stored as well.

The bytes of device memory decide, or, of few tiles, a warpgroup's way through its blocks of the stored result.
"""
from __future__ import annotations

from onnxbolt.archs import Arch
from onnxbolt.kernels.chain_stored import BLOCK, ROWS
from onnxbolt.kernels.config import ConvProblem, GemmProblem, KernelConfig

_LAUNCH_US = 1.8  # the first loads and the last stores included
_US = 1e6
_MEMORY = 1.10  # of a copy's time over the same bytes
_LOSS = 0.15  # part of the shorter of (blocks, memory) that is not hidden behind the longer
_BLOCK_US = 0.6  # of one block on one warpgroup: waits for its residual and for both products, epilogue
_L2 = 0.8  # of the rate in arch.l2_bandwidth


def fused_us(problem: GemmProblem | ConvProblem, config: KernelConfig, arch: Arch, memory_us: float) -> float:
    """One launch; `memory_us` is what a copy of all operands takes."""
    rows, inner, depth = config.threadblock
    tiles = -(-problem.rows // ROWS)
    blocks = min(tiles, arch.sm_count)
    rounds = -(-tiles // (blocks * rows // ROWS))
    weights = BLOCK * (depth + config.warp[0]) * problem.dtype.bytes / (_L2 * arch.l2_bandwidth / blocks) * _US
    busy = rounds * (inner // BLOCK) * max(_BLOCK_US, 0.0 if config.resident else weights)
    memory = memory_us * _MEMORY
    return _LAUNCH_US + max(busy, memory) + _LOSS * min(busy, memory)
