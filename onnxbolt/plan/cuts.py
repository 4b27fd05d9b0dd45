"""Where chains of GEMMs are cut: which neighbouring layers one kernel computes (Bolt, section 3.1.1).

A kernel for several layers saves the bytes between them and launches, and pays with what it can keep resident. Dynamic programming
over each chain: the cheapest way from a layer on is one kernel for some layers and the cheapest way from there on.
"""
from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_graphsurgeon as gs

from onnxbolt.epilogues import PRODUCT
from onnxbolt.match.matcher import match
from onnxbolt.match.partition import partition
from onnxbolt.match.types import Candidate, Refusal
from onnxbolt.plan.cost import predict, supports
from onnxbolt.plan.problems import problem_of
from onnxbolt.plan.ranges import AS_IS, Point

_ARCH = 90


def cover(graph: gs.Graph, archs: Sequence[int], at: Point = AS_IS) -> tuple[list[Candidate], list[Refusal]]:
    """Disjoint candidates of a graph, and why other nodes stay as they were. Of `archs` sm_90a alone has kernels for several products."""
    several = list(archs) == [_ARCH]
    candidates, refusals = match(graph, several)
    return partition(cut(candidates, _ARCH, at) if several else candidates), refusals


def cut(candidates: Sequence[Candidate], arch: int, at: Point = AS_IS) -> list[Candidate]:
    """The candidates, chains with several products shortened to what the first kernel of their cheapest cover computes.

    Every further product begins a candidate of its own, too: what is cut off is there already.
    """
    chains = _Chains(candidates, arch, at)
    return [chains.best(candidate)[1] for candidate in candidates]


class _Chains:
    """Predicted microseconds of what is left of a chain, by its first product."""

    def __init__(self, candidates: Sequence[Candidate], arch: int, at: Point) -> None:
        self._starting = {id(candidate.anchor.node): candidate for candidate in candidates}
        self._arch, self._at = arch, at
        self._known: dict[int, tuple[float, Candidate]] = {}

    def best(self, candidate: Candidate) -> tuple[float, Candidate]:
        """The time from this candidate's first product to its end, and the candidate as far as one kernel computes it."""
        key = id(candidate.anchor.node)
        if key not in self._known:
            self._known[key] = min((self._alternative(candidate, end) for end in self._ends(candidate)), key=lambda found: found[0])
        return self._known[key]

    def _ends(self, candidate: Candidate) -> list[int]:
        """Where the first kernel may end: before each further product (shortest first, which wins where times are equal), or at the end."""
        products = [i for i, link in enumerate(candidate.links) if link.step.name == PRODUCT]
        return [*products, len(candidate.links)]

    def _alternative(self, candidate: Candidate, end: int) -> tuple[float, Candidate]:
        first = candidate.prefix(end)
        if first is None or (end < len(candidate.links) and first.output is not candidate.links[end].nodes[0].inputs[0]):
            return math.inf, candidate
        if end == len(candidate.links):
            return self._one_kernel_us(first), first
        rest = self._starting.get(id(candidate.links[end].nodes[0]))
        return (math.inf, first) if rest is None else (self._one_kernel_us(first) + self.best(rest)[0], first)

    def _one_kernel_us(self, candidate: Candidate) -> float:
        """Infinite where there is no kernel for several products, or the last of them by itself can take more steps."""
        if len(candidate.widths) > 1 and self._takes_more(candidate):
            return math.inf
        problem = problem_of(candidate, None, self._at)
        return predict(problem, self._arch)[1] if supports(problem, self._arch) else math.inf

    def _takes_more(self, candidate: Candidate) -> bool:
        products = [link.nodes[0] for link in candidate.links if link.step.name == PRODUCT]
        alone = self._starting.get(id(products[-1]))
        return alone is not None and PRODUCT not in alone.chain and alone.output is not candidate.output
