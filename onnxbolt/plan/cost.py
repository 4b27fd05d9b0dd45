"""Predicted times of kernels, without a GPU: ours, ONNX Runtime's, and layout conversions.

Every function returns microseconds on the reference GPU of an architecture. Kernel families predict
the times of their kernels, problems those of ONNX Runtime. Constants were fitted to measurements on
one H200 (tests/plan/test_cost.py holds them); other architectures have the same formulas with their
own facts.
"""

from __future__ import annotations

from onnxbolt import families
from onnxbolt.archs import Arch, get
from onnxbolt.errors import InputError
from onnxbolt.families import KernelConfig
from onnxbolt.kernel_time import US, bandwidth
from onnxbolt.problems import Problem
from onnxbolt.registry import cached

_LAYOUT_EFFICIENCY = 0.9  # part of a copy's bandwidth that layout conversions reach


@cached(maxsize=4096)  # models repeat their layers
def predict(problem: Problem, arch_number: int) -> tuple[KernelConfig, float]:
    """The best candidate for `problem` on architecture 75, 80, 86, 89 or 90, and its predicted
    microseconds.

    Raises InputError if the architecture has no kernel for it (for its element type or groups, for
    example); ask `supports` first.
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
def ranked(problem: Problem, arch: Arch) -> tuple[tuple[float, KernelConfig], ...]:
    """Every candidate with its predicted microseconds, the fastest first."""
    return tuple(
        sorted((fused_us(problem, config, arch), config) for config in candidates(problem, arch))
    )


@cached(maxsize=4096)  # asked more often than times
def supports(problem: Problem, arch_number: int) -> bool:
    """True if the architecture has any kernel for `problem`."""
    return bool(candidates(problem, get(arch_number)))


@cached(maxsize=1024)
def candidates(problem: Problem, arch: Arch) -> tuple[KernelConfig, ...]:
    """The configurations worth trying from all kernel families."""
    return families.candidates(problem, arch)


def fused_us(problem: Problem, config: KernelConfig, arch: Arch) -> float:
    """The time of one launch of the kernel `config`, epilogue included.

    Raises ValueError for a configuration (from a file, for example) whose sizes do not fit each
    other or the problem, such as a tile that leaves no room for a stage.
    """
    try:
        return config.family.predicted_us(problem, config, arch)
    except (ArithmeticError, StopIteration) as error:
        raise ValueError(
            f"configuration {config.row()}: no kernel of {config.family.name} has such sizes for"
            f" {problem}"
        ) from error


def floor_us(problem: Problem, arch: Arch) -> float:
    """The roofline, a time that no kernel beats: all products at the data sheet's rate, or each
    tensor once through device memory, whichever takes longer."""
    rate = arch.rate(problem.dtype) if problem.on_tensor_cores else arch.fp32_flops
    return max(problem.flops / rate, problem.bytes_moved / arch.bandwidth) * US


@cached(maxsize=4096)
def ort_us(problem: Problem, arch: Arch) -> float:
    """Microseconds for the nodes of `problem` in ONNX Runtime's CUDA provider at its best."""
    return problem.onnxruntime_us(arch)


def layout_us(size: int, arch: Arch) -> float:
    """The time of our layout conversion, which reads and writes `size` bytes in all."""
    return arch.launch_us + size / (_LAYOUT_EFFICIENCY * bandwidth(arch)) * US
