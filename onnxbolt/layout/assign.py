"""Decides the stored form of every tensor, in one forward pass over the graph.

Fused convolutions read and write channels last; ordinary ops follow their inputs where a rule knows
how (rules/); everything else reads tensors as ONNX has them. Outputs of fused nodes are padded to
the alignment of 16-byte accesses where that is free: where everything behind them works on padded
channels, or a change of layout leaves the padding behind. So the pass starts with all of them
padded, notes which padding would have to be taken away again, and runs anew without it. Likewise
what leaves channels last behind a convolution without anybody reading it there can be written as
ONNX has it by the convolution itself; the plan says where (`Assignment.leaving`), and where it
writes both forms of what is read in both (`Assignment.both`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Candidate
from onnxbolt.epilogues import has_inner_residual
from onnxbolt.graph.edit import producer
from onnxbolt.kernels import chain_first, first, gemm_rows
from onnxbolt.layout.convert import appended
from onnxbolt.layout.form import CHANNELS_LAST, PLAIN, Form, padded_channels
from onnxbolt.layout.pixels import kept_by

if TYPE_CHECKING:
    from onnxbolt.rewrite import Rewriter

_LONG = 64  # columns of a product from which on padding pays by itself


@dataclass(frozen=True)
class Carry:
    """How an ordinary node works on stored forms: what it reads (per input; constants are its
    own business), what it writes, and how its replacement is written."""

    reads: tuple[Form | None, ...]
    writes: tuple[Form, ...]
    emit: Callable[[Rewriter, gs.Node, Carry], None]
    ours: bool = False  # whether that is a node of our domain


@dataclass
class Assignment:
    """The decisions: forms by tensor name, rules by node, fused reads, and the conversions that
    they need."""

    candidates: list[Candidate]
    last: dict[int, Candidate]  # by id of a chain's last node
    anchors: dict[int, str]  # kind, by id of the anchor's node
    covered: set[int]  # ids of nodes inside chains
    padded: set[str]
    forms: dict[str, Form] = field(default_factory=dict)
    carries: dict[int, Carry] = field(default_factory=dict)
    carried: dict[int, gs.Node] = field(default_factory=dict)  # the nodes of `carries`
    # form of x, by id of the anchor's node
    fused_reads: dict[int, Form] = field(default_factory=dict)
    # padded fused outputs that a tensor's padding comes from
    sources: dict[str, frozenset[str]] = field(default_factory=dict)
    conversions: dict[tuple[str, Form], gs.Tensor] = field(default_factory=dict)
    # padded outputs whose padding something had to take away
    unfree: set[str] = field(default_factory=set)
    # those for which taking it away costs less than doing without
    worth: set[str] = field(default_factory=set)
    # whether there are kernels that read a first convolution's x as ONNX has it
    planes: bool = False
    # outputs of convolutions that write them as ONNX has them
    to_plain: frozenset[str] = frozenset()
    # results that a convolution writes in both forms, each with its NCHW tensor
    both: Mapping[str, gs.Tensor] = field(default_factory=dict)
    # tensors that somebody reads in the form in which they are written
    read_as_stored: set[str] = field(default_factory=set)

    @cached_property
    def spatial(self) -> set[int]:
        """Ids of the nodes in chains whose kernels want channels last."""
        return {
            id(node)
            for candidate in self.candidates
            if candidate.anchor.kind != "gemm"
            for node in candidate.nodes
        }

    def form(self, tensor: gs.Tensor) -> Form:
        return self.forms.get(tensor.name, PLAIN)

    def reads_planes(self, candidate: Candidate) -> bool:
        """Whether the fused convolution reads its activation as ONNX has it."""
        return (
            candidate.anchor.kind == "conv" and self.fused_reads[id(candidate.anchor.node)] == PLAIN
        )

    def writes_planes(self, candidate: Candidate) -> bool:
        """Whether the fused convolution writes its result as ONNX has it."""
        return candidate.anchor.kind == "conv" and not self.form(candidate.output).last

    @property
    def leaving(self) -> list[Candidate]:
        """Convolutions whose result has its channels last for no reader."""
        found = [c for c in self.candidates if c.anchor.kind == "conv" and self.form(c.output).last]
        return [
            c
            for c in found
            if (c.output.name, PLAIN) in self.conversions
            and c.output.name not in self.read_as_stored
        ]

    def reads_last(self, tensor: gs.Tensor) -> bool:
        """Whether a fused convolution reads this tensor as its activation."""
        return any(
            self._anchor_reads(node, tensor, kind)
            for node in tensor.outputs
            for kind in ("conv", "squeeze_excite")
        )

    def leads_to_last(self, tensor: gs.Tensor) -> bool:
        """Whether a chain that wants channels last reads this tensor, or an op that keeps a
        layout and reads others that lie so; or such a one reads what ops that keep a layout make
        of it."""
        from onnxbolt.layout.rules import rule_for

        pending, seen = list(tensor.outputs), set[int]()
        while pending:
            node = pending.pop()
            if id(node) in self.spatial:
                return True
            kept = kept_by(node)
            if id(node) in seen or id(node) in self.covered or not kept or rule_for(node) is None:
                continue
            if any(self.form(other).last for other in node.inputs if other is not tensor):
                return True
            seen.add(id(node))
            pending.extend(reader for output in kept for reader in output.outputs)
        return False

    def only_gemms_read(self, tensor: gs.Tensor) -> bool:
        """Whether fused GEMMs alone read this tensor."""
        return bool(tensor.outputs) and all(
            self._anchor_reads(node, tensor, "gemm") for node in tensor.outputs
        )

    def _anchor_reads(self, node: gs.Node, tensor: gs.Tensor, kind: str) -> bool:
        return self.anchors.get(id(node)) == kind and node.inputs[0] is tensor

    def demand(self, tensor: gs.Tensor, form: Form, reader: frozenset[str] = frozenset()) -> None:
        """Note that someone reads `tensor` in `form`; `reader` is the padding that asks for a
        padded form."""
        native = self.form(tensor)
        if native == form:
            self.read_as_stored.add(tensor.name)
        if (
            native == form
            or isinstance(tensor, gs.Constant)
            or (tensor.name, form) in self.conversions
        ):
            return  # as it lies, or converted for another reader already
        if form == PLAIN and any(tensor is plain for plain in self.both.values()):
            return
        self.conversions[tensor.name, form] = tensor
        if native.padded and not self._leaves_padding_behind(tensor, form):
            self.unfree |= self.sources.get(tensor.name, frozenset())
        if form.padded and native.last == form.last and native.channels != form.channels:
            self.unfree |= reader

    def _leaves_padding_behind(self, tensor: gs.Tensor, form: Form) -> bool:
        """Whether one kernel brings a fused node's result, or what a Cast makes of it, into
        `form`, which is without its padding then: those who read the result as it is stored keep
        it padded."""
        native, node = self.form(tensor), producer(tensor)
        result = (
            node.inputs[0]
            if node is not None and node.op == "Cast" and id(node) in self.carries
            else tensor
        )
        is_result = self.sources.get(tensor.name) == frozenset({result.name})
        return (
            is_result
            and native.last
            and not form.last
            and appended(tensor, native, form) is not None
        )

    def write(self, tensor: gs.Tensor, form: Form, sources: frozenset[str] = frozenset()) -> None:
        self.forms[tensor.name] = form
        self.sources[tensor.name] = sources if form.padded else frozenset()


def assign(
    graph: gs.Graph,
    candidates: list[Candidate],
    planes: bool = False,
    to_plain: frozenset[str] = frozenset(),
    both: Mapping[str, gs.Tensor] | None = None,
) -> Assignment:
    """The forms of all tensors for this choice of candidates. `graph.nodes` is in topological
    order.

    `planes`: whether the target has kernels that read a first convolution's x as ONNX has it.
    `to_plain`: names of what convolutions write so. `both`: as in Assignment.
    """
    padded = {c.output.name for c in candidates if _channels(c) % c.anchor.dtype.alignment}
    while True:
        assignment = _pass(graph, candidates, padded, planes, to_plain, both or {})
        lost = assignment.unfree & padded - assignment.worth
        if not lost:
            return assignment
        padded = padded - lost


def _pass(
    graph: gs.Graph,
    candidates: list[Candidate],
    padded: set[str],
    planes: bool,
    to_plain: frozenset[str],
    both: Mapping[str, gs.Tensor],
) -> Assignment:
    from onnxbolt.layout.rules import rule_for

    last = {id(last_node(c)): c for c in candidates}
    anchors = {id(c.anchor.node): c.anchor.kind for c in candidates}
    state = Assignment(
        candidates,
        last,
        anchors,
        {id(n) for c in candidates for n in c.nodes},
        padded,
        planes=planes,
        to_plain=to_plain,
        both=both,
    )
    for node in graph.nodes:
        if id(node) in last:
            _fused(state, last[id(node)])
        elif id(node) not in state.covered:
            rule = rule_for(node)
            carry = rule(node, state) if rule else None
            _ordinary(state, node, carry)
    for tensor in plain_at_the_end(graph):
        state.demand(tensor, PLAIN)
    return state


def _ordinary(state: Assignment, node: gs.Node, carry: Carry | None) -> None:
    if carry is None:
        for tensor in node.inputs:
            state.demand(tensor, PLAIN)
        return
    state.carries[id(node)] = carry
    state.carried[id(node)] = node
    sources = frozenset[str]().union(*(state.sources.get(t.name, frozenset()) for t in node.inputs))
    for tensor, form in zip(node.inputs, carry.reads, strict=True):
        if form is not None:
            state.demand(tensor, form, sources)
    for tensor, form in zip(node.outputs, carry.writes, strict=True):
        state.write(tensor, form, sources)


def _fused(state: Assignment, candidate: Candidate) -> None:
    anchor = candidate.anchor
    sources = frozenset({candidate.output.name})
    if anchor.keeps_channels:  # what comes out is stored as what goes in
        reads = writes = _kept_form(state, candidate)
        sources = state.sources.get(anchor.x.name) or sources
    elif anchor.grouped:  # padding would move channels to other groups
        reads = writes = CHANNELS_LAST
    else:
        reads = x_form(state, candidate)
        channels = (
            padded_channels(_channels(candidate), anchor.dtype.alignment)
            if candidate.output.name in state.padded
            else None
        )
        writes = (
            PLAIN
            if candidate.output.name in state.to_plain
            else Form(anchor.kind == "conv", channels)
        )
    state.fused_reads[id(anchor.node)] = reads
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
            state.worth.add(candidate.output.name)
        for operand in candidate.tensors:
            state.demand(operand, writes, sources)
    state.write(candidate.output, writes, sources)


def _is_worth_padding(state: Assignment, candidate: Candidate, writes: Form) -> bool:
    """Whether a product among others of its width stays padded, though somebody reads it without:
    else those before it, whose results it adds, lose their padding, too, and each reads and writes
    a value at a time. Long rows, as for what is read (`x_form`).
    """
    padded = candidate.anchor.kind == "gemm" and writes.padded and _channels(candidate) >= _LONG
    operands = candidate.tensors
    return (
        padded
        and bool(operands)
        and all(state.form(t) == writes or (t.name, writes) in state.conversions for t in operands)
    )


def _kept_form(state: Assignment, candidate: Candidate) -> Form:
    """As the activations lie, else padded on the way in."""
    native = state.form(candidate.anchor.x)
    if native.last:
        return native
    padded = candidate.output.name in state.padded
    return Form(
        True,
        padded_channels(_channels(candidate), candidate.anchor.dtype.alignment) if padded else None,
    )


def x_form(state: Assignment, candidate: Candidate) -> Form:
    """In which form a fused node reads its activations: as they lie, else padded on the way in."""
    anchor = candidate.anchor
    native = state.form(anchor.x)
    conv = anchor.kind == "conv"
    if conv and native == PLAIN and state.planes and _is_first(state, candidate):
        return PLAIN
    if native.last == conv and (native != PLAIN or conv):
        return native
    count = int(anchor.weight.shape[1 if conv else 0])
    if conv:
        few = count <= 4 and anchor.dtype.bytes == 2  # packed along k by the few-channels iterator
        return Form(True, padded_channels(count, 4 if few else anchor.dtype.alignment))
    pays = count >= _LONG and not _reads_any_length(state, candidate)
    return Form(False, padded_channels(count, anchor.dtype.alignment)) if pays else PLAIN


def _reads_any_length(state: Assignment, candidate: Candidate) -> bool:
    """Whether a product's kernel does, where nobody else may want the rows padded: those for
    several products do."""
    alone = (
        state.planes
        and len(candidate.anchor.x.outputs) == 1
        and gemm_rows.serves(candidate.anchor.dtype, candidate.widths[0])
    )
    return len(candidate.widths) > 1 or alone


def _is_first(state: Assignment, candidate: Candidate) -> bool:
    """Whether a kernel for few channels in NCHW serves; it has no tensor operands."""
    node, filters = candidate.anchor.node, candidate.anchor.weight.shape[1:]
    if candidate.tensors:
        return False
    alignment = candidate.anchor.dtype.alignment
    stored = [-(-count // alignment) * alignment for count in candidate.widths]
    if candidate.output.name not in state.padded:
        stored[-1] = candidate.widths[-1]
    if len(stored) > 1 and not chain_first.serves(stored, candidate.chain):
        return False
    strides, dilations = (
        node.attrs.get(name, [1] * len(filters[1:])) for name in ("strides", "dilations")
    )
    return first.serves(
        candidate.anchor.dtype,
        (stored[0], *filters),
        strides,
        dilations,
        int(node.attrs.get("group", 1)),
    )


def _channels(candidate: Candidate) -> int:
    return candidate.widths[-1]


def last_node(candidate: Candidate) -> gs.Node:
    """The node in whose place the fused node stands: a stored result may be read before the last
    node."""
    written = [candidate.anchor.node, *(node for link in candidate.links for node in link.nodes)]
    if candidate.stored is None:
        return written[-1]
    return next(
        node for node in written if any(tensor is candidate.stored for tensor in node.outputs)
    )


def plain_at_the_end(graph: gs.Graph) -> list[gs.Tensor]:
    """Tensors that have to exist as ONNX has them: graph outputs, and what subgraphs read from
    outside."""
    captured = [t for node in graph.nodes for t in node.outputs if t.name in graph.captured]
    return [*graph.outputs, *captured]
