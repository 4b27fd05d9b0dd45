"""Predicted microseconds of several GEMMs in one kernel: weights and rows come through L2, layers follow one another.

Fitted to ten chains on one H200 (GEMMs of recommenders, 777 to 128,320 rows): within 25% of what the best of their kernels takes.
"""
from __future__ import annotations

from onnxbolt.archs import Arch
from onnxbolt.kernels import chain
from onnxbolt.kernels.config import Family, GemmProblem, KernelConfig
from onnxbolt.plan import sm90

_PROLOGUE_US = 0.4
_US = 1e6
_TENSOR_EFFICIENCY = 0.80  # of the data sheet's rate
_FP32_EFFICIENCY = 0.4  # of CUDA cores, which also read weights and convert
_L2_BYTES_PER_CLOCK = 64  # that one SM gets, where few of them ask
_RESIDENT_LOAD = 2.0  # weights that all blocks ask for at the same time, before anything else
_LAYER_US = 0.15  # of a tile: its epilogue


def launch_us(config: KernelConfig, arch: Arch) -> float:
    """Before the first rows are computed."""
    return _PROLOGUE_US + (sm90.LAUNCH_US if config.family is Family.CHAIN_SM90 else arch.launch_us)


def compute_us(problem: GemmProblem, config: KernelConfig, arch: Arch) -> float:
    """Device memory aside."""
    widths = chain.columns(config)
    products = sum(n * k for n, k in zip(widths, (config.threadblock[2], *widths), strict=False))  # of a row
    if config.family is Family.CHAIN_SMALL:
        return 2 * problem.m * products / (arch.fp32_flops * _FP32_EFFICIENCY) * _US
    return _tiles_us(problem, config, arch)


def _tiles_us(problem: GemmProblem, config: KernelConfig, arch: Arch) -> float:
    """Tiles one after the other on each ring."""
    rows, widths = config.threadblock[0], chain.columns(config)
    layers = [2 * n * k for n, k in zip(widths, (config.threadblock[2], *widths), strict=False)]  # FLOP of a row, bytes of weights
    rings = config.consumers if config.resident else 1
    tiles = _ceil(problem.m, rows)
    blocks = min(tiles, arch.sm_count)
    from_l2 = min(arch.l2_bandwidth / blocks, _L2_BYTES_PER_CLOCK * arch.clock)  # what one SM gets
    passing = rows * config.threadblock[2] * problem.dtype.bytes * rings + (0 if config.resident else layers[0])
    staying = sum(layers) * _RESIDENT_LOAD if config.resident else sum(layers[1:])
    products = rows * sum(layers) * rings / (arch.flops[problem.dtype] * _TENSOR_EFFICIENCY / arch.sm_count) * _US
    turn = max(products, passing / from_l2 * _US) + _LAYER_US * len(widths)
    return staying / from_l2 * _US + _ceil(tiles, blocks * rings) * turn


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
