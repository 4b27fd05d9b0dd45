"""Decides the stored form of every tensor, in one forward pass over the graph.

Fused convolutions read and write NHWC. Ordinary nodes keep the form of their inputs if they have a
rule (rules/); all others read and write tensors as ONNX has them.

Outputs of fused nodes are padded to the alignment of 16-byte accesses if that costs nothing: if all
readers work on padded channels, or a layout conversion removes the padding. The pass starts with
all outputs padded, notes which padding would need a copy to remove, and starts again without that.

A convolution can write its result as NCHW if no NHWC consumer reads it. The pass finds such results
(`Assignment.leaving`); the plan decides which are written so, and which in both layouts
(`Assignment.both`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Candidate
from onnxbolt.epilogues import STORE, has_inner_residual, values_of
from onnxbolt.forms import PLAIN, Form
from onnxbolt.graph.skipping import is_skipped
from onnxbolt.layout.assignment import Assignment, FusedNodes, Premises, Rule
from onnxbolt.layout.carry import Carry
from onnxbolt.layout.rules import rule_for
from onnxbolt.ops.base import Surroundings
from onnxbolt.ops.products import LONG


def assign(
    graph: gs.Graph, candidates: Sequence[Candidate], premises: Premises | None = None
) -> Assignment:
    """The forms of all tensors for these candidates. `graph.nodes` are in topological order;
    `premises.padded` is ignored, since this function decides it."""
    premises, fused = premises or Premises(), FusedNodes(candidates)
    padded = frozenset(c.output.name for c in candidates if _channels(c) % c.anchor.dtype.alignment)
    while True:
        assignment = _pass(graph, fused, replace(premises, padded=padded))
        lost = assignment.padding.unfree & padded - assignment.padding.worth
        if not lost:
            return assignment
        padded = padded - lost


def _pass(graph: gs.Graph, fused: FusedNodes, premises: Premises) -> Assignment:

    def rule_of(node: gs.Node) -> Rule | None:
        return None if is_skipped(graph, node) else rule_for(node)

    state = Assignment(fused, premises, rule_of)
    for node in graph.nodes:
        if node in fused.last:
            _fused(state, fused.last[node])
        elif node not in fused.covered:
            rule = rule_of(node)
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
    reads, writes = forms_of(state, candidate)
    sources = frozenset({candidate.output.name})
    if anchor.keeps_channels:  # y is stored like x
        sources = state.padding.sources.get(anchor.x.name) or sources
    state.fused_reads[anchor.node] = reads
    # without `sources`: if x has to be padded, its layout conversion includes that
    state.demand(anchor.x, reads)
    for tensor in anchor.further:
        state.demand(tensor, PLAIN)
    if candidate.stored is not None and values_of(candidate.steps):  # it lies as the codes do
        state.write(candidate.stored, writes, sources)
    # the first layer's channels need no padding: its columns are whole accesses
    if STORE in candidate.steps or has_inner_residual(candidate.steps):
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
    """True if a GEMM's columns stay padded although a reader needs them without padding.

    It adds results of other GEMMs of the same width. Without its padding, they would lose theirs as
    well, and all of them would read and write one value at a time, which takes longer than one copy
    without the padding. Only long rows are padded, as for x (`x_form`).
    """
    padded = not writes.last and writes.padded and _channels(candidate) >= LONG
    operands = candidate.tensors
    return (
        padded
        and bool(operands)
        and all(state.form(t) == writes or (t.name, writes) in state.conversions for t in operands)
    )


def x_form(state: Assignment, candidate: Candidate) -> Form:
    """The form in which a fused node reads x."""
    return forms_of(state, candidate)[0]


def forms_of(state: Assignment, candidate: Candidate) -> tuple[Form, Form]:
    """The forms in which a fused node reads x and writes the result, among the nodes of `state`,
    which need not have the candidate."""
    return candidate.anchor.op.forms(candidate, _around(state, candidate))


def _around(state: Assignment, candidate: Candidate) -> Surroundings:
    premises, name = state.premises, candidate.output.name
    return Surroundings(
        state.form(candidate.anchor.x),
        padded=name in premises.padded,
        archs=premises.archs,
        to_nchw=name in premises.to_nchw,
    )


def _channels(candidate: Candidate) -> int:
    return candidate.widths[-1]


def plain_at_the_end(graph: gs.Graph) -> list[gs.Tensor]:
    """Tensors that have to exist as ONNX has them: graph outputs, and those that subgraphs of
    control flow read."""
    captured = [t for node in graph.nodes for t in node.outputs if t.name in graph.captured]
    return [*graph.outputs, *captured]
