"""Predicted microseconds of a model's first convolution: bound by its output, or by shared memory,
which fragments, weights and the output pass through.
"""

from __future__ import annotations

from onnxbolt.archs import Arch
from onnxbolt.integers import ceil_divide
from onnxbolt.kernels.config import ConvProblem, KernelConfig

PROLOGUE_US = 2.0  # weights into shared memory
_US = 1e6
_SHARED_BYTES_PER_CLOCK = 128
# a tile's pixels, and what the rest reaches of shared memory's bandwidth
_TILE_US, _SHARED_EFFICIENCY = 0.02, 0.65
# each warpgroup that a block has less than this many leaves that much of the time unused
_GROUPS, _IDLE = 4, 0.05


def compute_us(problem: ConvProblem, config: KernelConfig, arch: Arch) -> float:
    """The most loaded SM's time, device memory aside; with a 1x1 convolution behind, whose
    weights pass shared memory as well."""
    rows, columns, depth = config.threadblock
    output = config.instruction[2] if problem.inner else columns
    tiles = (
        problem.n
        * ceil_divide(problem.p, rows // 16)
        * ceil_divide(problem.q, 16)
        * ceil_divide(problem.k, output)
    )
    product = depth * (64 + columns) * problem.dtype.bytes + 2 * 64 * output * problem.out.bytes
    product += columns * output * problem.dtype.bytes if problem.inner else 0
    passing = product / (_SHARED_BYTES_PER_CLOCK * _SHARED_EFFICIENCY * arch.clock) * _US
    idle = _IDLE * max(_GROUPS - config.consumers, 0)
    return ceil_divide(tiles, arch.sm_count) * (_TILE_US + rows // 64 * passing) * (1 + idle)
