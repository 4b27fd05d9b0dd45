"""Predicted times of the kernels that ONNX Runtime's CUDA provider runs, at their best.

Products are cuDNN's and cuBLAS's: the best of the tiles that such libraries have. Each step of an
epilogue that they do not fuse is an elementwise kernel. Constants were fitted to measurements on
one H200 (tests/plan/test_cost.py, test_depthwise.py, test_grouped.py and test_unaligned.py hold
them).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Protocol

from onnxbolt.archs import Arch, Capability
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import BIAS, EPILOGUES, MEAN
from onnxbolt.integers import ceil_divide
from onnxbolt.kernel_time import (
    EPILOGUE_US,
    PROLOGUE_US,
    SHARED_BYTES_PER_CLOCK,
    TENSOR_EFFICIENCY,
    US,
    TileTime,
    bandwidth,
    overlapped,
    sm_us,
)

# The part of a copy's bandwidth that elementwise kernels (activation, residual, broadcast bias)
# reach, fitted to whole CNNs: without cuDNN's fused bias ONNX Runtime takes 1.4 times as long for
# ResNet-50, RepVGG and MobileNetV3.
_ELEMENTWISE_EFFICIENCY = 0.7
_TRANSPOSE_EFFICIENCY = 0.6
_POOL_EFFICIENCY = 0.7

_TILES = ((128, 256), (256, 128), (128, 128), (256, 64), (64, 256), (128, 64), (64, 64))
_SPLITS = (1, 2, 4)
_K = 64  # elements of 2 bytes in a step along k
_FEW_CHANNELS = 16
# tile loads of a Hopper kernel that one read of L2 serves, on average over clusters of 2 and 4
_MULTICAST = 1.7

_ROTATION_KERNELS = 4  # two multiplications, an addition, and what exchanges and negates elements

# Kernels for the exporters' nodes of attention: four transpositions, two scales, two products and
# the softmax, and one more for a mask. How often the latter move the scores, without a mask.
_ATTENTION_KERNELS, _ATTENTION_PASSES = 9, 4
# Those of the operator Attention with a mask: two transpositions, two products and the softmax.
# With DETR's mask, 1050 pixels and 8 heads of 32 in fp16 it took about 40 us on an H100: 48.5 us
# of a model whose other kernels take 8.5.
_OPERATOR_KERNELS, _OPERATOR_PASSES = 5, 4
# How often q, k, v and the output are moved; the parts of the bandwidth and of the products' rate.
_ATTENTION_COPIES, _ATTENTION_BANDWIDTH, _ATTENTION_PRODUCTS = 1.5, 0.7, 0.4
# The part of the products' rate of flash attention, which the operator is in fp16 without a mask.
_FLASH_PRODUCTS = 0.13

# cuDNN's poolings of lines, which are images of width 1 to it: from so many positions on, a thread
# that goes through its window is taken to wait for L2 at each of them. That is inferred, and not
# measured by itself: a model of three convolutions and a mean over 1024 positions took 213 us on an
# H100, where 65 were planned without the mean; with other channels 195, where 63 were. Poolings of
# whole images take far less: of MobileNetV3's 438 us at batch 1 (H200) 467 are predicted without
# such waits, and with them its three means of 28x28 pixels alone would take 300.
_LARGE_WINDOW, _POSITION_US = 65, 0.13

# cuDNN's depthwise convolutions: microseconds of launches and set-up beyond one kernel's, and the
# parts of the bandwidth and of the products' rate that they reach.
_DEPTHWISE_US, _DEPTHWISE_BANDWIDTH, _DEPTHWISE_PRODUCTS = 3.5, 0.76, 0.30

# The time of cuDNN's grouped convolutions, relative to the same tiles without groups: with kernels
# for the channels of a group, and without. The factors were fitted to 15 layers of ResNeXt-50,
# RegNetX and RegNetY at batch 32 on one H200, in the faster of both layouts
# (tests/plan/test_grouped.py holds them).
_OWN_GROUPED_KERNELS = (4, 8, 16, 32)
_OWN, _OTHER = 1.6, 3.5

# The time of cuDNN's convolutions whose input channels are no multiple of 8 (fp16), relative to the
# same tiles: it pads them, or takes kernels with narrow accesses. Fitted to the six layers of
# benchmarks/padding.py on one H200 (tests/plan/test_unaligned.py holds them).
_UNALIGNED = 2.4


@dataclass(frozen=True)
class Library:
    """The steps behind a product that a library's kernels compute as well."""

    bias: bool  # for every type
    f32: tuple[tuple[str, ...], ...]  # for fp32, the longest first

    def unfused(self, steps: tuple[str, ...], dtype: DType) -> tuple[str, ...]:
        """The epilogue's steps that ONNX Runtime runs as kernels of their own, each repeated for
        each of its kernels."""
        if dtype is DType.F32:
            for fused in self.f32:
                if steps[: len(fused)] == fused:
                    return steps[len(fused) :]
        kept = [
            step
            for step, after in itertools.zip_longest(steps, steps[1:])
            if not (step == BIAS and (self.bias or (after and EPILOGUES[after].in_ort.with_bias)))
        ]
        return tuple(step for step in kept for _ in range(EPILOGUES[step].in_ort.kernels))


