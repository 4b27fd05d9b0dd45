"""Predicted times of kernels that give each block one tile: CUTLASS's, and those of vendor
libraries.

The time is that of the most loaded SM (wave quantization): tiles x (prologue + K steps + epilogue),
where a K step is bound by the tensor cores, by shared memory or by L2, whichever is slowest; device
memory is a second bound for the whole kernel. The constants were fitted to measurements on one H200
(tests/plan/test_cost.py holds them).
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import tensor_operands
from onnxbolt.families.blocks.memory import epilogue_cost, memory_us
from onnxbolt.integers import ceil_divide
from onnxbolt.kernel_time import (
    EPILOGUE_US,
    PROLOGUE_US,
    SHARED_BYTES_PER_CLOCK,
    US,
    TileTime,
    bandwidth,
    overlapped,
    sm_us,
)
from onnxbolt.problems import Product

FP32_LANES = 128  # instructions a clock on one SM
# part of the rate of loads that remains if accesses have fewer than 16 bytes, so that a tile takes
# more instructions
_ACCESS_RATE = {16: 1.0, 8: 0.7, 4: 0.5, 2: 0.3}


@dataclass(frozen=True)
class Step:
    """One step along K of one tile: products of `tile` at `rate`, `read` bytes of shared memory in
    all, and `fetched` bytes of L2."""

    tile: tuple[int, int, int]
    rate: float
    read: float
    fetched: float

    def us(self, access: float, arch: Arch) -> float:
        """Microseconds of the slowest of the three; `access` is the part of L2's rate that the
        loads reach."""
        m, n, k = self.tile
        products = 2 * m * n * k / self.rate
        shared = self.read / (SHARED_BYTES_PER_CLOCK * arch.clock)
        l2 = self.fetched / (arch.l2_bandwidth / arch.sm_count * access)
        return max(products, shared, l2) * US


def access_rate(elements: int, dtype: DType) -> float:
    """The rate of accesses of `elements`, as a part of the rate of accesses of 16 bytes."""
    return _ACCESS_RATE[elements * dtype.bytes]


def kernel_us(
    problem: Product,
    tile: tuple[int, int, int],
    steps: int,
    step_us: float,
    store: float,
    resident: float,
    arch: Arch,
) -> float:
    """Microseconds of one launch. Each tile has `steps` steps along K; stores reach the part
    `store` of the rate of wide ones; `resident` tiles overlap on an SM."""
    groups = problem.groups
    columns = ceil_divide(problem.columns // groups, tile[1])
    tiles = problem.row_tiles(tile[0]) * columns * groups
    time = TileTime(PROLOGUE_US + steps * step_us, _epilogue_us(problem, tile[:2], arch) / store)
    compute = sm_us(ceil_divide(tiles, arch.sm_count), resident, time)
    return arch.launch_us + overlapped(compute, memory_us(problem, arch))


def k_steps(problem: Product, tile_k: int, packed: bool = False) -> int:
    """Steps of a main loop. An implicit GEMM walks the channels of one filter position after
    another, unless filter positions are packed along k."""
    if packed:
        return ceil_divide(problem.taps * problem.depth, tile_k)
    return problem.taps * ceil_divide(problem.depth, tile_k)


def _epilogue_us(problem: Product, shape: tuple[int, ...], arch: Arch) -> float:
    """Microseconds of one tile's stores, residuals and epilogue instructions, at one SM's share of
    the GPU."""
    elements = min(shape[0], problem.rows) * min(shape[1], problem.columns)
    tensors = tensor_operands(problem.chain)
    moved = elements * (problem.out.bytes + tensors * problem.dtype.bytes)
    arithmetic = elements * epilogue_cost(problem.chain) / (FP32_LANES * arch.clock) * US
    return EPILOGUE_US + moved / (bandwidth(arch) / arch.sm_count) * US + arithmetic
