"""The stored form of every tensor, as one pass over the graph has decided it (assign.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import onnx_graphsurgeon as gs

from onnxbolt.archs import Arch
from onnxbolt.candidates import Candidate
from onnxbolt.forms import PLAIN, Form
from onnxbolt.graph.edit import producer
from onnxbolt.layout.carry import Carry
from onnxbolt.layout.convert import appended
from onnxbolt.layout.pixels import kept_by
from onnxbolt.ops.base import FusedOp, Stored


@dataclass(frozen=True, eq=False)
class FusedNodes:
    """The candidates of an assignment, by the nodes that they take the place of."""

    candidates: Sequence[Candidate]

    @cached_property
    def last(self) -> dict[gs.Node, Candidate]:
        """Candidates by the node in whose place the fused node stands."""
        return {last_node(candidate): candidate for candidate in self.candidates}

    @cached_property
    def ops(self) -> dict[gs.Node, FusedOp]:
        """The ops, by the anchor's node."""
        return {candidate.anchor.node: candidate.anchor.op for candidate in self.candidates}

    @cached_property
    def covered(self) -> set[gs.Node]:
        """All nodes that fused nodes take the place of."""
        return {node for candidate in self.candidates for node in candidate.nodes}

    @cached_property
    def channels_last(self) -> set[gs.Node]:
        """Those of candidates whose kernels read tensors with their channels last."""
        found = (c for c in self.candidates if c.anchor.op.channels_last)
        return {node for candidate in found for node in candidate.nodes}


