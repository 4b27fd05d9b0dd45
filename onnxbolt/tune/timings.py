"""What the planner asks of measurements: an empty answer means that nothing is known and the prediction stands."""
from __future__ import annotations

from dataclasses import dataclass, field

from onnxbolt.kernels.config import KernelConfig
from onnxbolt.tune.records import Problem


@dataclass(frozen=True)
class Choice:
    """The best configuration that was measured for a problem on an architecture."""

    config: KernelConfig
    us: float
    mad: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """A region (or a single GEMM) as ONNX Runtime runs it at its best and as fused nodes, both as sessions. Microseconds."""

    ours_us: float
    ours_mad: float
    ort_us: float
    ort_mad: float


@dataclass(frozen=True)
class Timings:
    """Choices by (problem, architecture), comparisons by the region's key (`plan/choose.py: Region.key`)."""

    choices: dict[tuple[Problem, int], Choice] = field(default_factory=dict)
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    frozen: bool = False  # what is not here is an error (exit code 5), not predicted

    def choice(self, problem: Problem, arch: int) -> Choice | None:
        return self.choices.get((problem, arch))
