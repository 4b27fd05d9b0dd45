"""The results of `explain`."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnxbolt.advice.change import Obstacle
from onnxbolt.advice.findings import Finding
from onnxbolt.tune.summary import WholeModel
from onnxbolt.version import __version__

FORMAT = 1  # the version of the JSON's schema


@dataclass(frozen=True)
class Measured:
    """The median time that a run takes of the local GPU, with the fastest settings; `spread` is
    the distance from the 10th to the 90th percentile, as a part of it.

    The other fields are of the plan of the model that was timed: the sum of its times, what it came
    to beside ONNX Runtime while its kernels were tuned, and why nothing was fused.
    """

    gpu: str
    ms: float
    spread: float
    planned_ms: float | None = None  # None for a model that was written unchanged
    whole: WholeModel | None = None  # None if it was not compared
    nothing_fused: str = ""


@dataclass(frozen=True)
class Advice:
    """A change, and what it does to the whole model's time."""

    key: str
    kind: str
    words: str
    nodes: tuple[str, ...]
    results: str  # "the same", or what they become
    needs_retraining: bool
    before_ms: tuple[float, ...]  # predicted, for each architecture
    after_ms: tuple[float, ...]
    gain: float  # the share of the time that it saves; negative for a deepening
    measured: Measured | None = None


@dataclass(frozen=True)
class Explanation:
    """Why parts of a model are not fused or not at their best, and what would change it.

    `advices` are those that save at least `threshold` of the whole model's time each. `total` has
    as many of them as go together, one after another as long as each saves that much again; None
    if there are not at least two. `free` adds layers for less than `threshold`. `tried` are changes
    that save less, and `obstacles` those that cannot be made.
    """

    model: str
    precision: str
    archs: tuple[int, ...]
    measured_times: bool  # plans use times that were measured here
    ms: tuple[float, ...]  # predicted time of the whole model, for each architecture
    threshold: float
    findings: tuple[Finding, ...]
    advices: tuple[Advice, ...]
    total: Advice | None
    free: Advice | None
    tried: tuple[Advice, ...]
    obstacles: tuple[Obstacle, ...]
    measured: Measured | None = None  # the model as it is
    version: str = field(default=__version__)
    format: int = FORMAT
