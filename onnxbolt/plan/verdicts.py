"""Which regions are fused: those that are faster than ONNX Runtime, in the geometric mean over the
architectures of the plan.

A model has one graph for all of its architectures, so they decide together. Each architecture's
gain is the measured one if there is one, otherwise the predicted one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from onnxbolt.archs import ARCHS
from onnxbolt.candidates import Candidate, Refusal
from onnxbolt.errors import FrozenError
from onnxbolt.layout.assignment import Assignment
from onnxbolt.measurements.timings import Comparison, Timings, lacking
from onnxbolt.plan.conversions import conversion_us
from onnxbolt.plan.cost import ort_us, predict
from onnxbolt.plan.problems import problem_of
from onnxbolt.plan.ranges import Point
from onnxbolt.plan.regions import Part, Region, regions

_NAMED = 3  # so many of the entries that a lock file lacks are named
Joint = tuple[Region, ...]  # the same region on each architecture


@dataclass(frozen=True)
class Verdict:
    """The decision on a region, or on fusing it in part, with a comparison for each architecture in
    the plan's order."""

    region: str  # in words
    archs: tuple[int, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def fused(self) -> bool:
        """The earlier decision if there is one; otherwise true if it gains more than the noise."""
        before = [
            comparison.decided for comparison in self.comparisons if comparison.decided is not None
        ]
        return (
            all(before)
            if before
            else math.prod(comparison.certain_gain for comparison in self.comparisons) > 1
        )

    @property
    def gain(self) -> float:
        """The geometric mean over the architectures of how many times faster fusing is."""
        return float(
            math.prod(comparison.gain for comparison in self.comparisons)
            ** (1 / len(self.comparisons))
        )

    @property
    def measured(self) -> bool:
        """True if a time of any architecture was measured."""
        return any(comparison.measured for comparison in self.comparisons)

    @property
    def reason(self) -> str:
        """Why the decision does not follow from the times; empty if it does."""
        return next((comparison.reason for comparison in self.comparisons if comparison.reason), "")

    def values(self) -> dict[str, float]:
        """The times, for a report; their names have the architecture if there are several."""
        several = len(self.archs) > 1
        return {
            f"sm_{arch} {name}" if several else name: getattr(comparison, name)
            for arch, comparison in zip(self.archs, self.comparisons, strict=True)
            for name in ("ours_us", "ort_us")
        }


@dataclass(frozen=True)
class Losses:
    """Candidates that are not fused as they are, each with the candidates that replace it, and
    why."""

    instead: dict[Candidate, tuple[Candidate, ...]]
    refusals: list[Refusal]


@dataclass
class Judge:
    """Decides on regions, round by round, and remembers its decisions."""

    timings: Timings
    # by key of a region or part, with the decision
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)  # by the region's key
    # for candidates in regions that were measured to be faster
    settled: dict[Candidate, Verdict] = field(default_factory=dict)

    def losing(self, found: Sequence[Joint]) -> Losses:
        """Candidates of slower regions, and of parts that a region is faster without.

        A candidate of several layers is replaced by its layers; by nothing if the decision was the
        whole model's. The rest of a region that lost some nodes is judged by the measured times of
        the region without them, not by predicted ones. Raises FrozenError if timings are frozen and
        lack a region.
        """
        missing = {
            region.description
            for joint in found
            for region in joint
            if region.key not in self.timings.comparisons
        }
        if self.timings.frozen and missing:
            raise frozen(missing, "regions")
        losing, refusals = dict[Candidate, tuple[Candidate, ...]](), list[Refusal]()
        for joint in found:
            verdict, candidates = self._judged(joint), joint[0].candidates
            in_part = self._best_part(joint)
            kept, refused = list(candidates), list[Candidate]()
            if in_part is not None:
                part, winner = in_part
                kept = [c for i, c in enumerate(candidates) if i not in part.left_out]
                refused = [candidates[i] for i in part.left_out]
                refusals += [
                    _slower(
                        c,
                        "comparing its region with and without it",
                        _against(verdict, winner),
                    )
                    for c in refused
                ]
            elif not verdict.fused:
                kept, refused = [], list(candidates)
                refusals += [_slower(c, _together(joint[0]), verdict) for c in refused]
            winner = in_part[1] if in_part else verdict
            self.settled.update({c: winner for c in kept if winner.measured})
            losing |= {c: () if verdict.reason else c.layers for c in refused}
        return Losses(losing, refusals)

    def _judged(self, joint: Joint) -> Verdict:
        before = self._settled(joint)
        comparisons = [self.timings.comparisons.get(region.key) for region in joint]
        if before is not None and not any(comparisons):
            comparisons = list(before.comparisons)
        return self._noted(
            [region.key for region in joint],
            Verdict(
                joint[0].words,
                _numbers(joint),
                tuple(
                    known or _predicted(region)
                    for known, region in zip(comparisons, joint, strict=True)
                ),
            ),
        )

    def _settled(self, joint: Joint) -> Verdict | None:
        judged = [self.settled.get(c) for c in joint[0].candidates]
        return judged[0] if all(judged) else None

    def _best_part(self, joint: Joint) -> tuple[Part, Verdict] | None:
        """The fastest way to fuse the region in part, among those that were measured to be faster
        than fusing all of it and than fusing nothing."""
        return max(
            ((part, verdict) for part, verdict in self._parts(joint) if verdict.fused),
            key=lambda pair: pair[1].gain,
            default=None,
        )

    def _parts(self, joint: Joint) -> Iterator[tuple[Part, Verdict]]:
        """The ways to fuse the region in part that were measured on any architecture."""
        for part in joint[0].parts if self.timings.comparisons else ():  # a large region has many
            keys = [region.key_of(part) for region in joint]
            known = [self.timings.comparisons.get(key) for key in keys]
            if any(known):
                comparisons = tuple(
                    one or _predicted(region, part)
                    for one, region in zip(known, joint, strict=True)
                )
                words = f"{joint[0].words}, but for {len(part.left_out)} of them"
                yield part, self._noted(keys, Verdict(words, _numbers(joint), comparisons))

    def _noted(self, keys: Sequence[str], verdict: Verdict) -> Verdict:
        """Remember a verdict: each architecture's comparison gets the common decision, even if its
        own times would decide otherwise."""
        for key, comparison in zip(keys, verdict.comparisons, strict=True):
            other = comparison.fused != verdict.fused
            self.comparisons[key] = (
                replace(comparison, decided=verdict.fused) if other else comparison
            )
        self.verdicts[keys[0]] = verdict
        return verdict


