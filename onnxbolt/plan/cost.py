"""Predicted run times, without a GPU: of fused kernels, and of what ONNX Runtime does with the same
nodes.

Everything is a pure function and answers in microseconds, for the reference GPU of an architecture.
A tiled kernel's time is that of its most loaded SM (wave quantization): tiles x (prologue + K steps
+ epilogue), where a K step is bound by the tensor cores, by shared memory or by L2, whichever is
slowest; device memory is a second bound for the whole kernel. The constants were fitted to
measurements on one H200 (tests/plan/test_cost.py holds them); on other architectures the same
formulas run with that architecture's facts.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from onnxbolt.archs import Arch, get
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, MEAN, STORE, has_inner_residual
from onnxbolt.errors import InputError
from onnxbolt.integers import ceil_divide
from onnxbolt.kernels import chain_halo, conv, gemm, halo, mean
from onnxbolt.kernels import squeeze_excite as squeeze_excite_kernel
from onnxbolt.kernels.config import (
    ConvProblem,
    Family,
    GemmProblem,
    Iterator,
    KernelConfig,
    Schedule,
    SqueezeExciteProblem,
)
from onnxbolt.kernels.feasibility import blocks_per_sm, tile_bytes, warps
from onnxbolt.kernels.sm90 import extent
from onnxbolt.plan import (
    chain_2x,
    chain_conv,
    chain_stored,
    depthwise,
    first,
    gemm_chain,
    grouped,
    sm90,
    squeeze_excite,
)
from onnxbolt.plan.unfused import tensors_moved, unfused_steps

Problem = GemmProblem | ConvProblem
AnyProblem = Problem | SqueezeExciteProblem

_US = 1e6
_TENSOR_EFFICIENCY = 0.80  # of the data sheet's rate that long main loops sustain
_MEMORY_EFFICIENCY = 0.90  # of the data sheet's bandwidth that a copy reaches
_OVERLAP_LOSS = 0.3  # part of the shorter of (compute, memory) that is not hidden behind the longer
_SHARED_BYTES_PER_CLOCK = 128  # one SM's shared memory, reads and writes together
# two to each tensor core, so that one's loads hide behind the other's products
_WARPS_FOR_FULL_RATE = 8
_PROLOGUE_US = 0.8  # a tile's index arithmetic and first loads
_EPILOGUE_US = 0.5  # a tile's staging through shared memory and last store
_FP32_LANES = 128  # instructions a clock on one SM
# how much of the load rate remains where an access has fewer bytes than 16 (more instructions for
# the same tile)
_ACCESS_RATE = {16: 1.0, 8: 0.7, 4: 0.5, 2: 0.3}
# Of a copy's bandwidth, what elementwise kernels of ONNX Runtime (activation, residual, broadcast
# bias), transposes and poolings reach. The first is fitted to whole CNNs: without cuDNN's fused
# bias ONNX Runtime takes 1.4 times as long for ResNet-50, RepVGG, MobileNetV3.
_ELEMENTWISE_EFFICIENCY = 0.7
_TRANSPOSE_EFFICIENCY = 0.6
_LAYOUT_EFFICIENCY = 0.9
_POOL_EFFICIENCY = 0.7


@functools.lru_cache(maxsize=4096)  # models repeat their layers
def predict(problem: AnyProblem, arch_number: int) -> tuple[KernelConfig, float]:
    """The best candidate for `problem` on architecture 75, 80, 86, 89 or 90, and its predicted
    microseconds.

    Raises InputError where the architecture has no kernel for it (a type without tensor cores,
    groups); ask `supports` first.
    """
    arch = get(arch_number)
    fastest = next(iter(ranked(problem, arch)), None)
    if fastest is None:
        raise InputError(
            f"{arch.name}: no kernel for {problem}; plan for another architecture or leave the node"
            " to ONNX Runtime"
        )
    us, config = fastest
    return config, us


@functools.lru_cache(maxsize=1024)
def ranked(problem: AnyProblem, arch: Arch) -> tuple[tuple[float, KernelConfig], ...]:
    """Every candidate with its predicted microseconds, the fastest first."""
    return tuple(
        sorted((fused_us(problem, config, arch), config) for config in candidates(problem, arch))
    )


@functools.lru_cache(maxsize=4096)  # asked far more often than for times
def supports(problem: AnyProblem, arch_number: int) -> bool:
    """Whether the architecture has any kernel for `problem`."""
    return bool(candidates(problem, get(arch_number)))


@functools.lru_cache(maxsize=1024)
def candidates(problem: AnyProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """The configurations of whichever kernel family `problem` is for."""
    if isinstance(problem, SqueezeExciteProblem):
        return squeeze_excite_kernel.candidates(problem, arch)
    return (
        conv.candidates(problem, arch)
        if isinstance(problem, ConvProblem)
        else gemm.candidates(problem, arch)
    )


def fused_us(problem: AnyProblem, config: KernelConfig, arch: Arch) -> float:
    """One launch of the kernel `config`, epilogue chain included."""
    if isinstance(problem, SqueezeExciteProblem):
        return squeeze_excite.fused_us(problem, arch)
    if isinstance(problem, ConvProblem) and config.family is Family.DEPTHWISE:
        return arch.launch_us + _overlapped(
            depthwise.compute_us(problem, config, arch), _memory_us(problem, arch)
        )
    if isinstance(problem, ConvProblem) and config.family in (
        Family.STEM_SM90,
        Family.B2B_STEM_SM90,
    ):
        return (
            arch.launch_us
            + first.PROLOGUE_US
            + _overlapped(first.compute_us(problem, config, arch), _memory_us(problem, arch))
        )
    if config.family is Family.B2B_STORED_SM90:
        return chain_stored.fused_us(problem, config, arch, _memory_us(problem, arch))
    if isinstance(problem, GemmProblem) and (
        problem.inner or config.family is Family.GEMM_ROWS_SM90
    ):
        return gemm_chain.fused_us(problem, config, arch, _memory_us(problem, arch))
    if isinstance(problem, ConvProblem) and config.family is Family.B2B_CONV_2X:
        return chain_2x.conv_us(problem, config, arch, _memory_us(problem, arch))
    if isinstance(problem, ConvProblem) and config.family is Family.B2B_CONV_SM90:
        return chain_conv.fused_us(problem, config, arch, _memory_us(problem, arch))
    if isinstance(problem, ConvProblem) and config.family in (
        Family.HALO_SM90,
        Family.B2B_HALO_SM90,
    ):
        cycles = (chain_halo if problem.inner else halo).cycles(problem, config, arch)
        return sm90.LAUNCH_US + _overlapped(cycles / arch.clock * _US, _memory_us(problem, arch))
    if config.family in (Family.GEMM_SM90, Family.CONV_SM90):
        if isinstance(problem, ConvProblem) and problem.both_forms:
            return fused_us(problem.in_rows, config, arch) + sm90.planes_us(problem, config, arch)
        problem = sm90.in_whole_sectors(problem)
        return sm90.fused_us(mean.in_whole_blocks(problem), config, arch, _memory_us(problem, arch))
    tile, (m, n) = _tile(problem, config, arch), extent(problem)
    groups = problem.groups if isinstance(problem, ConvProblem) else 1
    tiles = (
        ceil_divide(m, config.threadblock[0])
        * ceil_divide(n // groups, config.threadblock[1])
        * groups
    )
    compute = _sm_us(
        ceil_divide(tiles, arch.sm_count), _resident(config, problem.dtype, arch), tile
    )
    return arch.launch_us + _overlapped(compute, _memory_us(problem, arch))


def floor_us(problem: AnyProblem, arch: Arch) -> float:
    """The roofline: the data sheet's rate of products, or each tensor once through device
    memory, whichever takes longer."""
    if isinstance(problem, SqueezeExciteProblem):
        return squeeze_excite.floor_us(problem, arch)
    on_cuda_cores = isinstance(problem, ConvProblem) and problem.depthwise
    rate = arch.fp32_flops if on_cuda_cores else arch.flops[problem.dtype]
    return max(problem.flops / rate * _US, _memory_us(problem, arch) * _MEMORY_EFFICIENCY)


@functools.lru_cache(maxsize=4096)
def ort_us(problem: AnyProblem, arch: Arch) -> float:
    """What ONNX Runtime's CUDA provider at its best (NHWC, CUDA graph, cuDNN's fused bias) takes
    for the same nodes: cuDNN's or cuBLAS's kernel, and one elementwise kernel for each step of
    the chain that it does not fuse."""
    if isinstance(problem, SqueezeExciteProblem):
        return squeeze_excite.ort_us(problem, arch)
    if problem.inner:
        return sum(ort_us(layer, arch) for layer in problem.layers)
    m, n = extent(problem)
    size = m * n * problem.dtype.bytes
    steps = unfused_steps(problem)
    return library_us(problem, arch) + sum(
        elementwise_us(size * tensors_moved(step), arch) for step in steps
    )


def elementwise_us(size: int, arch: Arch) -> float:
    """An elementwise kernel that reads and writes `size` bytes in all."""
    return arch.launch_us + size / (_ELEMENTWISE_EFFICIENCY * _bandwidth(arch)) * _US


def layout_us(size: int, arch: Arch) -> float:
    """Our change of layout, which reads and writes `size` bytes in all."""
    return arch.launch_us + size / (_LAYOUT_EFFICIENCY * _bandwidth(arch)) * _US


def transpose_us(elements: int, dtype: DType, arch: Arch) -> float:
    """A layout change of `elements` values, each read and written once."""
    return (
        arch.launch_us
        + 2 * elements * dtype.bytes / (_TRANSPOSE_EFFICIENCY * _bandwidth(arch)) * _US
    )


def pool_us(read: int, written: int, dtype: DType, arch: Arch) -> float:
    """A pooling that reads `read` values (overlapping windows meet in the cache) and writes
    `written`."""
    return (
        arch.launch_us
        + (read + written) * dtype.bytes / (_POOL_EFFICIENCY * _bandwidth(arch)) * _US
    )


def library_us(problem: Problem, arch: Arch) -> float:
    """cuDNN's convolution or cuBLAS's GEMM alone: the best of the tiles that such libraries
    have, K split where that helps."""
    if isinstance(problem, ConvProblem) and problem.depthwise:
        return depthwise.library_us(problem, arch)
    us = min(
        _library_tile_us(problem, m, n, split, arch)
        for m, n in _LIBRARY_TILES
        for split in _LIBRARY_SPLITS
    )
    return us * grouped.library_factor(problem) if isinstance(problem, ConvProblem) else us


# --- one tile -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tile:
    """One tile's microseconds on an SM that it has to itself."""

    mainloop: float
    epilogue: float


