"""Mergers: one kernel for what several kernels would compute.

A product with the normalization behind it (plan/norms.py), two products that are multiplied with
one another (plan/gates.py), a convolution with a global average pooling (plan/global_average.py).
One kernel is taken if it is faster than several: by measured times if all of these kernels have
them, otherwise by predicted ones. An earlier decision is kept.
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
_TOGETHER = 2  # layers of a cut that is no cut: two


@dataclass(frozen=True)
class Merger:
    """`together` computes what its `layers` would compute apart, together with what ONNX Runtime
    computes in `ort_us` microseconds, summed over the architectures.

    If they stay apart, the report says so of `node`, in the words `apart`. Where no kernel is
    that of `together`, it names the `sizes` and the `remedy`.
    """

    together: Candidate
    node: gs.Node
    apart: str
    sizes: str
    remedy: str = ""
    ort_us: float = 0.0

    def problems(self, at: Point) -> tuple[Problem, ...]:
        """The problem of one kernel, and those of each layer by itself."""
        return tuple(problem_of(c, None, at) for c in (self.together, *self.together.layers))

    def refusal(
        self, reason: str, remedy: str = "", values: dict[str, float] | None = None
    ) -> Refusal:
        return Refusal(
            self.node.name,
            self.node.op,
            f"{self.apart}, {reason}",
            self.together.layers[0].output.name,
            remedy,
            values or {},
            apart=True,
        )

    def lacks(self, archs: Sequence[int], at: Point) -> Refusal | None:
        """Why not all of `archs` have a kernel for `together`; None if they have."""
        if all(supports(self.problems(at)[0], number) for number in archs):
            return None
        return self.refusal(f"because no kernel computes both: {self.sizes}", self.remedy)

    def taken(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates with `together` in the place of its layers: where its anchor's is."""
        place = self.together.anchor.node
        return [
            self.together if each.anchor.node is place else each
            for each in candidates
            if each.anchor.node is place or each not in self.together.layers
        ]


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

    A layer is merged once, by the first merger. Raises FrozenError where `timings` are frozen and
    lack a decision.
    """
    chosen, refusals, cuts = list(candidates), list[Refusal](), dict[str, Cut]()
    for merger in mergers:
        refusal = merger if isinstance(merger, Refusal) else merger.lacks(archs, at)
        if not isinstance(merger, Refusal) and refusal is None:
            if any(layer not in chosen for layer in merger.together.layers):
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
            yield from merger.problems(at)


def until(
    candidates: Sequence[Candidate], mergers: Iterable[Merger | Refusal], ends: Container[str]
) -> list[Candidate]:
    """The candidates of another plan, given the names `ends` of its outputs."""
    chosen = list(candidates)
    for merger in mergers:
        if isinstance(merger, Merger):
            first, last = merger.together.layers[0], merger.together
            if last.output.name in ends and first.output.name not in ends:
                chosen = merger.taken(chosen)
    return chosen


def _decided(
    merger: Merger, archs: Sequence[int], at: Point, timings: Timings
) -> tuple[str, Cut, Refusal | None]:
    """The decision's key, the decision, and the refusal if the layers stay apart, since one kernel
    is slower or an earlier run decided so."""
    both, *apart = merger.problems(at)
    behind = ""
    for problem in apart[:0:-1]:  # the first layer follows from `both`
        behind = chain_key(problem, archs, behind)
    key = chain_key(both, archs, behind)
    times = compared((both,), apart, archs, timings)
    apart_us = times.second_us + merger.ort_us
    faster = times.first_us <= apart_us
    known = timings.cut(key, _TOGETHER, f"whether one kernel computes {both.description}")
    taken = faster if known is None else known.layers == _TOGETHER
    cut = Cut(_TOGETHER if taken else 1, both.description)
    if taken:
        return key, cut, None
    word = "was measured" if times.measured else "is predicted"
    slower = f"because one kernel for both {word} to be slower"
    values = {"together_us": times.first_us, "apart_us": apart_us}
    return key, cut, merger.refusal("as decided before" if faster else slower, values=values)
