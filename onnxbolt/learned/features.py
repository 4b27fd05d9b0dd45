"""The numbers that a learned cost model is told of a kernel: its problem, its configuration, its
architecture and its family's formula.

They follow from fields, slots and the interface of problems, so that no family or class of problems
is named here. A family may add terms of its formula (`Family.terms`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, tensor_operands
from onnxbolt.families import KernelConfig
from onnxbolt.families.row import SLOTS
from onnxbolt.kernel_time import US
from onnxbolt.problems import Problem

Features = Mapping[str, float]
_NOT_OF_A_KERNEL = ("arch", "min_m", "max_m", "family")  # slots
_ITEMS = 3  # items of a tuple that have features of their own


@dataclass(frozen=True)
class _Kernel:
    """A kernel as `Family.shared_memory` asks for it."""

    config: KernelConfig
    dtype: DType
    out: DType
    chain: tuple[str, ...]


def of_problem(problem: Problem, arch: Arch) -> dict[str, float]:
    """The features that all kernels of a problem on an architecture have in common."""
    rate = arch.rate(problem.dtype) if problem.on_tensor_cores else arch.fp32_flops
    return {
        **dict(_fields(problem)),
        "problem rows": problem.rows,
        "problem columns": problem.columns,
        "problem flops": problem.flops,
        "problem bytes": problem.bytes_moved,
        "epilogue cost": sum(EPILOGUES[step].cost for step in problem.chain),
        "epilogue tensors": tensor_operands(problem.chain),
        "arch products us": problem.flops / rate * US,
        "arch memory us": problem.bytes_moved / arch.bandwidth * US,
        "arch SMs": arch.sm_count,
        "arch clock": arch.clock,
        "arch L2": arch.l2_bandwidth,
        "arch shared memory": arch.shared_memory_per_sm,
    }


def of_kernel(
    common: Features, problem: Problem, config: KernelConfig, us: float, arch: Arch
) -> dict[str, float]:
    """All features: those of the problem, and those of a configuration that the formula predicts to
    take `us`."""
    row = dict(zip(SLOTS, config.row(), strict=True))
    tiles = math.ceil(problem.rows / row["tile_m"]) * math.ceil(problem.columns / row["tile_n"])
    waves = tiles * row["split_k"] / arch.sm_count
    slots = {f"config {slot}": n for slot, n in row.items() if slot not in _NOT_OF_A_KERNEL}
    kernel = _Kernel(config, problem.dtype, problem.out, problem.chain)
    shared = config.family.shared_memory(kernel)
    terms = config.family.terms(problem, config, arch)
    return {
        **common,
        **slots,
        "tiles per SM": waves,
        "tiles full": waves / math.ceil(waves),
        **({} if shared is None else {"shared memory": shared}),
        "formula us": us,
        "formula products": common["arch products us"] / us,
        "formula memory": common["arch memory us"] / us,
        **{f"term {name}": value for name, value in terms.items()},
    }


def _fields(problem: Problem) -> Iterator[tuple[str, float]]:
    """The fields of a problem as numbers; a tuple as its first items, their number and sum."""
    for field in dataclasses.fields(problem):
        name, value = f"problem {field.name}", getattr(problem, field.name)
        if isinstance(value, DType):
            yield name, value.bytes
        elif isinstance(value, tuple):
            yield f"{name} count", len(value)
            numbers = [item for item in value if not isinstance(item, str)]
            yield f"{name} sum", sum(numbers)
            yield from ((f"{name} {i}", item) for i, item in enumerate(numbers[:_ITEMS]))
        elif not isinstance(value, str):
            yield name, float(value)
