"""Normalizations of rows in the epilogue of the product before them (steps LayerNorm and RmsNorm),
whose kernel then holds whole rows.

    s = x W + b + residual      y, s = norm(x W + b + residual)
    y = norm(s)

s is a second output if others read it. One kernel is taken if it is faster than two: by measured
times if all three have them, otherwise by predicted ones, as for several layers in one kernel
(plan/cuts.py). Which of the two kernels adds the residual is settled before (plan/residuals.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Candidate, Link, Refusal
from onnxbolt.epilogues import CASTS, MAX_PARAMS, MAX_TENSORS, MAX_VECTORS, STORE, Step
from onnxbolt.errors import FrozenError
from onnxbolt.families import problem_types
from onnxbolt.graph.edit import sole_use
from onnxbolt.measurements.timings import NOTHING, Cut, Timings
from onnxbolt.plan.cost import supports
from onnxbolt.plan.kernel_times import KernelTimes
from onnxbolt.plan.problems import chain_key, problem_of
from onnxbolt.plan.ranges import Point
from onnxbolt.problems import Problem

_APART = "not fused into the previous epilogue"
_REMEDY = (
    "only sm_90a has kernels that normalize the rows of a product: of up to 2,048 columns that"
    " up to eight blocks divide evenly"
)
_TOGETHER = 2  # layers of a cut: the product and the normalization


class _Pair(NamedTuple):
    """A product with the normalization behind it, and both by themselves."""

    together: Candidate
    product: Candidate
    norm: Candidate

    def problems(self, at: Point) -> tuple[Problem, ...]:
        """The problems of one kernel, of the product alone and of the normalization alone."""
        return tuple(problem_of(candidate, None, at) for candidate in self)

    def refusal(self, reason: str, values: dict[str, float] | None = None) -> Refusal:
        node, remedy = self.norm.anchor.nodes[-1], "" if values else _REMEDY
        tensor = self.product.output.name
        return Refusal(
            node.name, node.op, f"{_APART}, {reason}", tensor, remedy, values or {}, apart=True
        )


class Normalized(NamedTuple):
    """Candidates, some of which include the normalization behind them; why other normalizations
    have kernels of their own; and the decisions by their keys."""

    candidates: list[Candidate]
    refusals: list[Refusal]
    cuts: dict[str, Cut]


def where_faster(
    graph: gs.Graph,
    candidates: Sequence[Candidate],
    archs: Sequence[int],
    at: Point,
    timings: Timings,
) -> Normalized:
    """The candidates, each with the normalization behind it if one kernel for both is faster.

    Raises FrozenError where `timings` are frozen and lack a decision.
    """
    chosen, refusals, cuts = list(candidates), list[Refusal](), dict[str, Cut]()
    for pair in _pairs(graph, candidates):
        refusal = _lacks(pair, archs, at)
        if refusal is None:
            key, cut, refusal = _compared(pair, archs, at, timings)
            cuts[key] = cut
        if refusal is None:
            chosen = _joined(chosen, pair)
        else:
            refusals.append(refusal)
    return Normalized(chosen, refusals, cuts)


def until(
    graph: gs.Graph, candidates: Sequence[Candidate], ends: Container[str]
) -> list[Candidate]:
    """The candidates, each with the normalization behind it if `ends` has the normalization's
    output and not the product's own."""
    chosen = list(candidates)
    for pair in _pairs(graph, candidates):
        if pair.norm.output.name in ends and pair.product.output.name not in ends:
            chosen = _joined(chosen, pair)
    return chosen


def measurable(
    graph: gs.Graph, candidates: Sequence[Candidate], archs: Sequence[int], at: Point
) -> Iterator[Problem]:
    """The problems whose kernels' times decide where normalizations are computed."""
    for pair in _pairs(graph, candidates):
        if not _lacks(pair, archs, at):
            yield from pair.problems(at)


