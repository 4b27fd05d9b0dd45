"""Predicted times of ONNX Runtime's CUDA provider at its best for the nodes that a kernel would
replace.

The products are cuDNN's and cuBLAS's: the best of the tiles that such libraries have. Each step of
an epilogue that they do not fuse is an elementwise kernel.
"""

from __future__ import annotations

import functools

from onnxbolt.archs import Arch, Capability
from onnxbolt.families.blocks.memory import US, bandwidth, input_elements, overlapped
from onnxbolt.families.blocks.tiled import (
    EPILOGUE_US,
    PROLOGUE_US,
    SHARED_BYTES_PER_CLOCK,
    TENSOR_EFFICIENCY,
    TileTime,
    k_steps,
    sm_us,
)
from onnxbolt.integers import ceil_divide
from onnxbolt.plan.unfused import tensors_moved, unfused_steps
from onnxbolt.problems import ConvProblem, GemmProblem, SqueezeExciteProblem

Problem = GemmProblem | ConvProblem

# Of a copy's bandwidth, what elementwise kernels (activation, residual, broadcast bias) reach. It
# is fitted to whole CNNs: without cuDNN's fused bias ONNX Runtime takes 1.4 times as long for
# ResNet-50, RepVGG, MobileNetV3.
_ELEMENTWISE_EFFICIENCY = 0.7

_TILES = ((128, 256), (256, 128), (128, 128), (256, 64), (64, 256), (128, 64), (64, 64))
_SPLITS = (1, 2, 4)
_K = 64  # elements of 2 bytes
_FEW_CHANNELS = 16
# of a Hopper kernel: tile loads that one read of L2 serves, on average over clusters of 2 and 4
_MULTICAST = 1.7

# Of cuDNN's depthwise convolutions: launches and set-up beyond one kernel's, part of the bandwidth,
# part of the products' rate.
_DEPTHWISE_US, _DEPTHWISE_BANDWIDTH, _DEPTHWISE_PRODUCTS = 3.5, 0.76, 0.30

# How many times longer cuDNN takes for grouped convolutions than for the same tiles without groups,
# where it has kernels for the channels of a group, and where not. The factors were fitted to 15
# layers of ResNeXt-50, RegNetX and RegNetY at batch 32 on one H200, in the faster of both layouts
# (tests/plan/test_grouped.py holds them).
_OWN_GROUPED_KERNELS = (4, 8, 16, 32)
_OWN, _OTHER = 1.6, 3.5

# Of squeeze-and-excitation: the mean, two products, each with bias and activation, and the gating.
_EXCITE_KERNELS, _EXCITE_KERNEL_US, _EXCITE_BANDWIDTH = 8, 1.0, 0.6


@functools.lru_cache(maxsize=4096)
def ort_us(problem: Problem | SqueezeExciteProblem, arch: Arch) -> float:
    """Microseconds for the nodes of `problem`, with NHWC, a CUDA graph and cuDNN's fused bias."""
    if isinstance(problem, SqueezeExciteProblem):
        moved = 1.5 * problem.image_bytes / (_EXCITE_BANDWIDTH * arch.bandwidth) * US
        return _EXCITE_KERNELS * (arch.launch_us + _EXCITE_KERNEL_US) + moved
    if problem.inner:
        return sum(ort_us(layer, arch) for layer in problem.layers)
    size = problem.rows * problem.columns * problem.dtype.bytes
    steps = unfused_steps(problem)
    behind = sum(elementwise_us(size * tensors_moved(step), arch) for step in steps)
    return library_us(problem, arch) + behind


def elementwise_us(size: int, arch: Arch) -> float:
    """An elementwise kernel that reads and writes `size` bytes in all."""
    return arch.launch_us + size / (_ELEMENTWISE_EFFICIENCY * bandwidth(arch)) * US


def library_us(problem: Problem, arch: Arch) -> float:
    """cuDNN's convolution or cuBLAS's GEMM alone: the best of their tiles, K split where that
    helps."""
    if isinstance(problem, ConvProblem) and problem.depthwise:
        return _depthwise_us(problem, arch)
    times = (_tile_us(problem, m, n, split, arch) for m, n in _TILES for split in _SPLITS)
    us = min(times)
    if not isinstance(problem, ConvProblem) or problem.groups == 1:
        return us
    return us * (_OWN if problem.depth in _OWN_GROUPED_KERNELS else _OTHER)


def _depthwise_us(problem: ConvProblem, arch: Arch) -> float:
    """cuDNN's kernel in NHWC."""
    values = problem.n * problem.h * problem.w * problem.c + problem.rows * problem.k
    moved = values * problem.dtype.bytes / (_DEPTHWISE_BANDWIDTH * arch.bandwidth)
    products = problem.flops / (_DEPTHWISE_PRODUCTS * arch.fp32_flops)
    return arch.launch_us + _DEPTHWISE_US + (moved + products) * US


def _tile_us(problem: Problem, m: int, n: int, split: int, arch: Arch) -> float:
    """A kernel with tile m x n: the products at full tensor-core rate, loads from L2, and no
    epilogue."""
    rows, columns, size = problem.rows, problem.columns, problem.dtype.bytes
    k = _K * 2 // size
    l2 = arch.l2_bandwidth / arch.sm_count
    products = 2 * m * n * k / (arch.rate(problem.dtype) * TENSOR_EFFICIENCY / arch.sm_count)
    shared = (ceil_divide(m, 64) * (64 + n) + m + n) * k * size
    read = shared / (SHARED_BYTES_PER_CLOCK * arch.clock)
    loads = (m + n) * k * size / (l2 * (_MULTICAST if arch.has(Capability.CLUSTERS) else 1.0))
    step = max(products, read, loads) * US
    steps = ceil_divide(_steps(problem, k), split)
    partial = m * n * 8 * (split - 1) / split / l2 * US  # fp32, written and read again
    store = EPILOGUE_US + m * n * size / (bandwidth(arch) / arch.sm_count) * US + partial
    tiles = ceil_divide(rows, m) * ceil_divide(columns, n) * split
    time = TileTime(PROLOGUE_US + steps * step, store)
    compute = sm_us(ceil_divide(tiles, arch.sm_count), 2, time)
    memory = (input_elements(problem) + rows * columns) * size / bandwidth(arch) * US
    return arch.launch_us + overlapped(compute, memory)


def _steps(problem: Problem, tile_k: int) -> int:
    """Of a main loop: cuDNN pads a first layer's few channels to 16 and packs filter positions
    along k."""
    if isinstance(problem, ConvProblem) and problem.c // problem.groups < _FEW_CHANNELS:
        return ceil_divide(problem.r * problem.s * _FEW_CHANNELS, tile_k)
    return k_steps(problem, tile_k)
