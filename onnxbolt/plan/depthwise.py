"""Predicted microseconds of depthwise convolutions: they run on the CUDA cores, so instructions
count beside bytes.

The constants were fitted to measurements of MobileNetV3's depthwise layers on one H200
(tests/plan/test_depthwise.py holds them).
"""

from __future__ import annotations

from onnxbolt.archs import Arch
from onnxbolt.epilogues import EPILOGUES
from onnxbolt.integers import ceil_divide
from onnxbolt.kernels.config import ConvProblem, KernelConfig
from onnxbolt.kernels.depthwise import registers

_US = 1e6
# instructions of a thread, as compiled: for an access of its window, for one of its results, and
# besides
_ACCESS, _RESULT, _THREAD = 7.0, 6.0, 120.0
# part of the instructions that an SM could issue, by the warps that take turns on it
_ISSUE, _ISSUE_OF_WARP, _MOST_ISSUE = 0.36, 0.022, 0.75
# cuDNN: launches and set-up beyond one kernel's, part of the bandwidth, part of the products' rate
_LIBRARY_US, _LIBRARY_BANDWIDTH, _LIBRARY_PRODUCTS = 3.5, 0.76, 0.30


def compute_us(problem: ConvProblem, config: KernelConfig, arch: Arch) -> float:
    """What the instructions of all threads take, if bytes take no time."""
    rows, columns, _ = config.threadblock
    threads = (
        problem.n
        * ceil_divide(problem.p, rows)
        * ceil_divide(problem.q, columns)
        * problem.c
        // config.align_a
    )
    instructions = _THREAD + _accesses(problem, config) * (_ACCESS + config.align_a)
    instructions += (
        rows * columns * (_RESULT + config.align_a * (problem.r * problem.s + _chain(problem)))
    )
    return threads * instructions / (_issue(config, arch) * arch.fp32_flops / 2) * _US


def library_us(problem: ConvProblem, arch: Arch) -> float:
    """cuDNN's kernel alone, channels last."""
    size = (
        problem.n * problem.h * problem.w * problem.c + problem.rows * problem.k
    ) * problem.dtype.bytes
    moved = size / (_LIBRARY_BANDWIDTH * arch.bandwidth)
    products = problem.flops / (_LIBRARY_PRODUCTS * arch.fp32_flops)
    return arch.launch_us + _LIBRARY_US + (moved + products) * _US


def _issue(config: KernelConfig, arch: Arch) -> float:
    threads = config.threadblock[2]
    blocks = min(
        arch.registers_per_sm // (registers(config) * threads), arch.threads_per_sm // threads
    )
    return min(_ISSUE + _ISSUE_OF_WARP * blocks * threads / 32, _MOST_ISSUE)


def _accesses(problem: ConvProblem, config: KernelConfig) -> int:
    """Vectors of channels that a thread loads: each of its window once, or for each tap anew
    where the filter is not fixed."""
    rows, columns, _ = config.threadblock
    r, s, stride = config.warp
    if not r:
        return problem.r * problem.s * columns
    return ((rows - 1) * stride + r) * ((columns - 1) * stride + s)


def _chain(problem: ConvProblem) -> float:
    return sum(EPILOGUES[step].cost for step in problem.chain)
