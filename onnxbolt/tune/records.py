"""What is measured, on what, and the one rule for noise.

A measurement belongs to a *key*: canonical JSON of the whole problem and of everything that can
change its time. A record of another GPU, driver limit or version has another key: a miss, never an
error.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxbolt.dtypes import DType
from onnxbolt.kernels.config import ConvProblem, GemmProblem, KernelConfig, SqueezeExciteProblem

Problem = ConvProblem | GemmProblem | SqueezeExciteProblem
_PROBLEMS: dict[str, Callable[..., Problem]] = {
    kind.__name__: kind for kind in (ConvProblem, GemmProblem, SqueezeExciteProblem)
}
LEAST_GAIN = 0.02  # differences below this share are noise whatever the samples say


@dataclass(frozen=True)
class Machine:
    """Where kernels are measured, and what they are built with."""

    gpu: str  # as the driver names it, e.g. "NVIDIA H200"
    arch: int  # 90
    power_limit: int  # watts
    cuda: str  # version of nvcc
    cutlass: str
    templates: str  # digest of custom_ops/ and templates/


class Status(enum.Enum):
    """How a candidate's measurement ended; only OK has a time."""

    OK = "ok"
    WRONG = "wrong"  # its answer differs from the reference
    REFUSED = "refused"  # can_implement or the launch said no
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    UNCOMPILED = (  # the compiler failed, or said that the code is slow (spills, serialized wgmma)
        "uncompiled"
    )


@dataclass(frozen=True)
class Measurement:
    """One candidate on one machine. Times in microseconds."""

    key: str
    config: KernelConfig | None  # None: ONNX Runtime itself
    status: Status
    us: float = 0.0  # median
    mad: float = 0.0  # median absolute deviation
    runs: int = 0
    error: float = 0.0  # relative L2 against the reference
    clock_mhz: int = 0
    detail: str = ""


def kernel_key(problem: Problem, machine: Machine) -> str:
    """The key of a kernel's time for `problem` on `machine`."""
    return canonical(
        {"kernel": plain(problem), "kind": type(problem).__name__, "machine": plain(machine)}
    )


def canonical(value: object) -> str:
    """JSON with sorted keys and nothing optional: equal values, equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def plain(value: object) -> object:
    """A problem, a machine or a part of one as what JSON holds."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, DType):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def problem_from(kind: str, fields: Mapping[str, Any]) -> Problem:
    """The inverse of `plain` for a problem, `kind` its type's name. Raises KeyError, ValueError
    or TypeError for anything else."""
    values = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    types = {name: DType(values[name]) for name in ("dtype", "out")}
    return _PROBLEMS[kind](**{**values, **types})


def median_and_deviation(samples: Sequence[float]) -> tuple[float, float]:
    """Median, and median absolute deviation."""
    median = statistics.median(samples)
    return median, statistics.median(abs(sample - median) for sample in samples)


def wins(ours: float, our_mad: float, theirs: float, their_mad: float) -> bool:
    """Whether `ours` is faster than `theirs` by more than the noise: the larger of 2% and three
    median absolute deviations."""
    return theirs - ours > max(LEAST_GAIN * theirs, 3 * our_mad, 3 * their_mad)
