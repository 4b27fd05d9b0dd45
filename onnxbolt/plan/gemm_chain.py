"""Predicted microseconds of several GEMMs in one kernel: weights and rows come through L2, layers
follow one another.

The constants of B2B_GEMM_SM90 were fitted to 219 measurements of 56 chains on one H200: layers of
16 to 256 columns, two to four of them together, 1,024 to 128,320 rows (root mean square of the
logarithm of the error 12%); memory's part again to 38 later ones (6%).
"""

from __future__ import annotations

from onnxbolt.archs import Arch
from onnxbolt.integers import ceil_divide
from onnxbolt.kernels import chain
from onnxbolt.kernels.config import Family, GemmProblem, KernelConfig
from onnxbolt.plan import chain_2x, chain_wide

_LAUNCH_US = 1.8  # the first loads and the last stores included
_US = 1e6
_PRODUCTS = 0.70  # of the data sheet's rate, where all warpgroups of an SM are at it
_ACTIVATION_US = 0.0024  # of 64 rows of one column, during which their warpgroup multiplies nothing
_L2 = 1.44  # of the rate in arch.l2_bandwidth: blocks ask for the same weights
_STAYING = 0.35  # part of the weights' arrival that products have to wait for
# bytes in a microsecond of rows that TMA cannot read, on top of the rest of a tile
_GATHERED = 4.5e4
_MEMORY = 1.04  # of a copy's time over the same bytes
_LOSS = 0.15  # part of the shorter of (compute, memory) that is not hidden behind the longer

_SMALL_PROLOGUE_US, _SMALL_LOSS = 0.4, 0.3
_FP32_EFFICIENCY = 0.4  # of CUDA cores, which also read weights and convert


def fused_us(problem: GemmProblem, config: KernelConfig, arch: Arch, memory_us: float) -> float:
    """One launch; `memory_us` is what a copy of x, the weights and y takes."""
    if config.family is Family.B2B_GEMM_WIDE_SM90:
        return chain_wide.fused_us(problem, config, arch, memory_us)
    if config.family is Family.B2B_GEMM_2X:
        return chain_2x.fused_us(problem, config, arch, memory_us)
    if config.family is Family.B2B_GEMM_SMALL:
        return (
            arch.launch_us
            + _SMALL_PROLOGUE_US
            + _overlapped(_small_us(problem, config, arch), memory_us, _SMALL_LOSS)
        )
    return _LAUNCH_US + _overlapped(_tiles_us(problem, config, arch), memory_us * _MEMORY, _LOSS)


def _small_us(problem: GemmProblem, config: KernelConfig, arch: Arch) -> float:
    """A row to a thread of the CUDA cores."""
    return problem.m * sum(_layers(config)) / (arch.fp32_flops * _FP32_EFFICIENCY) * _US


def _tiles_us(problem: GemmProblem, config: KernelConfig, arch: Arch) -> float:
    """Tiles one after the other on each ring: the slowest of all warpgroups' products, loads
    from L2, and one warpgroup by itself."""
    rows, layers = config.threadblock[0], _layers(config)
    rings = config.consumers if config.resident else 1
    tiles = ceil_divide(problem.m, rows)
    blocks = min(tiles, arch.sm_count)
    from_l2 = _L2 * arch.l2_bandwidth / blocks / _US  # bytes in a microsecond that one block gets
    passing = rows * config.threadblock[2] * problem.dtype.bytes * rings + (
        0 if config.resident else layers[0]
    )
    rate = arch.flops[problem.dtype] / arch.sm_count / _US
    group = 64 * sum(layers) / rate + _ACTIVATION_US * sum(chain.columns(config))
    gathering = (
        0.0
        if config.align_a == problem.dtype.alignment
        else rows * config.threadblock[2] * problem.dtype.bytes / _GATHERED
    )
    turn = (
        max(rows * sum(layers) * rings / (rate * _PRODUCTS), passing / from_l2, group) + gathering
    )
    staying = sum(layers if config.resident else layers[1:])
    return _STAYING * staying / from_l2 + ceil_divide(tiles, blocks * rings) * turn


def _layers(config: KernelConfig) -> list[int]:
    """Of each layer the FLOP of a row, which is also the bytes of its weights; zeros included."""
    widths = chain.columns(config)
    return [2 * n * k for n, k in zip(widths, (config.threadblock[2], *widths), strict=False)]


def _overlapped(compute: float, memory: float, loss: float) -> float:
    return max(compute, memory) + loss * min(compute, memory)
