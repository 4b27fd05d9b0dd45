"""The measured times and decisions that a plan is made with; the planner predicts missing ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnxbolt.errors import FrozenError
from onnxbolt.families import KernelConfig
from onnxbolt.measurements.records import Machine, wins
from onnxbolt.problems import Problem


@dataclass(frozen=True)
class Choice:
    """The fastest configuration for a problem on an architecture."""

    config: KernelConfig
    us: float
    mad: float = 0.0
    measured: bool = True  # False: predicted, as plans and lock files may have choices, too
    # the digest of the learned cost model that predicted it; empty if the formula did
    model: str = ""
    published: bool = False  # measured before, on a GPU of the same kind; the package has it


@dataclass(frozen=True)
class Comparison:
    """The microseconds of a region, or of a single GEMM: as fused nodes, and as ONNX Runtime runs
    it at its best, both in sessions.

    If a region is fused in part, `ours_us` is the time of that, and `ort_us` the shorter time of
    fusing all of it and of fusing nothing.
    """

    ours_us: float
    ours_mad: float
    ort_us: float
    ort_mad: float
    measured: bool = True  # False: both times are predicted
    decided: bool | None = None  # the decision in a lock file, whose times are rounded
    region: str = ""  # in words, for readers of a lock file
    reason: str = ""  # why the decision does not follow from these times; empty if it does

    @property
    def fused(self) -> bool:
        """True if the region is fused: if measured times win by more than the noise, or predicted
        ones at all."""
        return self.certain_gain > 1 if self.decided is None else self.decided

    @property
    def gain(self) -> float:
        """How many times faster fusing is."""
        return self.ort_us / max(self.ours_us, 1e-9)

    @property
    def certain_gain(self) -> float:
        """The gain; 1 if measured times differ by no more than the noise."""
        ours, theirs = (self.ours_us, self.ours_mad), (self.ort_us, self.ort_mad)
        return (
            self.gain if not self.measured or wins(*ours, *theirs) or wins(*theirs, *ours) else 1.0
        )


@dataclass(frozen=True)
class Cut:
    """How many of several back-to-back layers the first kernel computes; a global average pooling
    behind a convolution counts as a layer, and so does a residual's addition between a product and
    a normalization."""

    layers: int
    chain: str = ""  # in words, for readers of a lock file


@dataclass(frozen=True)
class Scheduled:
    """The phases that compute a scope, by their positions among its options (plan/phases.py); none
    if it is planned greedily."""

    phases: tuple[int, ...]
    scope: str = ""  # in words, for readers of a lock file


@dataclass(frozen=True)
class Timings:
    """Choices by (problem, architecture), comparisons by the keys of regions and their parts
    (`plan/regions.py`), cuts by the keys of back-to-back layers (`plan/cuts.py`), schedules by the
    keys of scopes (`plan/phases.py`)."""

    choices: dict[tuple[Problem, int], Choice] = field(default_factory=dict)
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    machine: Machine | None = None  # the machine of measured choices and comparisons
    frozen: bool = False  # missing entries are errors (exit code 5) instead of predicted
    # decided cuts; others follow from the choices
    cuts: dict[str, Cut] = field(default_factory=dict)
    # problems for which no kernel that was tried computes correct results
    failed: frozenset[tuple[Problem, int]] = frozenset()
    # decided schedules of scopes; others are planned greedily. None: they follow from times
    schedules: dict[str, Scheduled] | None = None

    def choice(self, problem: Problem, arch: int) -> Choice | None:
        return self.choices.get((problem, arch))

    def cut(self, key: str, most: int, decides: str) -> Cut | None:
        """The earlier cut behind one of the first `most` layers; None if there is none. Raises
        FrozenError instead of that if timings are frozen, with what the cut `decides` in words."""
        known = self.cuts.get(key)
        if known is not None and known.layers <= most:
            return known
        if self.frozen:
            raise lacking(decides)
        return None


def lacking(what: str) -> FrozenError:
    """The error for what a lock file lacks."""
    return FrozenError(
        f"the lock file lacks {what}. Run once without freezing and commit the lock file"
    )


NOTHING = Timings()  # everything is predicted