def _tile(problem: Problem, config: KernelConfig, arch: Arch) -> _Tile:
    steps = _k_steps(problem, config.threadblock[2], config.iterator)
    access = _ACCESS_RATE[config.align_a * problem.dtype.bytes]
    store = _ACCESS_RATE[config.align_c * problem.dtype.bytes]
    mainloop = _PROLOGUE_US + steps * _step_us(config, problem.dtype, access, arch)
    return _Tile(mainloop, _epilogue_us(problem, config.threadblock[:2], arch) / store)


def _step_us(config: KernelConfig, dtype: DType, access: float, arch: Arch) -> float:
    """One step along K of one tile: the slowest of products, shared-memory traffic and loads
    from L2."""
    m, n, k = config.threadblock
    rate = arch.flops[dtype] * _TENSOR_EFFICIENCY / arch.sm_count
    loaded = tile_bytes(config, dtype)
    if config.family is Family.GEMM_3X:
        # each consumer warpgroup reads its 64 rows of A, and all of B; a cluster shares what its
        # blocks load
        read = max(m // 64, 1) * (64 + n) * k * dtype.bytes
        fetched = (m / config.cluster[1] + n / config.cluster[0]) * k * dtype.bytes
    else:
        rate *= arch.mma_sync_share * min(1.0, _issue_rate(config, dtype, arch))
        read = warps(config) * (config.warp[0] + config.warp[1]) * k * dtype.bytes
        fetched = float(loaded)
    products = 2 * m * n * k / rate
    shared = (read + loaded) / (_SHARED_BYTES_PER_CLOCK * arch.clock)
    l2 = fetched / (arch.l2_bandwidth / arch.sm_count * access)
    return max(products, shared, l2) * _US


def _issue_rate(config: KernelConfig, dtype: DType, arch: Arch) -> float:
    """Part of the tensor cores' rate that the warps resident on an SM can keep busy."""
    resident = warps(config) * blocks_per_sm(config, dtype, arch)
    return 0.6 + 0.4 * min(1.0, resident / _WARPS_FOR_FULL_RATE)


def _epilogue_us(problem: Problem, shape: tuple[int, ...], arch: Arch) -> float:
    """Writing one tile, reading its residuals, and the chain's instructions, at this SM's share
    of the GPU."""
    m, n = extent(problem)
    elements = min(shape[0], m) * min(shape[1], n)
    tensors = sum(EPILOGUES[step].operand == "tensor" for step in problem.chain)
    moved = elements * (problem.out.bytes + tensors * problem.dtype.bytes)
    instructions = elements * sum(EPILOGUES[step].cost for step in problem.chain)
    arithmetic = instructions / (_FP32_LANES * arch.clock) * _US
    return _EPILOGUE_US + moved / (_bandwidth(arch) / arch.sm_count) * _US + arithmetic


# --- one kernel -----------------------------------------------------------------------------------


def _sm_us(tiles: int, resident: float, tile: _Tile) -> float:
    """An SM that works through `tiles`: with several resident, one's epilogue hides behind
    another's main loop."""
    shorter, longer = sorted((tiles * tile.mainloop, tiles * tile.epilogue))
    return longer + shorter / min(resident, tiles)


def _resident(config: KernelConfig, dtype: DType, arch: Arch) -> float:
    """Tiles that overlap on an SM. Pingpong alternates two; a cooperative kernel loads the next
    tile during its epilogue."""
    if config.family is not Family.GEMM_3X:
        return blocks_per_sm(config, dtype, arch)
    return 2.0 if config.schedule is Schedule.PINGPONG else 1.5


def _memory_us(problem: Problem, arch: Arch) -> float:
    """Each tensor once through device memory."""
    m, n = extent(problem)
    tensors, stores = (
        sum(EPILOGUES[step].operand == "tensor" for step in problem.chain),
        STORE in problem.chain,
    )
    width = (*problem.inner, n)[0] if stores or has_inner_residual(problem.chain) else n
    written = (problem.n if isinstance(problem, ConvProblem) and MEAN in problem.chain else m) * n
    size = (
        _input_elements(problem) + m * width * (tensors + stores)
    ) * problem.dtype.bytes + written * problem.out.bytes
    return size / _bandwidth(arch) * _US


def _overlapped(compute: float, memory: float) -> float:
    return max(compute, memory) + _OVERLAP_LOSS * min(compute, memory)


def _bandwidth(arch: Arch) -> float:
    return arch.bandwidth * _MEMORY_EFFICIENCY


# --- the problem as a GEMM ------------------------------------------------------------------------


def _input_elements(problem: Problem) -> int:
    """Activation and weight."""
    if isinstance(problem, ConvProblem):
        weights = sum(
            layer.k * layer.r * layer.s * layer.c // layer.groups for layer in problem.layers
        )
        return problem.n * problem.h * problem.w * problem.c + weights
    return problem.m * problem.k + sum(layer.n * layer.k for layer in problem.layers)


def _k_steps(problem: Problem, tile_k: int, iterator: Iterator) -> int:
    """Main-loop steps: an implicit GEMM walks the channels of one filter position after the
    other, unless they are packed."""
    if not isinstance(problem, ConvProblem):
        return ceil_divide(problem.k, tile_k)
    if iterator is Iterator.FIXED_CHANNELS:
        return ceil_divide(problem.r * problem.s * problem.c, tile_k)
    return problem.r * problem.s * ceil_divide(problem.c // problem.groups, tile_k)


# --- ONNX Runtime ---------------------------------------------------------------------------------

_LIBRARY_TILES = ((128, 256), (256, 128), (128, 128), (256, 64), (64, 256), (128, 64), (64, 64))
_LIBRARY_SPLITS = (1, 2, 4)
_LIBRARY_K = 64  # elements of 2 bytes
_FEW_CHANNELS = 16
# of a Hopper library kernel: tile loads that one read of L2 serves, on average over clusters of 2
# and 4
_MULTICAST = 1.7


def _library_tile_us(problem: Problem, m: int, n: int, split: int, arch: Arch) -> float:
    """A vendor kernel with tile m x n: the products at full tensor-core rate, loads from L2, and
    no epilogue chain."""
    rows, columns = extent(problem)
    k = _LIBRARY_K * 2 // problem.dtype.bytes
    size = problem.dtype.bytes
    products = 2 * m * n * k / (arch.flops[problem.dtype] * _TENSOR_EFFICIENCY / arch.sm_count)
    read = (
        (ceil_divide(m, 64) * (64 + n) + m + n) * k * size / (_SHARED_BYTES_PER_CLOCK * arch.clock)
    )
    loads = (
        (m + n)
        * k
        * size
        / (arch.l2_bandwidth / arch.sm_count * (_MULTICAST if arch.wgmma else 1.0))
    )
    step = max(products, read, loads) * _US
    steps = ceil_divide(_library_steps(problem, k), split)
    # fp32, written and read again
    partial = m * n * 8 * (split - 1) / split / (arch.l2_bandwidth / arch.sm_count) * _US
    store = _EPILOGUE_US + m * n * size / (_bandwidth(arch) / arch.sm_count) * _US + partial
    tiles = ceil_divide(rows, m) * ceil_divide(columns, n) * split
    compute = _sm_us(
        ceil_divide(tiles, arch.sm_count), 2, _Tile(_PROLOGUE_US + steps * step, store)
    )
    memory = (_input_elements(problem) + rows * columns) * size / _bandwidth(arch) * _US
    return arch.launch_us + _overlapped(compute, memory)


def _library_steps(problem: Problem, tile_k: int) -> int:
    """As `_k_steps`, but that cuDNN pads a first layer's few channels to 16 and packs filter
    positions along k."""
    if isinstance(problem, ConvProblem) and problem.c // problem.groups < _FEW_CHANNELS:
        return ceil_divide(problem.r * problem.s * _FEW_CHANNELS, tile_k)
    return _k_steps(problem, tile_k, Iterator.OPTIMIZED)
