"""Mergers: one kernel for what several kernels would compute.

Two products that are multiplied with one another (plan/gates.py), a convolution with a global
average pooling (plan/global_average.py), or attention with the codes of its result
(plan/code_ends.py). One kernel is taken if it is faster than several: by measured times if all of
these kernels have them, otherwise by predicted ones. An earlier decision is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Candidate, Refusal
from onnxbolt.measurements.timings import Cut, Timings
from onnxbolt.plan.cost import supports
from onnxbolt.plan.kernel_times import compared
from onnxbolt.plan.problems import chain_key, problem_of
from onnxbolt.plan.ranges import Point
from onnxbolt.problems import Problem

NOT_FUSED = "not fused into the previous epilogue"
_TOGETHER = 2  # layers of a cut where one kernel computes both


@dataclass(frozen=True)
class Merger:
    """Two ways to compute the same: the candidates `together`, or those `apart` and, in `ort_us`
    microseconds, summed over the architectures, nodes of ONNX Runtime. The first of `together` is
    the merged one; there are more if it takes a layer out of a chain, whose other layers then have
    kernels of their own.

    If they stay apart, the report says so of `node`, in the words `refused`. If there is no merged
    kernel, it names the `sizes` and the `remedy`.
    """

    together: tuple[Candidate, ...]
    apart: tuple[Candidate, ...]
    node: gs.Node
    refused: str
    sizes: str
    remedy: str = ""
    ort_us: float = 0.0

    def problems(self, at: Point) -> tuple[list[Problem], list[Problem]]:
        """The problems of `together` and `apart`."""
        together, apart = (
            [problem_of(candidate, None, at) for candidate in way]
            for way in (self.together, self.apart)
        )
        return together, apart

    def refusal(
        self, reason: str, remedy: str = "", values: dict[str, float] | None = None
    ) -> Refusal:
        return Refusal(
            self.node.name,
            self.node.op,
            f"{self.refused}, {reason}",
            self.apart[0].output.name,
            remedy,
            values or {},
            apart=True,
        )

    def lacks(self, archs: Sequence[int], at: Point) -> Refusal | None:
        """Why not all of `archs` have the kernels `together`; None if they have."""
        merged = (problem_of(candidate, None, at) for candidate in self.together)
        if all(supports(problem, number) for problem in merged for number in archs):
            return None
        return self.refusal(f"because no kernel computes both: {self.sizes}", self.remedy)

    def taken(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates with `together` in the place of `apart`, each where its anchor was."""
        anchors = {candidate.anchor.node: candidate for candidate in self.together}
        found = list[Candidate]()
        for each in candidates:
            if each in self.apart:
                found += [anchors[node] for node in each.nodes if node in anchors]
            else:
                found.append(each)
        return found


def layers_of(candidate: Candidate) -> tuple[Candidate, ...]:
    """Each layer of a chain of products as a candidate; none if one of them cannot be one."""
    return candidate.layers if len(candidate.widths) > 1 else (candidate,)


# the mergers of a graph's candidates for architectures at a point, and why others are none
Mergers = Callable[
    [gs.Graph, Sequence[Candidate], Sequence[int], Point], Iterable[Merger | Refusal]
]


class Merged(NamedTuple):
    """Candidates, some of which were merged; why others were not; and the decisions by their
    keys."""

    candidates: list[Candidate]
    refusals: list[Refusal]
    cuts: dict[str, Cut]


def where_faster(
    candidates: Sequence[Candidate],
    mergers: Iterable[Merger | Refusal],
    archs: Sequence[int],
    at: Point,
    timings: Timings,
) -> Merged:
    """The candidates, with one in the place of several where one kernel is faster.

    A candidate is merged once, by the first merger. Raises FrozenError where `timings` are frozen
    and lack a decision.
    """
    chosen, refusals, cuts = list(candidates), list[Refusal](), dict[str, Cut]()
    for merger in mergers:
        refusal = merger if isinstance(merger, Refusal) else merger.lacks(archs, at)
        if not isinstance(merger, Refusal) and refusal is None:
            if any(each not in chosen for each in merger.apart):
                continue
            key, cut, refusal = _decided(merger, archs, at, timings)
            cuts[key] = cut
            chosen = merger.taken(chosen) if refusal is None else chosen
        refusals += [] if refusal is None else [refusal]
    return Merged(chosen, refusals, cuts)


def measurable(
    mergers: Iterable[Merger | Refusal], archs: Sequence[int], at: Point
) -> Iterator[Problem]:
    """The problems whose kernels' times decide."""
    for merger in mergers:
        if isinstance(merger, Merger) and merger.lacks(archs, at) is None:
            for problems in merger.problems(at):
                yield from problems


def until(
    candidates: Sequence[Candidate], mergers: Iterable[Merger | Refusal], ends: Container[str]
) -> list[Candidate]:
    """The candidates of another plan, given the names `ends` of its outputs."""
    chosen = list(candidates)
    for merger in mergers:
        if isinstance(merger, Merger):
            together, apart = (
                all(each.output.name in ends for each in way)
                for way in (merger.together, merger.apart)
            )
            chosen = merger.taken(chosen) if together and not apart else chosen
    return chosen


def _decided(
    merger: Merger, archs: Sequence[int], at: Point, timings: Timings
) -> tuple[str, Cut, Refusal | None]:
    """The decision's key, the decision, and the refusal if they stay apart, since one kernel is
    slower or an earlier run decided so."""
    together, apart = merger.problems(at)
    merged, key = together[0], ""
    for problem in reversed((*together, *apart[1:])):  # the first one follows from the others
        key = chain_key(problem, archs, key)
    times = compared(together, apart, archs, timings)
    apart_us = times.second_us + merger.ort_us
    faster = times.first_us <= apart_us
    known = timings.cut(key, _TOGETHER, f"whether one kernel computes {merged.description}")
    taken = faster if known is None else known.layers == _TOGETHER
    cut = Cut(_TOGETHER if taken else 1, merged.description)
    if taken:
        return key, cut, None
    word = "was measured" if times.measured else "is predicted"
    slower = f"because one kernel for both {word} to be slower"
    values = {"together_us": times.first_us, "apart_us": apart_us}
    return key, cut, merger.refusal("as decided before" if faster else slower, values=values)