@dataclass(frozen=True)
class Premises:
    """What an assignment is made for, beside the candidates."""

    padded: frozenset[str] = frozenset()  # fused outputs that are written with padded channels
    archs: tuple[Arch, ...] = ()  # of the kernels; a node has one layout for all of them
    to_nchw: frozenset[str] = frozenset()  # outputs that their convolutions write as NCHW
    # by result that a convolution writes in both forms: the tensor that is it as ONNX has it
    both: Mapping[str, gs.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Padding:
    """What becomes of padded channels, by the names of tensors; filled by the pass."""

    # the padded fused outputs that a tensor's padding comes from
    sources: dict[str, frozenset[str]] = field(default_factory=dict)
    # padded outputs whose padding some reader has to take away
    unfree: set[str] = field(default_factory=set)
    # those for which taking it away costs less than doing without
    worth: set[str] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class Assignment:
    """The decisions: forms of tensors, how nodes read and write them, and the conversions that
    they need."""

    fused: FusedNodes
    premises: Premises
    rules: Callable[[gs.Node], Rule | None]  # the layout rule for an ordinary node
    forms: dict[str, Form] = field(default_factory=dict)  # by the tensor's name; others are plain
    fused_reads: dict[gs.Node, Form] = field(default_factory=dict)  # of x, by the anchor's node
    carries: dict[gs.Node, Carry] = field(default_factory=dict)  # ordinary nodes on stored forms
    conversions: dict[tuple[str, Form], gs.Tensor] = field(default_factory=dict)
    # tensors that some node reads in the form in which they are written
    read_as_stored: set[str] = field(default_factory=set)
    padding: Padding = field(default_factory=Padding)

    @property
    def candidates(self) -> Sequence[Candidate]:
        return self.fused.candidates

    @property
    def both(self) -> Mapping[str, gs.Tensor]:
        """By result that a convolution writes in both forms: the tensor that is it as NCHW."""
        return self.premises.both

    def form(self, tensor: gs.Tensor) -> Form:
        return self.forms.get(tensor.name, PLAIN)

    def reads_nchw(self, candidate: Candidate) -> bool:
        """True if a kernel for NHWC reads its activation as ONNX has it."""
        anchor = candidate.anchor
        return anchor.op.channels_last and self.fused_reads[anchor.node] == PLAIN

    def writes_nchw(self, candidate: Candidate) -> bool:
        """True if a kernel for NHWC writes its result as ONNX has it."""
        return candidate.anchor.op.channels_last and not self.form(candidate.output).last

    def stored(self, candidate: Candidate) -> Stored:
        """How the candidate's kernel reads and writes its tensors."""
        output = candidate.output
        reads = self.fused_reads[candidate.anchor.node]
        return Stored(reads, self.form(output), self.both.get(output.name))

    @property
    def leaving(self) -> list[Candidate]:
        """Convolutions that write NHWC though every reader of the result wants NCHW."""
        found = [c for c in self.candidates if c.anchor.op.writes_nchw and self.form(c.output).last]
        return [
            c
            for c in found
            if (c.output.name, PLAIN) in self.conversions
            and c.output.name not in self.read_as_stored
        ]

    def reads_last(self, tensor: gs.Tensor) -> bool:
        """True if a kernel for NHWC reads this tensor as its activation."""
        readers = (self._reader(node, tensor) for node in tensor.outputs)
        return any(op is not None and op.channels_last for op in readers)

    def leads_to_last(self, tensor: gs.Tensor) -> bool:
        """True if `tensor` reaches an NHWC consumer, directly or through layout-preserving ops.

        An NHWC consumer is a fused convolution, or a layout-preserving op that reads another
        tensor which is stored with its channels last.
        """
        pending, seen = list(tensor.outputs), set[gs.Node]()
        while pending:
            node = pending.pop()
            if node in self.fused.channels_last:
                return True
            kept = kept_by(node)
            if node in seen or node in self.fused.covered or not kept or self.rules(node) is None:
                continue
            if any(self.form(other).last for other in node.inputs if other is not tensor):
                return True
            seen.add(node)
            pending.extend(reader for output in kept for reader in output.outputs)
        return False

    def only_gemms_read(self, tensor: gs.Tensor) -> bool:
        """True if fused GEMMs alone read this tensor, whose columns may then lie in any order."""
        readers = [self._reader(node, tensor) for node in tensor.outputs]
        return bool(readers) and all(op is not None and op.any_order for op in readers)

    def _reader(self, node: gs.Node, tensor: gs.Tensor) -> FusedOp | None:
        """The op that begins at `node` and reads `tensor` as its activation."""
        return self.fused.ops.get(node) if node.inputs[0] is tensor else None

    def demand(self, tensor: gs.Tensor, form: Form, reader: frozenset[str] = frozenset()) -> None:
        """Note that some node reads `tensor` in `form`; `reader` names the padded outputs that a
        padded form is asked for by."""
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
            self.padding.unfree.update(self.padding.sources.get(tensor.name, ()))
        if form.padded and native.last == form.last and native.channels != form.channels:
            self.padding.unfree.update(reader)

    def _leaves_padding_behind(self, tensor: gs.Tensor, form: Form) -> bool:
        """True if one kernel brings a fused node's result, or what a Cast makes of it, into
        `form`, which has no padding: then readers of the result as it is stored keep the
        padding."""
        native, node = self.form(tensor), producer(tensor)
        cast = node is not None and node.op == "Cast" and node in self.carries
        result = node.inputs[0] if node is not None and cast else tensor
        is_result = self.padding.sources.get(tensor.name) == frozenset({result.name})
        return (
            is_result
            and native.last
            and not form.last
            and appended(tensor, native, form) is not None
        )

    def write(self, tensor: gs.Tensor, form: Form, sources: frozenset[str] = frozenset()) -> None:
        """Note that `tensor` is written in `form`, its padding coming from `sources`."""
        self.forms[tensor.name] = form
        self.padding.sources[tensor.name] = sources if form.padded else frozenset()


Rule = Callable[[gs.Node, Assignment], Carry | None]


def last_node(candidate: Candidate) -> gs.Node:
    """The node in whose place the fused node stands: a stored result may be read before the last
    node."""
    written = [*candidate.anchor.nodes, *(node for link in candidate.links for node in link.nodes)]
    if candidate.stored is None:
        return written[-1]
    return next(
        node for node in written if any(tensor is candidate.stored for tensor in node.outputs)
    )


def channels_last(tensor: gs.Tensor, state: Assignment) -> bool:
    """True if `tensor` lies with its channels last, with a known rank and channel count."""
    return (
        state.form(tensor).last
        and tensor.shape is not None
        and len(tensor.shape) in (3, 4)
        and isinstance(tensor.shape[1], int)
    )