def _pairs(graph: gs.Graph, candidates: Sequence[Candidate]) -> Iterator[_Pair]:
    """The normalizations that the product before them might compute, each once; none if planning
    may choose no kernels for that."""
    producers = {
        c.output.name: c
        for c in candidates
        if c.anchor.op.takes_norm and len(c.widths) == 1 and c.out is c.anchor.dtype
    }
    taken = set[str]()  # products that have a normalization already
    for norm in candidates:
        for x in (norm.anchor.x, *norm.tensors):
            product = producers.get(x.name)
            if product is None or x.name in taken:
                continue
            together = _with_norm(graph, product, norm)
            if together is None or _class_of(together) not in problem_types():
                continue
            taken.add(x.name)
            yield _Pair(together, product, norm)
            break


def _with_norm(graph: gs.Graph, product: Candidate, norm: Candidate) -> Candidate | None:
    """One candidate for both; None if the normalization is of another type, or if its residual and
    the product's are too many operands."""
    x = product.output
    links = norm.anchor.op.as_epilogue(norm, x)
    if not links or norm.anchor.dtype is not product.anchor.dtype:
        return None
    adds = links[0].step.row.operand == "tensor"
    if sole_use(graph, x) is None:
        if adds:
            return None  # others read what the residual is added to
        links = (Link(Step(STORE), None, (), x), *links)
    whole = (*product.links, *links)
    found = dataclasses.replace(product, links=whole, layers=(product, norm))
    known = all(map(found.is_known, found.outputs))
    return found if known and _fits(whole) else None


def _fits(links: Sequence[Link]) -> bool:
    """True if the kernel's arguments have room for the links' operands and parameters."""
    operands = [link.step.row.operand for link in links]
    return (
        operands.count("vector") <= MAX_VECTORS
        and operands.count("tensor") <= MAX_TENSORS
        and sum(len(link.step.params) for link in links) <= MAX_PARAMS
        and not any(link.step.name in CASTS.values() for link in links)
    )


def _class_of(candidate: Candidate) -> str:
    return type(problem_of(candidate, None)).__name__


def _joined(candidates: Sequence[Candidate], pair: _Pair) -> list[Candidate]:
    replaced = {pair.product: [pair.together], pair.norm: []}
    return [kept for c in candidates for kept in replaced.get(c, [c])]


def _lacks(pair: _Pair, archs: Sequence[int], at: Point) -> Refusal | None:
    """Why not all of `archs` have a kernel for both; None if they have."""
    if all(supports(pair.problems(at)[0], number) for number in archs):
        return None
    return pair.refusal(
        f"because no kernel computes both: rows of {pair.product.widths[-1]} columns"
    )


def _compared(
    pair: _Pair, archs: Sequence[int], at: Point, timings: Timings
) -> tuple[str, Cut, Refusal | None]:
    """The decision's key, the decision, and the refusal if the normalization stays apart, since one
    kernel is slower or an earlier run decided so."""
    both, *alone = problems = pair.problems(at)
    key = chain_key(both, archs, chain_key(alone[1], archs))
    times = [KernelTimes(problems, number, timings) for number in archs]
    measured = all(each.is_measured(problem) for each in times for problem in problems)
    if not measured:  # a measured time beside a predicted one would favor one side
        unmeasured = dataclasses.replace(NOTHING, failed=timings.failed)
        times = [KernelTimes(problems, number, unmeasured) for number in archs]
    values = {
        "together_us": sum(each.us(both) for each in times),
        "apart_us": sum(each.us(problem) for each in times for problem in alone),
    }
    faster = values["together_us"] <= values["apart_us"]
    if (known := timings.cuts.get(key)) is not None:
        taken = known.layers == _TOGETHER
    elif timings.frozen:
        raise FrozenError(
            f"the lock file lacks whether one kernel computes {both.description}. "
            "Run once without freezing and commit the lock file"
        )
    else:
        taken = faster
    cut = Cut(_TOGETHER if taken else 1, both.description)
    if taken:
        return key, cut, None
    slower = f"because it {'was measured' if measured else 'is predicted'} to be slower"
    return key, cut, pair.refusal("as decided before" if faster else slower, values)
