"""Decides the stored form of every tensor, in one forward pass over the graph.

Fused convolutions read and write channels last; ordinary ops follow their inputs if a rule knows
how (rules/); everything else reads tensors as ONNX has them. Outputs of fused nodes are padded to
the alignment of 16-byte accesses if that is free: if everything behind them works on padded
channels, or a change of layout leaves the padding behind. So the pass starts with all of them
padded, notes which padding would have to be taken away again, and runs anew without it. Likewise a
convolution itself can write its result as ONNX has it if no reader wants the channels last; the
plan says which do (`Assignment.leaving`), and which write both forms (`Assignment.both`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Candidate
from onnxbolt.epilogues import has_inner_residual
from onnxbolt.forms import PLAIN, Form
from onnxbolt.layout.assignment import Assignment, FusedNodes, Premises
from onnxbolt.layout.carry import Carry
from onnxbolt.layout.rules import rule_for
from onnxbolt.ops.base import Around
from onnxbolt.ops.products import LONG


def assign(
    graph: gs.Graph, candidates: Sequence[Candidate], premises: Premises | None = None
) -> Assignment:
    """The forms of all tensors for this choice of candidates. `graph.nodes` is in topological
    order; `premises` are without `padded`, which this decides."""
    premises, fused = premises or Premises(), FusedNodes(candidates)
    padded = frozenset(c.output.name for c in candidates if _channels(c) % c.anchor.dtype.alignment)
    while True:
        assignment = _pass(graph, fused, replace(premises, padded=padded))
        lost = assignment.padding.unfree & padded - assignment.padding.worth
        if not lost:
            return assignment
        padded = padded - lost


def _pass(graph: gs.Graph, fused: FusedNodes, premises: Premises) -> Assignment:
    state = Assignment(fused, premises, rule_for)
    for node in graph.nodes:
        if node in fused.last:
            _fused(state, fused.last[node])
        elif node not in fused.covered:
            rule = rule_for(node)
            _ordinary(state, node, rule(node, state) if rule else None)
    for tensor in plain_at_the_end(graph):
        state.demand(tensor, PLAIN)
    return state


def _ordinary(state: Assignment, node: gs.Node, carry: Carry | None) -> None:
    if carry is None:
        for tensor in node.inputs:
            state.demand(tensor, PLAIN)
        return
    state.carries[node] = carry
    known = state.padding.sources
    sources = frozenset[str]().union(*(known.get(t.name, frozenset()) for t in node.inputs))
    for tensor, form in zip(node.inputs, carry.reads, strict=True):
        if form is not None:
            state.demand(tensor, form, sources)
    for tensor, form in zip(node.outputs, carry.writes, strict=True):
        state.write(tensor, form, sources)


def _fused(state: Assignment, candidate: Candidate) -> None:
    anchor = candidate.anchor
    reads, writes = anchor.op.forms(candidate, _around(state, candidate))
    sources = frozenset({candidate.output.name})
    if anchor.keeps_channels:  # what comes out is stored as what goes in
        sources = state.padding.sources.get(anchor.x.name) or sources
    state.fused_reads[anchor.node] = reads
    # padding at a region's entry is part of the conversion; only what another fused node padded can
    # be unfree
    state.demand(anchor.x, reads)
    # the first layer's channels are whole accesses
    if candidate.stored is not None or has_inner_residual(candidate.chain):
        inner = Form(writes.last, None)
        for operand in candidate.tensors:
            state.demand(operand, inner)
        if candidate.stored is not None:
            state.write(candidate.stored, inner)
    else:
        if _is_worth_padding(state, candidate, writes):
            state.padding.worth.add(candidate.output.name)
        for operand in candidate.tensors:
            state.demand(operand, writes, sources)
    state.write(candidate.output, writes, sources)


def _is_worth_padding(state: Assignment, candidate: Candidate, writes: Form) -> bool:
    """Whether a product among others of its width stays padded, though somebody reads it without:
    else those before it, whose results it adds, lose their padding, too, and each reads and writes
    a value at a time. Long rows, as for what is read (`x_form`).
    """
    padded = not writes.last and writes.padded and _channels(candidate) >= LONG
    operands = candidate.tensors
    return (
        padded
        and bool(operands)
        and all(state.form(t) == writes or (t.name, writes) in state.conversions for t in operands)
    )


def x_form(state: Assignment, candidate: Candidate) -> Form:
    """The form in which a fused node reads its activations."""
    return candidate.anchor.op.forms(candidate, _around(state, candidate))[0]


def _around(state: Assignment, candidate: Candidate) -> Around:
    premises, name = state.premises, candidate.output.name
    return Around(
        state.form(candidate.anchor.x),
        padded=name in premises.padded,
        archs=premises.archs,
        to_nchw=name in premises.to_nchw,
    )


def _channels(candidate: Candidate) -> int:
    return candidate.widths[-1]


def plain_at_the_end(graph: gs.Graph) -> list[gs.Tensor]:
    """Tensors that have to exist as ONNX has them: graph outputs, and what subgraphs read from
    outside."""
    captured = [t for node in graph.nodes for t in node.outputs if t.name in graph.captured]
    return [*graph.outputs, *captured]