# The provider's option fuse_conv_bias; in fp32 alone also FusedConv and cuBLASLt's bias are used.
CUDNN = Library(bias=True, f32=(("Bias", "Add", "Relu"), ("Bias", "Relu"), ("Bias",)))
CUBLAS = Library(bias=False, f32=(("Bias",),))


class Product(Protocol):
    """A matrix product, or a convolution as an implicit one: one layer of problems.Product."""

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def taps(self) -> int: ...
    @property
    def groups(self) -> int: ...
    @property
    def depthwise(self) -> bool: ...
    @property
    def flops(self) -> int: ...
    @property
    def x_elements(self) -> int: ...
    @property
    def input_elements(self) -> int: ...
    @property
    def dtype(self) -> DType: ...
    def row_tiles(self, height: int) -> int: ...


def elementwise_us(size: int, arch: Arch) -> float:
    """Microseconds of an elementwise kernel that reads and writes `size` bytes in all."""
    return arch.launch_us + size / (_ELEMENTWISE_EFFICIENCY * bandwidth(arch)) * US


def rotation_us(size: int, arch: Arch) -> float:
    """Microseconds of the elementwise kernels that rotate `size` bytes."""
    return _ROTATION_KERNELS * elementwise_us(3 * size, arch)


def tensors_moved(step: str) -> int:
    """The number of tensors of the output's size that a step's kernel reads and writes."""
    if step == MEAN:
        return 1
    return 3 if EPILOGUES[step].operand == "tensor" else 2


def transpose_us(elements: int, dtype: DType, arch: Arch) -> float:
    """Microseconds of a transpose of `elements` values, each read and written once."""
    moved = 2 * elements * dtype.bytes
    return arch.launch_us + moved / (_TRANSPOSE_EFFICIENCY * bandwidth(arch)) * US


def pool_us(read: int, written: int, dtype: DType, arch: Arch) -> float:
    """Microseconds of a pooling that reads `read` values (overlapping windows share them in the
    cache) and writes `written`."""
    moved = (read + written) * dtype.bytes
    return arch.launch_us + moved / (_POOL_EFFICIENCY * bandwidth(arch)) * US


def line_pool_us(read: int, written: int, positions: int, dtype: DType, arch: Arch) -> float:
    """Microseconds of cuDNN's pooling of lines, whose windows have so many positions."""
    us = pool_us(read, written, dtype, arch)
    if positions < _LARGE_WINDOW:
        return us
    return max(us, arch.launch_us + positions * _POSITION_US)


def attention_us(
    operands: int, scores: int, flops: int, masked: bool, dtype: DType, arch: Arch
) -> float:
    """Microseconds of attention as the exporters' nodes, which go through memory with the scores.
    `operands` are bytes of q, k, v and the output."""
    kernels, passes = _ATTENTION_KERNELS + masked, _ATTENTION_PASSES + 2 * masked
    return _through_memory_us(kernels, operands, passes * scores, flops, dtype, arch)


