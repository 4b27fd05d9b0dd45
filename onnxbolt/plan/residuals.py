"""Residuals in front of normalizations: the product whose result a residual is added to can add it
in its epilogue, and so can the normalization that reads the sum.

    t = x W + b                 t = x W + b + residual
    y, t + residual = norm      y = norm(t)

The product's kernel then writes the sum once, while the normalization reads two tensors, and
writes the sum as a second output if others read it. The faster pair of kernels is taken: by
measured times if all four kernels have them, otherwise by predicted ones. The product adds it where
both take as long.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Candidate
from onnxbolt.measurements.timings import Cut, Timings
from onnxbolt.plan.kernel_times import compared
from onnxbolt.plan.problems import chain_key, problem_of
from onnxbolt.plan.ranges import Point
from onnxbolt.problems import Problem

_PRODUCT_ADDS = 2  # layers of a cut: the product and the addition


@dataclass(frozen=True)
class _Residual:
    """One addition: the normalization with and without it, and the product likewise."""

    with_addition: Candidate
    normalization: Candidate
    product: Candidate
    bare_product: Candidate

    @property
    def addition(self) -> gs.Node:
        return self.with_addition.anchor.node

    def problems(self, at: Point) -> tuple[list[Problem], list[Problem]]:
        """The problems of the two kernels if the product adds, and if the normalization does."""
        pairs = (self.product, self.normalization), (self.bare_product, self.with_addition)
        first, second = ([problem_of(c, None, at) for c in pair] for pair in pairs)
        return first, second


class Settled(NamedTuple):
    """Candidates of which each addition is in those of one kernel alone, and the decisions by their
    keys."""

    candidates: list[Candidate]
    cuts: dict[str, Cut]


def settled(
    candidates: Sequence[Candidate], archs: Sequence[int], at: Point, timings: Timings
) -> Settled:
    """The candidates, each residual added where that is faster; earlier decisions in `timings` are
    kept. Raises FrozenError where `timings` are frozen and lack one."""
    cuts = dict[str, Cut]()
    kept = list(candidates)
    for residual in _residuals(candidates):
        key, cut = _compared(residual, archs, at, timings)
        cuts[key] = cut
        kept = _without(kept, residual, cut.layers == _PRODUCT_ADDS)
    return Settled(kept, cuts)


def settled_as(candidates: Sequence[Candidate], ends: Container[str]) -> list[Candidate]:
    """The candidates of another plan, given the names `ends` of its outputs."""
    kept = list(candidates)
    for residual in _residuals(candidates):
        kept = _without(kept, residual, residual.bare_product.output.name not in ends)
    return kept


def measurable(candidates: Sequence[Candidate], at: Point) -> Iterator[Problem]:
    """The problems whose kernels' times decide."""
    for residual in _residuals(candidates):
        for pair in residual.problems(at):
            yield from pair


def _residuals(candidates: Sequence[Candidate]) -> Iterator[_Residual]:
    """The additions that both a normalization and a product could compute."""
    at = {candidate.anchor.node: candidate for candidate in candidates}
    for whole in candidates:
        others = [at[node] for node in whole.anchor.others if node in at]
        alone = next((c for c in others if c.anchor.op is whole.anchor.op), None)
        addition = whole.anchor.node
        products = [c for c in map(_first_layer, candidates) if c and _adds(c, addition)]
        if alone is None or not products:
            continue
        product = max(products, key=lambda c: len(c.links))  # as partition chooses, the later one
        bare = product.before(addition)
        if bare is not None:
            yield _Residual(whole, alone, product, bare)


def _first_layer(candidate: Candidate) -> Candidate | None:
    return candidate.prefix(candidate.ends[0]) if candidate.anchor.op.takes_epilogue else None


def _adds(candidate: Candidate, addition: gs.Node) -> bool:
    """True if the epilogue has the addition."""
    return any(addition in link.nodes for link in candidate.links)


def _without(
    candidates: Sequence[Candidate], residual: _Residual, product_adds: bool
) -> list[Candidate]:
    """The candidates without those that the decision rules out; epilogues end before an addition
    that the normalization computes."""
    if product_adds:
        return [c for c in candidates if c is not residual.with_addition]
    shortened = (
        c.before(residual.addition) if c.anchor.op.takes_epilogue else c
        for c in candidates
        if c is not residual.normalization
    )
    return [c for c in shortened if c is not None]


def _compared(
    residual: _Residual, archs: Sequence[int], at: Point, timings: Timings
) -> tuple[str, Cut]:
    """The decision's key and the decision."""
    first, second = residual.problems(at)
    key = chain_key(first[0], archs, chain_key(second[1], archs))
    words = f"{first[0].description}, then {first[1].description}"
    decides = f"which kernel adds the residual of {words}"
    if (known := timings.cut(key, _PRODUCT_ADDS, decides)) is not None:
        return key, Cut(known.layers, words)
    ours, theirs, _ = compared(first, second, archs, timings)
    return key, Cut(_PRODUCT_ADDS if ours <= theirs else 1, words)
