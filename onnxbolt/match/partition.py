"""Chooses among overlapping chains: every node belongs to one candidate at most."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Candidate


def partition(candidates: list[Candidate]) -> list[Candidate]:
    """Disjoint candidates, in the given order.

    Where two chains meet at a node (a residual Add behind two convolutions), the longer one keeps
    it, and of two equal ones the later: then the other's result is computed early and read as the
    residual. The loser ends before the node, or goes where its result would then be no tensor of
    the source.
    """
    order = sorted(
        range(len(candidates)),
        key=lambda i: (
            candidates[i].anchor.op.takes_epilogue,
            -len(candidates[i].links),
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