def attention_operator_us(
    operands: int, scores: int, flops: int, masked: bool, dtype: DType, arch: Arch
) -> float:
    """Microseconds of the operator Attention: flash attention, but not with a mask or in fp32."""
    if not masked and dtype is not DType.F32:
        return arch.launch_us + flops / (_FLASH_PRODUCTS * arch.rate(dtype)) * US
    moved = _OPERATOR_PASSES * scores
    return _through_memory_us(_OPERATOR_KERNELS, operands, moved, flops, dtype, arch)


def _through_memory_us(
    kernels: int, operands: int, moved_scores: int, flops: int, dtype: DType, arch: Arch
) -> float:
    moved = 2 * _ATTENTION_COPIES * operands + moved_scores * dtype.bytes
    products = flops / (_ATTENTION_PRODUCTS * arch.rate(dtype))
    seconds = moved / (_ATTENTION_BANDWIDTH * arch.bandwidth) + products
    return kernels * arch.launch_us + seconds * US


def library_us(product: Product, arch: Arch) -> float:
    """Microseconds of cuDNN's convolution or cuBLAS's GEMM alone, with the best of their tiles, and
    with K split if that helps."""
    if product.depthwise:
        return _depthwise_us(product, arch)
    times = (_tile_us(product, m, n, split, arch) for m, n in _TILES for split in _SPLITS)
    us = min(times)
    if product.groups == 1:
        return us * (_UNALIGNED if _is_unaligned(product) else 1.0)
    return us * (_OWN if product.depth in _OWN_GROUPED_KERNELS else _OTHER)


def _is_unaligned(product: Product) -> bool:
    """True for a convolution, no stem, whose channels are no whole accesses of 16 bytes."""
    few = product.depth < _FEW_CHANNELS
    return product.taps > 1 and not few and product.depth % product.dtype.alignment != 0


def _depthwise_us(product: Product, arch: Arch) -> float:
    """Microseconds of cuDNN's depthwise kernel in NHWC."""
    values = product.x_elements + product.rows * product.columns
    moved = values * product.dtype.bytes / (_DEPTHWISE_BANDWIDTH * arch.bandwidth)
    products = product.flops / (_DEPTHWISE_PRODUCTS * arch.fp32_flops)
    return arch.launch_us + _DEPTHWISE_US + (moved + products) * US


def _tile_us(product: Product, m: int, n: int, split: int, arch: Arch) -> float:
    """Microseconds of a kernel with tiles of m x n: products at the tensor cores' full rate, loads
    from L2, and no epilogue."""
    rows, columns, size = product.rows, product.columns, product.dtype.bytes
    k = _K * 2 // size
    l2 = arch.l2_bandwidth / arch.sm_count
    products = 2 * m * n * k / (arch.rate(product.dtype) * TENSOR_EFFICIENCY / arch.sm_count)
    shared = (ceil_divide(m, 64) * (64 + n) + m + n) * k * size
    read = shared / (SHARED_BYTES_PER_CLOCK * arch.clock)
    loads = (m + n) * k * size / (l2 * (_MULTICAST if arch.has(Capability.CLUSTERS) else 1.0))
    step = max(products, read, loads) * US
    steps = ceil_divide(_steps(product, k), split)
    partial = m * n * 8 * (split - 1) / split / l2 * US  # fp32, written and read again
    store = EPILOGUE_US + m * n * size / (bandwidth(arch) / arch.sm_count) * US + partial
    tiles = product.row_tiles(m) * ceil_divide(columns, n) * split
    time = TileTime(PROLOGUE_US + steps * step, store)
    compute = sm_us(ceil_divide(tiles, arch.sm_count), 2, time)
    memory = (product.input_elements + rows * columns) * size / bandwidth(arch) * US
    return arch.launch_us + overlapped(compute, memory)


def _steps(product: Product, tile_k: int) -> int:
    """Steps of a main loop: cuDNN pads a stem convolution's few channels to 16 and packs filter
    positions along k."""
    if product.depth < _FEW_CHANNELS:
        return ceil_divide(product.taps * _FEW_CHANNELS, tile_k)
    return product.taps * ceil_divide(product.depth, tile_k)
