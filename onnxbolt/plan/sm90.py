"""Predicted times of our own sm_90a kernels (GEMM_SM90, CONV_SM90), one block to an SM.

A tile's k-block takes what the slowest of tensor cores, shared memory and TMA takes; a tile a fixed time more, and its epilogue,
of which PINGPONG hides what fits under other tiles' main loops. The constants were fitted to 740 measurements on one H200
(ResNet-50's and VGG-16's convolutions, six GEMMs; root mean square of the relative error 13%).
"""
from __future__ import annotations

from onnxbolt.archs import Arch
from onnxbolt.epilogues import EPILOGUES
from onnxbolt.kernels.config import KernelConfig, Schedule
from onnxbolt.kernels.sm90 import Problem, extent, is_matrix, k_blocks, stages, tiles

LAUNCH_US = 0.9  # of a chain of these kernels, which begin before the one before has ended
_CLOCKS_PER_US = 1755.0  # under load
_PRODUCTS = 4096 * 0.82  # FLOP a clock of one SM's tensor cores, fp16
_SHARED = 128 * 1.1  # bytes a clock of shared memory, reads and writes
_MATRIX_LOAD, _IM2COL_LOAD, _WEIGHT_LOAD = 75.0, 70.0, 97.0  # bytes a clock that TMA brings in
_IM2COL_CLOCKS = 226.0  # of each im2col copy, whatever its size
_LATENCY_CLOCKS = 620.0  # from a stage's request to its arrival
_TILE_US, _EPILOGUE_US = 0.44, 0.13
_STORE = 20.0  # bytes a clock of one SM, residuals included
_LANES = 128 * 2.0  # operations of an epilogue in a clock
_STAGING_OPERATIONS = 0.34  # of each output, beside its chain's
_SPLIT_US = 1.1  # of the barriers of a cluster
_REMOTE = 11.0  # bytes a clock that one SM sends to others
_HIDDEN = 0.5  # part of a cooperative kernel's epilogues that does not count where a block has several tiles


def compute_us(problem: Problem, config: KernelConfig, arch: Arch) -> float:
    """The most loaded SM's time, device memory aside."""
    rows, columns, _ = config.threadblock
    split = config.split_k
    main = _TILE_US + _ceil(k_blocks(config, problem), split) * _block_clocks(problem, config, arch) / _CLOCKS_PER_US
    epilogue = _epilogue_us(problem, rows * columns / split)
    if split > 1:
        epilogue += _SPLIT_US + rows * columns * 4 * (split - 1) / split / _REMOTE / _CLOCKS_PER_US
    count = _ceil(tiles(config, problem) * split, arch.sm_count)
    if config.schedule is Schedule.PINGPONG:
        return max(count * main, count * (main + epilogue) / config.consumers) + epilogue
    return count * (main + epilogue * (_HIDDEN if count > 1 else 1.0))


def _block_clocks(problem: Problem, config: KernelConfig, arch: Arch) -> float:
    """One k-block of one tile."""
    rows, columns, k = config.threadblock
    size = problem.dtype.bytes
    products = 2 * rows * columns * k / (_PRODUCTS * 2 / size)
    a, b = rows * k * size, 0 if config.resident else columns * k * size
    shared = (rows // 64 * (64 + columns) * k * size + a + b) / _SHARED
    load = b / config.cluster[0] / _WEIGHT_LOAD
    load += a / _MATRIX_LOAD if is_matrix(problem) else _IM2COL_CLOCKS + a / _IM2COL_LOAD
    return max(products, shared, load, _LATENCY_CLOCKS / stages(config, problem, arch))


def _epilogue_us(problem: Problem, outputs: float) -> float:
    tensors = sum(EPILOGUES[step].operand == "tensor" for step in problem.chain)
    moved = outputs * (problem.out.bytes + tensors * problem.dtype.bytes) / _STORE
    operations = outputs * (_STAGING_OPERATIONS + sum(EPILOGUES[step].cost for step in problem.chain)) / _LANES
    return _EPILOGUE_US + (moved + operations) / _CLOCKS_PER_US


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
