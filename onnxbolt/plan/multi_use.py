"""Multi-use values between layers: what it costs that no kernel computes both layers.

A kernel for several layers keeps inner results to itself. If other nodes read one, the kernel ends
there, unless its family can store that result as well (epilogue step Store). The report says what
one kernel for both layers would take.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import onnx_graphsurgeon as gs

from onnxbolt.archs import get
from onnxbolt.candidates import Candidate, Link, Refusal
from onnxbolt.epilogues import PRODUCT
from onnxbolt.match.matcher import fits, links_over
from onnxbolt.plan.cost import predict, supports
from onnxbolt.plan.problems import problem_of
from onnxbolt.plan.ranges import Point

_REASON = "not merged with the previous layer, whose result has other consumers"
_REMEDY = (
    "kernels that store the result between two layers take contiguous rows, stored ones of"
    " a multiple of 16 bytes"
)
_US = 1e6


def multi_use_refusals(
    graph: gs.Graph, candidates: Sequence[Candidate], archs: Sequence[int], at: Point
) -> Iterator[Refusal]:
    """A refusal for each layer whose input is another layer's result and a multi-use value, with
    the predicted microseconds of both layers in one kernel that stores that result, and apart."""
    pinned = {tensor.name for tensor in graph.outputs} | set(graph.captured)
    producers = {candidate.output.name: candidate for candidate in candidates}
    for behind in candidates:
        before = producers.get(behind.anchor.x.name)
        if before is None or (len(before.output.outputs) == 1 and before.output.name not in pinned):
            continue
        joint = _joined(before, behind)
        times = _times(joint, before, behind, archs, at) if joint is not None else None
        if times is not None:
            node = behind.anchor.node
            yield Refusal(
                node.name, node.op, _REASON, before.stands_for, _REMEDY, times, apart=True
            )


def _joined(before: Candidate, behind: Candidate) -> Candidate | None:
    """Both layers as one candidate, as if nothing else read the value between them; None if no
    kernel could continue with the second one."""
    weights = [link.operand for link in before.links if link.step.name == PRODUCT]
    anchor = before.anchor.behind(weights[-1]) if weights else before.anchor
    product = links_over(behind.anchor.node, before.output, anchor, before.links).links
    if not product or product[0].step.name != PRODUCT:
        return None
    rest = [link for link in behind.links if link.nodes != (behind.anchor.node,)]
    links: list[Link] = [*before.links, *product, *rest]
    return dataclasses.replace(before, links=tuple(links), layers=()) if fits(links) else None


def _times(
    joint: Candidate, before: Candidate, behind: Candidate, archs: Sequence[int], at: Point
) -> dict[str, float] | None:
    """Predicted microseconds together and apart, summed over `archs`; None if an architecture
    lacks a kernel."""
    problems = [problem_of(candidate, None, at) for candidate in (joint, before, behind)]
    if not all(supports(problem, number) for problem in problems for number in archs):
        return None
    stored = problems[1].rows * before.widths[-1] * before.anchor.dtype.bytes
    together = sum(
        predict(problems[0], number)[1] + stored / get(number).bandwidth * _US for number in archs
    )
    return {
        "together_us": together,
        "apart_us": sum(
            predict(problem, number)[1] for problem in problems[1:] for number in archs
        ),
    }
