"""Candidates and refusals of a graph: from each anchor the chain is followed as far as the patterns go.

Chains of different anchors may overlap (both convolutions before a residual Add can take it); `partition` chooses.
"""
from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from onnxbolt.epilogues import CASTS, MAX_PARAMS, MAX_TENSORS, MAX_VECTORS
from onnxbolt.match.types import Anchor, Candidate, Link, Refusal
from onnxbolt.patterns import anchors, steps

_UNKNOWN = "its result is no tensor of the original, so nothing could verify it"
_FULL = f"the epilogue before it is full: {MAX_VECTORS} vectors, {MAX_TENSORS} tensors and {MAX_PARAMS} parameters at most"


def match(graph: gs.Graph) -> tuple[list[Candidate], list[Refusal]]:
    """Every anchor's longest chain, in the graph's order, and why the other anchors stay as they were."""
    pinned = {tensor.name for tensor in graph.outputs} | set(graph.captured)
    candidates: list[Candidate] = []
    refusals: list[Refusal] = []
    for node in graph.nodes:
        pattern = anchors().get(node.op) if node.domain in (None, "", "ai.onnx") else None
        if pattern is None:
            continue
        found = pattern.match(node)
        if isinstance(found, Refusal):
            refusals.append(found)
        else:
            anchor, links = found
            chain = _follow(anchor, links, pinned, refusals)
            candidate = Candidate(anchor, chain, graph.source_tensors).prefix(len(chain))
            if candidate is None:
                refusals.append(Refusal(node.name, node.op, _UNKNOWN, node.outputs[0].name))
            else:
                candidates.append(candidate)
    return candidates, refusals


def _follow(anchor: Anchor, links: tuple[Link, ...], pinned: set[str], refusals: list[Refusal]) -> tuple[Link, ...]:
    chain = list(links)
    tensor = anchor.node.outputs[0]
    while found := _next(anchor, chain, tensor, pinned, refusals):
        chain += found
        tensor = found[-1].output
    return tuple(chain)


def _next(anchor: Anchor, chain: list[Link], tensor: gs.Tensor, pinned: set[str],
          refusals: list[Refusal]) -> tuple[Link, ...]:
    """What the node behind `tensor` adds.

    A value that is used elsewhere, or is a graph output, has to be produced, so it ends the chain.
    """
    if tensor.name in pinned or len(tensor.outputs) != 1 or (chain and chain[-1].step.name in CASTS.values()):
        return ()
    return links_over(tensor.outputs[0], tensor, anchor, chain, refusals)


def links_over(node: gs.Node, tensor: gs.Tensor, anchor: Anchor, chain: Sequence[Link], refusals: list[Refusal]) -> tuple[Link, ...]:
    """The links by which `node` continues `chain` from `tensor`; none where no pattern takes it, or the kernel's arguments are full.

    Refusals read "general: details".
    """
    for pattern in steps().get((node.domain or "", node.op), ()):
        found = pattern.match(node, tensor, anchor)
        if isinstance(found, str):
            refusals.append(Refusal(node.name, node.op, f"not in the epilogue before it, since {found}", tensor.name))
        elif found is not None:
            links = found if isinstance(found, tuple) else (found,)
            if fits([*chain, *links]):
                return links
            refusals.append(Refusal(node.name, node.op, _FULL, tensor.name))
    return ()


def fits(chain: Sequence[Link]) -> bool:
    """Whether the kernel's argument block (custom_ops/kernel.h) holds the operands and parameters."""
    operands = [link.step.row.operand for link in chain]
    params = sum(len(link.step.params) for link in chain)
    return operands.count("vector") <= MAX_VECTORS and operands.count("tensor") <= MAX_TENSORS and params <= MAX_PARAMS
