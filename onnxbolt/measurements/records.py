"""Measurements, the machine that they belong to, and the rule for noise."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from onnxbolt.families import KernelConfig

LEAST_GAIN = 0.02  # smaller relative differences count as noise


@dataclass(frozen=True)
class Machine:
    """The GPU that kernels are measured on, and the versions that they are built with."""

    gpu: str  # as the driver names it, e.g. "NVIDIA H200"
    arch: int  # 90
    power_limit: int  # watts
    cuda: str  # version of nvcc
    cutlass: str
    templates: str  # digest of custom_ops/ and templates/


class Status(enum.Enum):
    """How a candidate's measurement ended; only OK has a time."""

    OK = "ok"
    WRONG = "wrong"  # its result differs from the reference
    REFUSED = "refused"  # the kernel's check or its launch refused the problem
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    UNCOMPILED = (  # the compiler failed, or warned of slow code (spills, serialized wgmma)
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

    @property
    def family(self) -> str | None:
        """The name of the kernel's family; None for a session."""
        return self.config.family.name if self.config else None


def median_and_deviation(samples: Sequence[float]) -> tuple[float, float]:
    """Median, and median absolute deviation."""
    median = statistics.median(samples)
    return median, statistics.median(abs(sample - median) for sample in samples)


def wins(ours: float, our_mad: float, theirs: float, their_mad: float) -> bool:
    """True if `ours` is faster than `theirs` by more than the noise: the larger of 2% and three
    median absolute deviations."""
    return theirs - ours > max(LEAST_GAIN * theirs, 3 * our_mad, 3 * their_mad)
