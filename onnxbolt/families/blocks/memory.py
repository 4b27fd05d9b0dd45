"""Time in device memory, and how it overlaps with computing."""

from __future__ import annotations

from onnxbolt.archs import Arch
from onnxbolt.epilogues import EPILOGUES, MEAN, STORE, has_inner_residual
from onnxbolt.problems import ConvProblem, GemmProblem

US = 1e6
EFFICIENCY = 0.90  # of the data sheet's bandwidth that a copy reaches
_OVERLAP_LOSS = 0.3  # part of the shorter of (compute, memory) that is not hidden behind the longer


def bandwidth(arch: Arch) -> float:
    """Bytes in a second that a copy reaches."""
    return arch.bandwidth * EFFICIENCY


def memory_us(problem: GemmProblem | ConvProblem, arch: Arch) -> float:
    """Microseconds of a copy that moves each tensor once through device memory."""
    tensors, stores = tensor_operands(problem.chain), STORE in problem.chain
    first_width = problem.widths[0]
    width = first_width if stores or has_inner_residual(problem.chain) else problem.columns
    averages = isinstance(problem, ConvProblem) and MEAN in problem.chain
    written = (problem.n if averages else problem.rows) * problem.columns
    moved = problem.rows * width * (tensors + stores)
    size = (input_elements(problem) + moved) * problem.dtype.bytes + written * problem.out.bytes
    return size / bandwidth(arch) * US


def input_elements(problem: GemmProblem | ConvProblem) -> int:
    """Of activations and weights."""
    if isinstance(problem, ConvProblem):
        weights = sum(
            layer.k * layer.r * layer.s * layer.c // layer.groups for layer in problem.layers
        )
        return problem.n * problem.h * problem.w * problem.c + weights
    return problem.m * problem.k + sum(layer.n * layer.k for layer in problem.layers)


def overlapped(compute: float, memory: float, loss: float = _OVERLAP_LOSS) -> float:
    """The longer of both and the part of the shorter one that is not hidden behind it."""
    return max(compute, memory) + loss * min(compute, memory)


def tensor_operands(steps: tuple[str, ...]) -> int:
    """How many steps of an epilogue read a tensor of the output's size."""
    return sum(EPILOGUES[step].operand == "tensor" for step in steps)


def vector_operands(steps: tuple[str, ...]) -> int:
    """How many steps of an epilogue read a number for each column."""
    return sum(EPILOGUES[step].operand == "vector" for step in steps)


def epilogue_cost(steps: tuple[str, ...]) -> float:
    """Instructions for one output."""
    return sum(EPILOGUES[step].cost for step in steps)
