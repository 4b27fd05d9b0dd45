"""Products whose results are multiplied with one another, as one product.

    act(x G) * (x U)

The kernel of one product for both reads x once, and nothing in between. It is taken if it is faster
than two kernels, by measured times if there are any, otherwise by predicted ones, as for several
layers in one kernel (plan/cuts.py). The op of the new candidate says which products these are
(FusedOp.combined).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

import onnx_graphsurgeon as gs

from onnxbolt import ops
from onnxbolt.candidates import Candidate, Refusal
from onnxbolt.errors import FrozenError
from onnxbolt.graph.edit import sole_use
from onnxbolt.measurements.timings import Cut, Timings
from onnxbolt.plan.cost import supports
from onnxbolt.plan.kernel_times import KernelTimes
from onnxbolt.plan.problems import chain_key, problem_of
from onnxbolt.plan.ranges import Point
from onnxbolt.problems import Problem

_TOGETHER = 2  # layers of a cut: both products
_APART = "its factors are not one product, because"


class Combined(NamedTuple):
    """Candidates, some of which compute two products; why others stay apart; and the decisions by
    their keys."""

    candidates: list[Candidate]
    refusals: list[Refusal]
    cuts: dict[str, Cut]


def where_faster(
    graph: gs.Graph,
    candidates: Sequence[Candidate],
    archs: Sequence[int],
    at: Point,
    timings: Timings,
) -> Combined:
    """The candidates, with one in the place of two where one kernel for both is faster.

    Raises FrozenError where `timings` are frozen and lack a decision.
    """
    chosen, refusals, cuts = list(candidates), list[Refusal](), dict[str, Cut]()
    for pair in _pairs(graph, candidates):
        if isinstance(pair, Refusal):
            refusals.append(pair)
        elif (refusal := _lacks(pair, archs, at)) is not None:
            refusals.append(refusal)
        elif all(any(each is layer for each in chosen) for layer in pair.layers):
            key, cut, refusal = _compared(pair, archs, at, timings)
            cuts[key] = cut
            if refusal is None:
                chosen = _replaced(chosen, pair)
            else:
                refusals.append(refusal)
    return Combined(chosen, refusals, cuts)


def measurable(
    graph: gs.Graph, candidates: Sequence[Candidate], archs: Sequence[int], at: Point
) -> Iterator[Problem]:
    """The problems whose kernels' times decide."""
    for pair in _pairs(graph, candidates):
        if isinstance(pair, Candidate) and _lacks(pair, archs, at) is None:
            yield from (problem_of(each, None, at) for each in (pair, *pair.layers))


def until(
    graph: gs.Graph, candidates: Sequence[Candidate], ends: Container[str]
) -> list[Candidate]:
    """The candidates of another plan, given the names `ends` of its outputs."""
    chosen = list(candidates)
    for pair in _pairs(graph, candidates):
        if isinstance(pair, Candidate) and pair.output.name in ends:
            inner, _ = pair.layers
            chosen = chosen if inner.output.name in ends else _replaced(chosen, pair)
    return chosen


def _pairs(graph: gs.Graph, candidates: Sequence[Candidate]) -> Iterator[Candidate | Refusal]:
    """For each candidate with an operand that another one computes for it alone, the candidate that
    computes both, or why there is none."""
    made = {candidate.output.name: candidate for candidate in candidates}
    for whole in candidates:
        for tensor in whole.tensors:
            other = made.get(tensor.name)
            if other is None or other is whole or sole_use(graph, tensor) is None:
                continue
            found = (op.combined(whole, other) for op in ops.OPS.values())
            yield from [pair for pair in found if pair is not None][:1]


def _replaced(candidates: Sequence[Candidate], pair: Candidate) -> list[Candidate]:
    """The candidates with `pair` in the place of the later one of its layers."""
    inner, whole = pair.layers
    return [pair if each is whole else each for each in candidates if each is not inner]


def _lacks(pair: Candidate, archs: Sequence[int], at: Point) -> Refusal | None:
    """Why not all of `archs` have a kernel for both; None if they have."""
    problem = problem_of(pair, None, at)
    if all(supports(problem, number) for number in archs):
        return None
    return _refusal(pair, f"no kernel computes both: {problem.description}", {})


def _refusal(pair: Candidate, reason: str, values: dict[str, float]) -> Refusal:
    inner, whole = pair.layers
    node = next(link.nodes[0] for link in whole.links if link.operand is inner.output)
    reason = f"{_APART} {reason}"
    return Refusal(node.name, node.op, reason, inner.output.name, values=values, apart=True)


def _compared(
    pair: Candidate, archs: Sequence[int], at: Point, timings: Timings
) -> tuple[str, Cut, Refusal | None]:
    """The decision's key, the decision, and the refusal if the products stay apart, since one
    kernel is slower or an earlier run decided so."""
    both, *apart = (problem_of(each, None, at) for each in (pair, *pair.layers))
    key = chain_key(both, archs)
    times = [KernelTimes((both, *apart), number, timings) for number in archs]
    values = {
        "together_us": sum(each.us(both) for each in times),
        "apart_us": sum(each.us(problem) for each in times for problem in apart),
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
    measured = all(each.is_measured(problem) for each in times for problem in (both, *apart))
    slower = f"one kernel for both {'was measured' if measured else 'is predicted'} to be slower"
    return key, cut, _refusal(pair, "it was decided before" if faster else slower, values)
