"""Global average poolings in the epilogue of the convolution before them (step Mean), whose kernel
then writes the means alone.

One kernel for both is taken if it is faster than two: by measured times if there are any, otherwise
by predicted ones, as for several layers in one kernel (plan/cuts.py). A pooling's time is always
predicted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

import onnx_graphsurgeon as gs

from onnxbolt.archs import get
from onnxbolt.candidates import Candidate, Link, Refusal
from onnxbolt.epilogues import CASTS, MEAN, PRODUCT, Step
from onnxbolt.errors import FrozenError
from onnxbolt.families import most_mean_pixels
from onnxbolt.graph.edit import is_mean, sole_use
from onnxbolt.match.matcher import links_over
from onnxbolt.measurements.timings import Cut, Timings
from onnxbolt.onnxruntime_time import pool_us
from onnxbolt.plan.cost import supports
from onnxbolt.plan.kernel_times import KernelTimes
from onnxbolt.plan.problems import chain_key, problem_of
from onnxbolt.plan.ranges import Point
from onnxbolt.problems import Problem

_APART = "not fused into the previous epilogue"
_REMEDY = (
    f"only sm_90a has kernels that average images: of up to {most_mean_pixels()} pixels,"
    " with channels of a multiple of 16 bytes"
)
_TOGETHER = 2  # layers of a cut: the convolution and the pooling


class Pair(NamedTuple):
    """A convolution with the pooling behind it, and by itself."""

    together: Candidate
    alone: Candidate

    @property
    def pooling(self) -> gs.Node:
        return self.together.links[len(self.alone.links)].nodes[0]

    def problems(self, at: Point) -> tuple[Problem, Problem]:
        """The problems of a kernel for both, and of one for the convolution alone."""
        return problem_of(self.together, None, at), problem_of(self.alone, None, at)

    def refusal(
        self, reason: str, remedy: str = "", values: dict[str, float] | None = None
    ) -> Refusal:
        return Refusal(
            self.pooling.name,
            self.pooling.op,
            f"{_APART}, {reason}",
            self.alone.output.name,
            remedy,
            values or {},
            apart=True,
        )


class Averaged(NamedTuple):
    """Candidates, some of which include the pooling behind them; why other poolings have kernels of
    their own; and the decisions by their keys."""

    candidates: list[Candidate]
    refusals: list[Refusal]
    cuts: dict[str, Cut]


def with_pooling(graph: gs.Graph, candidate: Candidate) -> Candidate | None:
    """`candidate` with the global average pooling that alone reads its result, and with a Cast
    behind the pooling; None if there is no such pooling."""
    node = sole_use(graph, candidate.output) if candidate.anchor.op.takes_mean else None
    if node is None or not is_mean(node) or len(candidate.output.shape or ()) != 4:
        return None
    if any(step == PRODUCT or step in CASTS.values() for step in candidate.steps):
        return None
    links = (*candidate.links, Link(Step(MEAN), None, (node,), node.outputs[0]))
    behind = sole_use(graph, node.outputs[0])
    if behind is not None and behind.op == "Cast":
        links += links_over(behind, node.outputs[0], candidate.anchor, links).links
    found = dataclasses.replace(candidate, links=links, layers=()).prefix(len(links))
    return (
        dataclasses.replace(found, layers=(candidate,))
        if found is not None and MEAN in found.steps
        else None
    )


def until(
    graph: gs.Graph, candidates: Sequence[Candidate], ends: Container[str]
) -> list[Candidate]:
    """The candidates, each with the pooling behind it if `ends` has the pooling's output."""
    averaged = ((candidate, with_pooling(graph, candidate)) for candidate in candidates)
    return [
        longer if longer is not None and longer.output.name in ends else candidate
        for candidate, longer in averaged
    ]


def measurable(
    graph: gs.Graph, candidates: Sequence[Candidate], archs: Sequence[int], at: Point
) -> Iterator[Problem]:
    """The problems whose kernels' times decide where poolings are computed."""
    for candidate in candidates:
        together = with_pooling(graph, candidate)
        if together is not None and not _lacks(pair := Pair(together, candidate), archs, at):
            yield from pair.problems(at)


def where_faster(
    graph: gs.Graph,
    candidates: Sequence[Candidate],
    archs: Sequence[int],
    at: Point,
    timings: Timings,
) -> Averaged:
    """The candidates, each with the pooling behind it if one kernel for both is faster.

    Raises FrozenError where `timings` are frozen and lack a decision.
    """
    chosen, refusals, cuts = [], list[Refusal](), dict[str, Cut]()
    for candidate in candidates:
        together = with_pooling(graph, candidate)
        refusal = None
        if together is not None:
            pair = Pair(together, candidate)
            refusal = _lacks(pair, archs, at)
            if refusal is None:
                key, cut, refusal = _compared(pair, archs, at, timings)
                cuts[key] = cut
        chosen.append(candidate if together is None or refusal is not None else together)
        refusals += [refusal] if refusal is not None else []
    return Averaged(chosen, refusals, cuts)


def _lacks(pair: Pair, archs: Sequence[int], at: Point) -> Refusal | None:
    """Why not all of `archs` have a kernel for both; None if they have."""
    pixels = pair.pooling.inputs[0].shape[2:]
    if any(not isinstance(size, int) for size in pixels):
        return pair.refusal("because its images have no fixed size", _REMEDY)
    if all(supports(pair.problems(at)[0], number) for number in archs):
        return None
    return pair.refusal(
        f"because no kernel computes both: {math.prod(pixels)} pixels of {pair.alone.widths[-1]}"
        " channels",
        _REMEDY,
    )


def _compared(
    pair: Pair, archs: Sequence[int], at: Point, timings: Timings
) -> tuple[str, Cut, Refusal | None]:
    """The decision's key, the decision, and the refusal if the pooling stays apart, since one
    kernel is slower or an earlier run decided so."""
    both, alone = pair.problems(at)
    key = chain_key(both, archs)
    times = [KernelTimes((both, alone), number, timings) for number in archs]
    values = {
        "together_us": sum(each.us(both) for each in times),
        "apart_us": (
            sum(each.us(alone) for each in times)
            + sum(_pooling_us(pair, alone, number) for number in archs)
        ),
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
    measured = all(each.is_measured(problem) for each in times for problem in (both, alone))
    slower = (
        "because it was measured to be slower"
        if measured
        else "because it is predicted to be slower"
    )
    return key, cut, pair.refusal("as decided before" if faster else slower, values=values)


def _pooling_us(pair: Pair, alone: Problem, number: int) -> float:
    read = alone.rows * pair.alone.widths[-1]
    return pool_us(
        read, read // math.prod(pair.pooling.inputs[0].shape[2:]), alone.dtype, get(number)
    )
