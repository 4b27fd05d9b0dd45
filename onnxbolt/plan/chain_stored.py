"""Predicted microseconds of two products in one kernel, the first one's result stored as well, or
with residuals.

The constants were fitted to 17 measurements of five problems on one H200 (root mean square of the
logarithm of the error 5%).
"""

from __future__ import annotations

from onnxbolt.archs import Arch
from onnxbolt.kernels.chain_stored import BLOCK, ROWS
from onnxbolt.kernels.config import ConvProblem, GemmProblem, KernelConfig

_LAUNCH_US = 2.5  # the first loads and the last stores included
_US = 1e6
_MEMORY = 1.10  # of a copy's time over the same bytes
_LOSS = 0.41  # part of the shorter of (blocks, memory) that is not hidden behind the longer
# of 64 rows of a block: one value along k of the first product, or one column of the second
_VALUE_US = 0.00106
_L2 = 1.9  # of the rate in arch.l2_bandwidth: thread blocks ask for the same weights


def fused_us(
    problem: GemmProblem | ConvProblem, config: KernelConfig, arch: Arch, memory_us: float
) -> float:
    """One launch; `memory_us` is what a copy of all operands takes. A warpgroup takes one block
    of the stored result after the other."""
    rows, inner, depth = config.threadblock
    tiles = -(-problem.rows // ROWS)
    thread_blocks = min(tiles, arch.sm_count)
    rounds = -(-tiles // (thread_blocks * rows // ROWS))
    values = depth + config.warp[0]
    weights = BLOCK * values * problem.dtype.bytes / (_L2 * arch.l2_bandwidth / thread_blocks) * _US
    busy = rounds * (inner // BLOCK) * (_VALUE_US * values + (0.0 if config.resident else weights))
    memory = memory_us * _MEMORY
    return _LAUNCH_US + max(busy, memory) + _LOSS * min(busy, memory)
