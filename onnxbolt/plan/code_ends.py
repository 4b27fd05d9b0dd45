"""Codes that a kernel of their own makes of values, as the end of the kernel that computes these.

    FusedQuantize(FusedAttention(..))

The kernel of one node for both writes the codes alone. Times decide (plan/mergers.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxbolt import families
from onnxbolt.candidates import Candidate, Refusal
from onnxbolt.graph.edit import sole_use
from onnxbolt.plan.mergers import NOT_FUSED, Merger
from onnxbolt.plan.problems import problem_of
from onnxbolt.plan.ranges import Point
from onnxbolt.problems import QuantizeProblem


def mergers(
    graph: gs.Graph, candidates: Sequence[Candidate], archs: Sequence[int], at: Point
) -> Iterator[Merger | Refusal]:
    """Each candidate with the codes that another one makes of its result."""
    starting = {candidate.anchor.node: candidate for candidate in candidates}
    for alone in candidates:
        together = with_codes(graph, alone, starting)
        if together is not None:
            sizes = problem_of(together, None, at).description
            node = together.layers[1].anchor.node
            yield Merger((together,), together.layers, node, NOT_FUSED, sizes)


def with_codes(
    graph: gs.Graph, candidate: Candidate, starting: Mapping[gs.Node, Candidate]
) -> Candidate | None:
    """`candidate` with the step that makes codes of its result, where nobody else reads that; both
    are its layers. None where no kernel makes such codes, or none does so for `candidate`."""
    op = candidate.anchor.op
    node = sole_use(graph, candidate.output) if op.takes_codes and not candidate.links else None
    behind = None if node is None else starting.get(node)
    if behind is None or behind.anchor.op.problem_type is not QuantizeProblem:
        return None
    if not families.takes_codes(op.name, behind.out):
        return None
    link = replace(behind.links[0], nodes=behind.nodes)
    return replace(candidate, links=(link,), layers=(candidate, behind))
