"""What the planner asks of measurements: an empty answer means that nothing is known and the prediction stands."""
from __future__ import annotations

from dataclasses import dataclass, field

from onnxbolt.kernels.config import KernelConfig
from onnxbolt.tune.records import Machine, Problem, wins


@dataclass(frozen=True)
class Choice:
    """The best configuration that was measured for a problem on an architecture."""

    config: KernelConfig
    us: float
    mad: float = 0.0
    measured: bool = True  # False: predicted, as a plan and a lock file also hold it


@dataclass(frozen=True)
class Comparison:
    """A region (or a single GEMM) as ONNX Runtime runs it at its best and as fused nodes, both as sessions. Microseconds."""

    ours_us: float
    ours_mad: float
    ort_us: float
    ort_mad: float
    measured: bool = True  # False: both times are predicted
    decided: bool | None = None  # what a lock file says, whatever rounding did to its times
    region: str = ""  # in words, for who reads a lock file

    @property
    def fused(self) -> bool:
        """Whether the region is fused: measured times have to win by more than the noise, predicted ones know of none."""
        if self.decided is not None:
            return self.decided
        return wins(self.ours_us, self.ours_mad, self.ort_us, self.ort_mad) if self.measured else self.ours_us < self.ort_us


@dataclass(frozen=True)
class Timings:
    """Choices by (problem, architecture), comparisons by the region's key (`plan/regions.py: Region.key`)."""

    choices: dict[tuple[Problem, int], Choice] = field(default_factory=dict)
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    machine: Machine | None = None  # where choices and comparisons were measured
    frozen: bool = False  # what is not here is an error (exit code 5), not predicted

    def choice(self, problem: Problem, arch: int) -> Choice | None:
        return self.choices.get((problem, arch))


NOTHING = Timings()  # everything is predicted
