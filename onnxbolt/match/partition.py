"""Chooses among overlapping candidates: every node belongs to at most one."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Candidate


def partition(candidates: list[Candidate]) -> list[Candidate]:
    """Disjoint candidates, in the given order.

    If two candidates share a node (a residual Add behind two convolutions), the one with the longer
    epilogue keeps it; of ops that take no epilogue, the one with more nodes. Of equal lengths it is
    the one whose op itself has more nodes, or else the later one: the other one's result is then
    computed first and read as the residual. The other one is shortened to end before the node; it
    is dropped if its result would then be no tensor of the source model.
    """
    order = sorted(
        range(len(candidates)),
        key=lambda i: (
            candidates[i].anchor.op.takes_epilogue,
            -_length(candidates[i]),
            -len(candidates[i].anchor.nodes),
            -i,
        ),
    )
    chosen: dict[int, Candidate] = {}
    owned: set[gs.Node] = set()
    for i in order:
        candidate: Candidate | None = candidates[i]
        taken = next((node for node in candidates[i].nodes if node in owned), None)
        if taken is not None:
            candidate = candidates[i].before(taken)
        if candidate is None:
            continue
        owned.update(candidate.nodes)
        chosen[i] = candidate
    return [chosen[i] for i in sorted(chosen)]


def _length(candidate: Candidate) -> int:
    return len(candidate.links if candidate.anchor.op.takes_epilogue else candidate.nodes)
