"""Predicted times of kernels, without a GPU: ours, ONNX Runtime's, and layout conversions.

Every function returns microseconds on the reference GPU of an architecture. Kernel families predict
the times of their kernels, problems those of ONNX Runtime. Constants were fitted to measurements on
one H200 (tests/plan/test_cost.py holds them); other architectures have the same formulas with their
own facts. Within `learned_from`, a learned model corrects the formulas of the families that it
knows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from onnxbolt import families
from onnxbolt.archs import Arch, get
from onnxbolt.errors import InputError
from onnxbolt.families import KernelConfig
from onnxbolt.kernel_time import US, bandwidth
from onnxbolt.learned.model import CostModel
from onnxbolt.measurements.strategy import SPREAD
from onnxbolt.problems import Problem
from onnxbolt.registry import cached

_LAYOUT_EFFICIENCY = 0.9  # part of a copy's bandwidth that layout conversions reach
_MODEL: ContextVar[CostModel | None] = ContextVar("cost model", default=None)


@contextlib.contextmanager
def learned_from(path: Path | str | None) -> Iterator[None]:
    """Predict by the cost model of a file; with None, by whatever predicts around. Raises
    InputError if the file is no cost model."""
    if path is None:
        yield
        return
    before = _MODEL.set(CostModel.read(Path(path)))
    try:
        yield
    finally:
        _MODEL.reset(before)


def predict(problem: Problem, arch_number: int) -> tuple[KernelConfig, float]:
    """The best candidate for `problem` on architecture 75, 80, 86, 89 or 90, and its predicted
    microseconds.

    Raises InputError if the architecture has no kernel for it (for its element type or groups, for
    example); ask `supports` first.
    """
    return _predict(problem, arch_number, _MODEL.get())


def ranked(problem: Problem, arch: Arch) -> tuple[tuple[float, KernelConfig], ...]:
    """Every candidate with its predicted microseconds, the fastest first."""
    return _ranked(problem, arch, _MODEL.get())


@cached(maxsize=4096)  # models repeat their layers
def _predict(
    problem: Problem, arch_number: int, model: CostModel | None
) -> tuple[KernelConfig, float]:
    arch = get(arch_number)
    fastest = next(iter(_ranked(problem, arch, model)), None)
    if fastest is None:
        raise InputError(
            f"{arch.name}: no kernel for {problem}; plan for another architecture or leave the node"
            " to ONNX Runtime"
        )
    us, config = fastest
    return config, us


@cached(maxsize=1024)
def _ranked(
    problem: Problem, arch: Arch, model: CostModel | None
) -> tuple[tuple[float, KernelConfig], ...]:
    found = [(formula_us(problem, config, arch), config) for config in candidates(problem, arch)]
    return tuple(sorted(found if model is None else model.predicted(problem, found)))


@cached(maxsize=4096)  # asked more often than times
def supports(problem: Problem, arch_number: int) -> bool:
    """True if the architecture has any kernel for `problem`."""
    return bool(candidates(problem, get(arch_number)))


@cached(maxsize=1024)
def candidates(problem: Problem, arch: Arch) -> tuple[KernelConfig, ...]:
    """The configurations worth trying from all kernel families."""
    return families.candidates(problem, arch)


def fused_us(problem: Problem, config: KernelConfig, arch: Arch) -> float:
    """The predicted time of one launch of the kernel `config`, epilogue included. Raises ValueError
    as `formula_us` does."""
    us, model = formula_us(problem, config, arch), _MODEL.get()
    return us if model is None else model.predicted(problem, [(us, config)])[0][0]


def predicted_by(config: KernelConfig) -> str:
    """The digest of the learned model that predicts the time of a kernel; empty if its formula
    does."""
    model = _MODEL.get()
    return model.digest if model is not None and model.of(config) else ""


def spread_of(config: KernelConfig) -> float:
    """The spread of log(measured / predicted) that is expected among the kernels of a problem."""
    model = _MODEL.get()
    of_family = None if model is None else model.of(config)
    return SPREAD if of_family is None else of_family.spread


def formula_us(problem: Problem, config: KernelConfig, arch: Arch) -> float:
    """The time of one launch of the kernel `config`, epilogue included, by its family's formula.

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