def joint_regions(assignment: Assignment, archs: Sequence[int], at: Point) -> list[Joint]:
    """The regions of an assignment, each on all of `archs`."""
    return list(zip(*(regions(assignment, number, at) for number in archs), strict=True))


def frozen(missing: set[str], what: str) -> FrozenError:
    """The error for decisions that a lock file lacks."""
    named = sorted(missing)
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return lacking(f"{len(named)} {what}: {'; '.join(named[:_NAMED])}{more}")


def _numbers(joint: Joint) -> tuple[int, ...]:
    return tuple(region.arch for region in joint)


def _together(region: Region) -> str:
    first, count = region.candidates[0], len(region.candidates)
    if count > 1:
        return f"counting the {count} fused nodes of its region and their layout conversions"
    return (
        f"counting its {len(first.widths)} layers in one kernel"
        if len(first.widths) > 1
        else "counting its layout conversions"
    )


def _against(whole: Verdict, part: Verdict) -> Verdict:
    """A verdict for candidates that are left out: the whole region's times beside those of the part
    without them."""
    pairs = zip(whole.comparisons, part.comparisons, strict=True)
    return replace(
        whole,
        comparisons=tuple(
            replace(all_of_it, ort_us=some.ours_us, ort_mad=some.ours_mad)
            for all_of_it, some in pairs
        ),
    )


def _slower(candidate: Candidate, what: str, verdict: Verdict) -> Refusal:
    node = candidate.anchor.node
    reason = (
        verdict.reason
        or f"{'measured' if verdict.measured else 'predicted'} slower than ONNX Runtime"
    )
    return Refusal(
        node.name,
        node.op,
        f"{reason}, {what}",
        candidate.output.name,
        "--fuse all",
        verdict.values(),
    )


def _predicted(region: Region, part: Part | None = None) -> Comparison:
    """A comparison of predicted times on both sides: a measured kernel beside a predicted ONNX
    Runtime would say more about the predictions than about the kernel."""
    ours = [predict(problem, region.arch)[1] for problem in region.problems]
    theirs = [ort_us(problem_of(c, None, region.at), ARCHS[region.arch]) for c in region.candidates]
    conversions = sum(conversion_us(tensor, form, region) for tensor, form in region.conversions)
    if part is None:
        return Comparison(
            sum(ours) + conversions,
            0.0,
            sum(theirs),
            0.0,
            measured=False,
            region=region.description,
        )
    mixed = sum(theirs[i] if i in part.left_out else ours[i] for i in range(len(ours)))
    return Comparison(
        mixed + conversions,
        0.0,
        min(sum(ours) + conversions, sum(theirs)),
        0.0,
        measured=False,
        region=region.description,
    )
