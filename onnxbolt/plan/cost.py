"""Predicted run times, without a GPU: of fused kernels, and of what stands between them.

Everything is a pure function and answers in microseconds, for the reference GPU of an architecture.
Kernel families predict the times of their kernels, `onnxruntime_cost` those of ONNX Runtime. Their
constants were fitted to measurements on one H200 (tests/plan/test_cost.py holds them); on other
architectures the same formulas run with that architecture's facts.
"""

from __future__ import annotations

from onnxbolt import families
from onnxbolt.archs import Arch, get
from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError
from onnxbolt.families import KernelConfig
from onnxbolt.families.blocks.memory import EFFICIENCY, US, bandwidth, memory_us
from onnxbolt.plan.onnxruntime_cost import elementwise_us, ort_us
from onnxbolt.problems import ConvProblem, GemmProblem, SqueezeExciteProblem
from onnxbolt.registry import cached

__all__ = [
    "candidates",
    "elementwise_us",
    "floor_us",
    "fused_us",
    "layout_us",
    "ort_us",
    "pool_us",
    "predict",
    "ranked",
    "supports",
    "transpose_us",
]

AnyProblem = GemmProblem | ConvProblem | SqueezeExciteProblem

# Of a copy's bandwidth, what transposes, layout conversions and poolings reach.
_TRANSPOSE_EFFICIENCY = 0.6
_LAYOUT_EFFICIENCY = 0.9
_POOL_EFFICIENCY = 0.7


@cached(maxsize=4096)  # models repeat their layers
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


@cached(maxsize=1024)
def ranked(problem: AnyProblem, arch: Arch) -> tuple[tuple[float, KernelConfig], ...]:
    """Every candidate with its predicted microseconds, the fastest first."""
    return tuple(
        sorted((fused_us(problem, config, arch), config) for config in candidates(problem, arch))
    )


@cached(maxsize=4096)  # asked far more often than for times
def supports(problem: AnyProblem, arch_number: int) -> bool:
    """True if the architecture has any kernel for `problem`."""
    return bool(candidates(problem, get(arch_number)))


@cached(maxsize=1024)
def candidates(problem: AnyProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """The configurations worth trying, of all kernel families."""
    return families.candidates(problem, arch)


def fused_us(problem: AnyProblem, config: KernelConfig, arch: Arch) -> float:
    """One launch of the kernel `config`, epilogue included.

    Raises ValueError for a configuration, as files may have it, whose sizes do not fit together or
    to the problem, such as a tile that leaves no room for a stage.
    """
    try:
        return config.family.predicted_us(problem, config, arch)
    except (ArithmeticError, StopIteration) as error:
        raise ValueError(
            f"configuration {config.row()}: no kernel of {config.family.name} has such sizes for"
            f" {problem}"
        ) from error


def floor_us(problem: AnyProblem, arch: Arch) -> float:
    """The roofline: the data sheet's rate of products, or each tensor once through device memory,
    whichever takes longer."""
    if isinstance(problem, SqueezeExciteProblem):
        return problem.image_bytes / arch.bandwidth * US
    on_cuda_cores = isinstance(problem, ConvProblem) and problem.depthwise
    rate = arch.fp32_flops if on_cuda_cores else arch.rate(problem.dtype)
    return max(problem.flops / rate * US, memory_us(problem, arch) * EFFICIENCY)


def layout_us(size: int, arch: Arch) -> float:
    """Our layout conversion, which reads and writes `size` bytes in all."""
    return arch.launch_us + size / (_LAYOUT_EFFICIENCY * bandwidth(arch)) * US


def transpose_us(elements: int, dtype: DType, arch: Arch) -> float:
    """ONNX Runtime's transpose of `elements` values, each read and written once."""
    moved = 2 * elements * dtype.bytes
    return arch.launch_us + moved / (_TRANSPOSE_EFFICIENCY * bandwidth(arch)) * US


def pool_us(read: int, written: int, dtype: DType, arch: Arch) -> float:
    """A pooling that reads `read` values (overlapping windows meet in the cache) and writes
    `written`."""
    moved = (read + written) * dtype.bytes
    return arch.launch_us + moved / (_POOL_EFFICIENCY * bandwidth(arch)) * US
