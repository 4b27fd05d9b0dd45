"""The measured times and decisions that a plan is made with; where one is missing, the planner
predicts."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnxbolt.families import KernelConfig
from onnxbolt.measurements.records import Machine, wins
from onnxbolt.problems import Problem


@dataclass(frozen=True)
class Choice:
    """The best configuration that was measured for a problem on an architecture."""

    config: KernelConfig
    us: float
    mad: float = 0.0
    measured: bool = True  # False: predicted, as a plan and a lock file also hold it


@dataclass(frozen=True)
class Comparison:
    """A region (or a single GEMM) as ONNX Runtime runs it at its best and as fused nodes, both as
    sessions. Microseconds.

    Of a region that is fused in part, `ours_us` is that, and `ort_us` the better one of fusing all
    of it and nothing.
    """

    ours_us: float
    ours_mad: float
    ort_us: float
    ort_mad: float
    measured: bool = True  # False: both times are predicted
    decided: bool | None = None  # what a lock file says, whatever rounding did to its times
    region: str = ""  # in words, for who reads a lock file
    reason: str = ""  # of a decision that does not follow from these times

    @property
    def fused(self) -> bool:
        """Whether the region is fused: measured times have to win by more than the noise,
        predicted ones know of none."""
        return self.certain_gain > 1 if self.decided is None else self.decided

    @property
    def gain(self) -> float:
        """How many times faster fusing is."""
        return self.ort_us / max(self.ours_us, 1e-9)

    @property
    def certain_gain(self) -> float:
        """The gain; 1 where measured times differ by no more than the noise."""
        ours, theirs = (self.ours_us, self.ours_mad), (self.ort_us, self.ort_mad)
        return (
            self.gain if not self.measured or wins(*ours, *theirs) or wins(*theirs, *ours) else 1.0
        )


@dataclass(frozen=True)
class Cut:
    """How many layers of a chain its first kernel computes; a global average pooling behind a
    convolution counts as one."""

    layers: int
    chain: str = ""  # in words, for who reads a lock file


@dataclass(frozen=True)
class Timings:
    """Choices by (problem, architecture), comparisons by the keys of regions and their parts
    (`plan/regions.py`), cuts by the keys of chains (`plan/cuts.py`)."""

    choices: dict[tuple[Problem, int], Choice] = field(default_factory=dict)
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    machine: Machine | None = None  # where choices and comparisons were measured
    frozen: bool = False  # what is not here is an error (exit code 5), not predicted
    # the cuts that are decided; others follow from the choices
    cuts: dict[str, Cut] = field(default_factory=dict)
    # problems for which no kernel that was tried runs right
    failed: frozenset[tuple[Problem, int]] = frozenset()

    def choice(self, problem: Problem, arch: int) -> Choice | None:
        return self.choices.get((problem, arch))


NOTHING = Timings()  # everything is predicted
