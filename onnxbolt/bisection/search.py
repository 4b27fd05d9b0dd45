"""The search for the steps that make a trial fail.

Steps are in the order in which they are taken, and a trial takes the first of them. Trials are
halved until the first step is found with which one fails. Then that step alone is left out: if a
trial of all others passes, it was the only one; otherwise the search goes on behind it. Of several
steps those are kept without which leaving out the others does not help (delta debugging's last
phase), and each is tried alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

# the kinds of steps: a stage before planning, the layouts of tensors, a node that follows from
# these (a layout conversion, a pooling), and a fused node in place of the nodes that it replaces
STAGE, LAYOUT, NODE, FUSION = "stage", "layout", "node", "fusion"
_MOST = 8  # steps that are left out, at most


class Verdict(Enum):
    GOOD = "good"
    BAD = "bad"
    SKIP = "skip"  # it cannot be judged


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial, in words if it is bad. `local`: the fault was seen where it arises,
    and not in the model's outputs alone, to which rounding errors add up."""

    verdict: Verdict
    words: str = ""
    local: bool = False


@dataclass(frozen=True)
class Step:
    """One change of the original on the way to the optimized model. `kind` (STAGE, LAYOUT, NODE or
    FUSION) and `name` identify it."""

    kind: str
    name: str
    words: str = field(default="", compare=False)
    remedy: str = field(default="", compare=False)

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.name

    @property
    def title(self) -> str:
        """Kind and name; a step that is the only one of its kind is called as the kind is."""
        return self.kind if self.kind == self.name else f"{self.kind} {self.name}"


class Bench(Protocol):
    """Makes trials."""

    def steps(self, left: Sequence[Step]) -> Sequence[Step]:
        """All steps if those in `left` are not taken."""

    def run(self, taken: Sequence[Step], left: Sequence[Step]) -> Outcome:
        """The outcome if only the steps `taken` are taken, which are some of those without
        `left`."""


@dataclass(frozen=True)
class Culprit:
    """A step, or one of several where the trials between them cannot be judged, and the outcome of
    the first trial with it. `alone`: what a trial says with no other fusion; None if there was
    none."""

    steps: tuple[Step, ...]
    outcome: Outcome
    alone: bool | None = None


@dataclass(frozen=True)
class Found:
    """The steps that have to be left out, in their order: none if the trial of all `count` steps
    passes. `rest` is the outcome if they are left out, and `original` that of a trial without any
    step, if that fails."""

    culprits: tuple[Culprit, ...]
    runs: int
    count: int
    rest: Outcome
    original: Outcome | None = None

    @property
    def accumulates(self) -> bool:
        """True if no step fails by itself."""
        return bool(self.culprits) and all(each.alone is True for each in self.culprits)


def search(bench: Bench) -> Found:
    """The steps that make the trial of all steps fail. For a single one of n this takes at most
    ceil(log2(n)) + 2 runs; where nothing but the model's outputs shows the fault, one more, which
    tells if the error only accumulates."""
    return _Search(bench).found()


class _Search:
    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._known: dict[object, Outcome] = {}

    def found(self) -> Found:
        culprits, left = list[Culprit](), list[Step]()
        all_steps = steps = self._bench.steps(left)
        rest, passed = self._run(steps, left), 0
        while rest.verdict is Verdict.BAD and len(culprits) < _MOST:
            culprit, passed = self._first(steps, left, passed)
            culprits.append(culprit)
            left = [*left, *culprit.steps]
            steps = self._bench.steps(left)
            rest = self._run(steps, left)
            if passed == 0 and rest.verdict is Verdict.BAD:
                original = self._run([], left)
                if original.verdict is Verdict.BAD:
                    return Found((), len(self._known), len(all_steps), rest, original)
        if len(culprits) > 1 and rest.verdict is Verdict.GOOD:
            culprits = self._least(culprits)
        if len(culprits) > 1 or not all(each.outcome.local for each in culprits):
            culprits = [self._tried_alone(each, all_steps, left) for each in culprits]
        return Found(tuple(culprits), len(self._known), len(all_steps), rest)

    def _first(
        self, steps: Sequence[Step], left: Sequence[Step], passed: int
    ) -> tuple[Culprit, int]:
        """The first step with which a trial fails, and the number of steps before it. With the
        first `passed` steps it passes, with all steps it fails."""
        good, bad = passed, len(steps)
        untested = set[int]()
        while between := [i for i in range(good + 1, bad) if i not in untested]:
            middle = min(between, key=lambda i: abs(2 * i - good - bad))
            verdict = self._run(steps[:middle], left).verdict
            if verdict is Verdict.SKIP:
                untested.add(middle)
            elif verdict is Verdict.GOOD:
                good = middle
            else:
                bad = middle
        return Culprit(tuple(steps[good:bad]), self._run(steps[:bad], left)), good

    def _least(self, culprits: Sequence[Culprit]) -> list[Culprit]:
        """The culprits without those that need not be left out if the others are."""
        kept = list(culprits)
        for culprit in culprits[:-1]:
            others = [each for each in kept if each is not culprit]
            left = _steps_of(others)
            if self._run(self._bench.steps(left), left).verdict is Verdict.GOOD:
                kept = others
        return kept

    def _tried_alone(
        self, culprit: Culprit, steps: Sequence[Step], left: Sequence[Step]
    ) -> Culprit:
        """The culprit after a trial with it, but no other fusion, and none of the other
        culprits."""
        own, others = set(culprit.steps), set(left) - set(culprit.steps)
        fusions = {step for step in steps if step.kind == FUSION}
        if not own <= fusions:
            return culprit  # the stages before it are needed for it
        taken = [
            step for step in steps if step not in others and (step in own or step not in fusions)
        ]
        outcome = self._run(taken, [step for step in left if step not in own])
        return replace(culprit, alone=outcome.verdict is Verdict.GOOD)

    def _run(self, taken: Sequence[Step], left: Sequence[Step]) -> Outcome:
        key = tuple(step.key for step in taken), frozenset(s.key for s in left if s.kind == STAGE)
        if key not in self._known:
            self._known[key] = self._bench.run(taken, left)
        return self._known[key]


def _steps_of(culprits: Sequence[Culprit]) -> list[Step]:
    return [step for culprit in culprits for step in culprit.steps]
