"""Time in device memory, and what an epilogue's steps read and compute."""

from __future__ import annotations

from onnxbolt.archs import Arch
from onnxbolt.epilogues import EPILOGUES
from onnxbolt.kernel_time import US, bandwidth
from onnxbolt.problems import Problem
from onnxbolt.registry import cached


@cached(maxsize=1024)  # every candidate of a problem asks
def memory_us(problem: Problem, arch: Arch) -> float:
    """Microseconds of a copy that moves each tensor once through device memory."""
    return problem.bytes_moved / bandwidth(arch) * US


@cached(maxsize=1024)  # every candidate asks
def vector_operands(steps: tuple[str, ...]) -> int:
    """How many steps of an epilogue read a number for each column."""
    return sum(EPILOGUES[step].operand == "vector" for step in steps)


@cached(maxsize=1024)
def epilogue_cost(steps: tuple[str, ...], exact: bool = False) -> float:
    """Instructions for one output; `exact`: of steps in fp32 that others approximate."""
    entries = [EPILOGUES[step] for step in steps]
    return sum((exact and entry.exact_cost) or entry.cost for entry in entries)
