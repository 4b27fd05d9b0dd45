"""Where chains of GEMMs are cut: which neighbouring layers one kernel computes (Bolt, section 3.1.1).

A kernel for several layers saves the bytes between them and launches, and pays with what it can keep resident. Dynamic programming
over each chain: the cheapest way from a layer on is one kernel for some layers and the cheapest way from there on.
"""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import onnx_graphsurgeon as gs

from onnxbolt.epilogues import PRODUCT
from onnxbolt.match.matcher import UNKNOWN, match
from onnxbolt.match.partition import partition
from onnxbolt.match.types import Candidate, Refusal
from onnxbolt.plan.cost import predict, supports
from onnxbolt.plan.problems import problem_of
from onnxbolt.plan.ranges import AS_IS, Point

_ARCH = 90
_APART = "not in one kernel with the layer before it, which is predicted to be slower"


def cover(graph: gs.Graph, archs: Sequence[int], at: Point = AS_IS) -> tuple[list[Candidate], list[Refusal]]:
    """Disjoint candidates of a graph, and why other nodes stay as they were, or apart from the layer before them.

    Of `archs` sm_90a alone has kernels for several products.
    """
    several = list(archs) == [_ARCH]
    candidates, refusals = match(graph, several)
    if not several:
        return partition(candidates), refusals
    chains = _Chains(candidates, _ARCH, at)
    found = partition(list(chains.first_kernels(refusals)))
    refusals += (cut for candidate in found if (cut := chains.cut_behind(candidate)) is not None)
    return [dataclasses.replace(candidate, layers=chains.layers(candidate)) for candidate in found], refusals


class _Chains:
    """Predicted microseconds of what is left of a chain, by its first product.

    Every further product begins a candidate of its own, too: what is cut off is there already.
    """

    def __init__(self, candidates: Sequence[Candidate], arch: int, at: Point) -> None:
        self._starting = {id(candidate.anchor.node): candidate for candidate in candidates}
        self._arch, self._at = arch, at
        self._known: dict[int, tuple[float, Candidate | None]] = {}

    def first_kernels(self, refusals: list[Refusal]) -> Iterator[Candidate]:
        """Of each candidate what the first kernel of its cheapest cover computes."""
        for candidate in self._starting.values():
            first, node = self.best(candidate)[1], candidate.anchor.node
            if first is not None:
                yield first
            else:
                refusals.append(Refusal(node.name, node.op, UNKNOWN, node.outputs[0].name))

    def best(self, candidate: Candidate) -> tuple[float, Candidate | None]:
        """The time from this candidate's first product to its end, and the candidate as far as one kernel computes it.

        Where no cover is possible, that is its first layer alone; None where nothing of that stands for a tensor of the source.
        """
        key = id(candidate.anchor.node)
        if key not in self._known:
            ends = [*_products(candidate), len(candidate.links)]  # shortest first, which wins where times are equal
            self._known[key] = min((self._ending(candidate, end) for end in ends), key=lambda found: found[0])
        return self._known[key]

    def cut_behind(self, candidate: Candidate) -> Refusal | None:
        """That the layer behind a candidate is not in its kernel, with both predicted times, where there is a kernel for both."""
        whole = self._starting[id(candidate.anchor.node)]
        apart, first = self.best(whole)
        if first is None or first.output is not candidate.output or len(first.widths) == len(whole.widths):
            return None
        end, *later = [*_products(whole)[len(first.widths) - 1:], len(whole.links)]
        together = min(self._ending(whole, longer)[0] for longer in later)
        if math.isinf(together):
            return None
        product = whole.links[end].nodes[0]
        return Refusal(product.name, product.op, _APART, first.output.name, values={"together_us": together, "apart_us": apart})

    def layers(self, candidate: Candidate) -> tuple[Candidate, ...]:
        """The layers of a candidate as candidates; none where it has only one, or one of them does not end where the next begins."""
        nodes = [candidate.anchor.node, *(candidate.links[i].nodes[0] for i in _products(candidate))]
        found = [layer for node in nodes if (layer := self._layer(node)) is not None]
        ends = [*(node.inputs[0] for node in nodes[1:]), candidate.output]
        complete = len(found) == len(nodes) > 1 and all(layer.output is end for layer, end in zip(found, ends, strict=True))
        return tuple(found) if complete else ()

    def _layer(self, node: gs.Node) -> Candidate | None:
        """The candidate that begins with a product, before its first further one."""
        candidate = self._starting.get(id(node))
        return candidate and candidate.prefix(next(iter(_products(candidate)), len(candidate.links)))

    def _ending(self, candidate: Candidate, end: int) -> tuple[float, Candidate | None]:
        """The time where the first kernel ends before the link at `end`; infinite where it cannot."""
        first = candidate.prefix(end)
        if first is None:
            return math.inf, None
        if end == len(candidate.links):
            return self._one_kernel_us(first), first
        product = candidate.links[end].nodes[0]
        rest = self._starting.get(id(product))
        if rest is None or first.output is not product.inputs[0]:
            return math.inf, first
        return self._one_kernel_us(first) + self.best(rest)[0], first

    def _one_kernel_us(self, candidate: Candidate) -> float:
        """Infinite where there is no kernel for several products, or the last of them by itself can take more steps."""
        if len(candidate.widths) > 1 and self._takes_more(candidate):
            return math.inf
        problem = problem_of(candidate, None, self._at)
        return predict(problem, self._arch)[1] if supports(problem, self._arch) else math.inf

    def _takes_more(self, candidate: Candidate) -> bool:
        alone = self._starting.get(id(candidate.links[_products(candidate)[-1]].nodes[0]))
        return alone is not None and PRODUCT not in alone.chain and alone.output is not candidate.output


def _products(candidate: Candidate) -> list[int]:
    """The positions of further products among a candidate's links."""
    return [i for i, link in enumerate(candidate.links) if link.step.name == PRODUCT]
