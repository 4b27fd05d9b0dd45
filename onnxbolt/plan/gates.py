"""Products whose results are multiplied with one another, as one product.

    act(x G) * (x U)

The kernel of one product for both reads x once, and nothing in between. The op of the new candidate
says which products these are (FusedOp.combined), and times decide (plan/mergers.py). Either product
may be a layer of a chain that one kernel computes (plan/cuts.py): then the times of the chain, and
of its other layers by themselves, count as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_graphsurgeon as gs

from onnxbolt import ops
from onnxbolt.candidates import Candidate, Refusal
from onnxbolt.graph.edit import sole_use
from onnxbolt.plan.mergers import Merger, layers_of
from onnxbolt.plan.problems import problem_of
from onnxbolt.plan.ranges import Point

_REFUSED = "its factors are not one product"


def mergers(
    graph: gs.Graph, candidates: Sequence[Candidate], archs: Sequence[int], at: Point
) -> Iterator[Merger | Refusal]:
    """For each candidate with an operand that another one computes for it alone, the candidate that
    computes both, or why there is none."""
    made = {candidate.output.name: candidate for candidate in candidates}
    for whole in candidates:
        for tensor in whole.tensors:
            other = made.get(tensor.name)
            if other is None or other is whole or sole_use(graph, tensor) is None:
                continue
            layers = layers_of(whole), layers_of(other)
            product = next(
                (each for each in layers[0] if any(t is tensor for t in each.tensors)), None
            )
            if product is None or not layers[1]:
                continue
            factor = layers[1][-1]
            found = (op.combined(product, factor) for op in ops.OPS.values())
            both = next((each for each in found if each is not None), None)
            if isinstance(both, Candidate):
                more = (each for way in layers for each in way if each not in (product, factor))
                node = next(link.nodes[0] for link in whole.links if link.operand is tensor)
                sizes = problem_of(both, None, at).description
                yield Merger((both, *more), (other, whole), node, _REFUSED, sizes)
            elif both is not None:
                yield both
