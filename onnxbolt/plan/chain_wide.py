"""Predicted microseconds of B2B_GEMM_WIDE_SM90: layers of one tile follow one another, each as fast
as the slowest of tensor cores, shared memory and TMA lets its stages be.

The constants were fitted to 36 measurements on one H200: two to four layers of 512, 256 and fewer
columns, 1,024 to 65,536 rows of 13 to 512 values, tiles of 64 and of 128 rows (root mean square of
the logarithm of the error 5.5%).
"""

from __future__ import annotations

from onnxbolt.archs import Arch
from onnxbolt.integers import ceil_divide
from onnxbolt.kernels import chain_wide
from onnxbolt.kernels.chain import columns
from onnxbolt.kernels.config import GemmProblem, KernelConfig

_LAUNCH_US = 1.76  # the first loads and the last stores included
_PRODUCTS = 3230.0  # FLOP a clock of one SM's tensor cores
_SHARED = 128.0  # bytes a clock of shared memory, reads and writes
_ROW = 0.54  # clocks of each row of a copy by TMA, however short
# clocks of a value's epilogue and of its way into shared memory, while nothing is multiplied
_ACTIVATION = 0.0138
# clocks from a layer's last product to the next layer's first one, however small they are
_BETWEEN = 430.0
_GATHERED = 17.2  # bytes a clock of rows that TMA cannot read
_CROWDED = 0.0066  # clocks a byte of weights takes longer where all SMs load at the same time
_CLOCKS = 1755.0  # in a microsecond, under load
_MEMORY = 1.15  # of a copy's time over the same bytes
_LOSS = 0.24  # part of the shorter of (compute, memory) that is not hidden behind the longer


def fused_us(problem: GemmProblem, config: KernelConfig, arch: Arch, memory_us: float) -> float:
    """One launch; `memory_us` is what a copy of x, the weights and y takes."""
    tiles = ceil_divide(problem.m, config.threadblock[0])
    crowd = min(tiles / arch.sm_count, 1.0) * _CROWDED * _weight_bytes(problem, config)
    compute = ceil_divide(tiles, arch.sm_count) * (_tile_clocks(problem, config) + crowd) / _CLOCKS
    memory = memory_us * _MEMORY
    return _LAUNCH_US + max(compute, memory) + _LOSS * min(compute, memory)


def _tile_clocks(problem: GemmProblem, config: KernelConfig) -> float:
    rows, widths, along = config.threadblock[0], columns(config), chain_wide.boxes(config, problem)
    depths = (config.threadblock[2], *widths)
    clocks = rows * sum(widths) * _ACTIVATION + (len(widths) - 1) * _BETWEEN
    for layer, (n, k, box) in enumerate(zip(widths, depths, along, strict=False)):
        passes = chain_wide.passes(config, layer)
        clocks += (
            passes * k // box * _stage_clocks(config, layer, n // passes, box * problem.dtype.bytes)
        )
    if config.align_a != problem.dtype.alignment:
        clocks += chain_wide.passes(config, 0) * rows * depths[0] * problem.dtype.bytes / _GATHERED
    return clocks


def _weight_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    """Of all layers, zeros included."""
    widths = columns(config)
    return (
        sum(n * k for n, k in zip(widths, (config.threadblock[2], *widths), strict=False))
        * problem.dtype.bytes
    )


def _stage_clocks(config: KernelConfig, layer: int, width: int, depth: int) -> float:
    """One stage of a pass of `width` columns; `depth` bytes along k."""
    rows = config.threadblock[0]
    loaded = width + (rows if layer == 0 else 0)  # rows of the weights, and of A
    read = config.consumers * (64 + width // chain_wide.shares(config))
    return max(rows * width * depth / _PRODUCTS, (read + loaded) * depth / _SHARED, loaded * _ROW)
