"""The stored form of every tensor, as assign.py decides it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import onnx_graphsurgeon as gs

from onnxbolt.archs import Arch
from onnxbolt.candidates import Candidate
from onnxbolt.forms import FIRST_TO_LAST, PLAIN, Form
from onnxbolt.graph.edit import producer
from onnxbolt.layout.carry import Carry
from onnxbolt.layout.convert import appended
from onnxbolt.layout.pixels import kept_by
from onnxbolt.ops.base import FusedOp, Stored


@dataclass(frozen=True, eq=False)
class FusedNodes:
    """The candidates of an assignment, by the nodes that they replace."""

    candidates: Sequence[Candidate]

    @cached_property
    def last(self) -> dict[gs.Node, Candidate]:
        """Candidates by the node at whose position the fused node is written."""
        return {last_node(candidate): candidate for candidate in self.candidates}

    @cached_property
    def ops(self) -> dict[gs.Node, FusedOp]:
        """The ops, by the node that reads x."""
        return {candidate.anchor.reader: candidate.anchor.op for candidate in self.candidates}

    @cached_property
    def covered(self) -> set[gs.Node]:
        """All nodes that fused nodes replace."""
        return {node for candidate in self.candidates for node in candidate.nodes}

    @cached_property
    def channels_last(self) -> set[gs.Node]:
        """The nodes of candidates whose kernels read NHWC."""
        found = (c for c in self.candidates if c.anchor.op.channels_last)
        return {node for candidate in found for node in candidate.nodes}


@dataclass(frozen=True)
class Premises:
    """Decisions that an assignment follows, beside the candidates."""

    padded: frozenset[str] = frozenset()  # fused outputs that are written with padded channels
    archs: tuple[Arch, ...] = ()  # architectures of the kernels; a node has one layout for all
    to_nchw: frozenset[str] = frozenset()  # outputs that their convolutions write as NCHW
    # outputs that their convolutions write in both layouts, each with the tensor in NCHW
    both: Mapping[str, gs.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Padding:
    """The origin of padded channels, and the cost of removing them, by tensors' names; filled by
    the pass."""

    # the padded fused outputs that a tensor's padding comes from
    sources: dict[str, frozenset[str]] = field(default_factory=dict)
    # padded outputs whose padding has to be removed by a copy for some reader
    unfree: set[str] = field(default_factory=set)
    # those of them that stay padded, since that copy costs less than unpadded kernels
    worth: set[str] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class Assignment:
    """The decisions: forms of tensors, how nodes read and write them, and layout conversions."""

    fused: FusedNodes
    premises: Premises
    rules: Callable[[gs.Node], Rule | None]  # the layout rule of an ordinary node
    forms: dict[str, Form] = field(default_factory=dict)  # by tensor's name; PLAIN if missing
    fused_reads: dict[gs.Node, Form] = field(default_factory=dict)  # forms of x, by anchor's node
    carries: dict[gs.Node, Carry] = field(default_factory=dict)  # ordinary nodes that have a rule
    conversions: dict[tuple[str, Form], gs.Tensor] = field(default_factory=dict)
    # tensors that some node reads in the form in which they are written
    read_as_stored: set[str] = field(default_factory=set)
    padding: Padding = field(default_factory=Padding)

    @property
    def candidates(self) -> Sequence[Candidate]:
        return self.fused.candidates

    @property
    def both(self) -> Mapping[str, gs.Tensor]:
        """The tensors that convolutions write as NCHW beside their result in NHWC, by the result's
        name."""
        return self.premises.both

    def only(self, candidates: Sequence[Candidate]) -> Assignment:
        """The same forms of all tensors with some of the candidates; what others replace is
        computed by the nodes that it was."""
        outputs = {candidate.output.name for candidate in candidates}
        both = {name: plain for name, plain in self.both.items() if name in outputs}
        premises = dataclasses.replace(self.premises, both=both)
        return dataclasses.replace(self, fused=FusedNodes(candidates), premises=premises)

    def form(self, tensor: gs.Tensor) -> Form:
        return self.forms.get(tensor.name, PLAIN)

    def reads_nchw(self, candidate: Candidate) -> bool:
        """True if a kernel that usually reads NHWC reads x as NCHW."""
        anchor = candidate.anchor
        return anchor.op.channels_last and self.fused_reads[anchor.node] == PLAIN

    def writes_nchw(self, candidate: Candidate) -> bool:
        """True if a kernel that usually writes NHWC writes y as NCHW alone."""
        return candidate.anchor.op.channels_last and not self.form(candidate.output).last

    def stored(self, candidate: Candidate) -> Stored:
        """How the candidate's kernel reads and writes its tensors."""
        output = candidate.output
        reads = self.fused_reads[candidate.anchor.node]
        return Stored(reads, self.form(output), self.both.get(output.name))

    @property
    def leaving(self) -> list[Candidate]:
        """Convolutions that write NHWC although all readers of the result need NCHW."""
        found = [
            c
            for c in self.candidates
            if c.anchor.op.writes_nchw(c.anchor) and self.form(c.output).last
        ]
        return [
            c
            for c in found
            if (c.output.name, PLAIN) in self.conversions
            and c.output.name not in self.read_as_stored
        ]

    def reads_last(self, tensor: gs.Tensor) -> bool:
        """True if a kernel for NHWC reads this tensor as its x."""
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
        """True if fused GEMMs alone read this tensor: its columns may then be stored in any order,
        since the weights' rows can follow."""
        readers = [self._reader(node, tensor) for node in tensor.outputs]
        return bool(readers) and all(op is not None and op.any_order for op in readers)

    def _reader(self, node: gs.Node, tensor: gs.Tensor) -> FusedOp | None:
        """The op that begins at `node` and reads `tensor` as its x; None if there is none."""
        return self.fused.ops.get(node) if node.inputs[0] is tensor else None

    def demand(self, tensor: gs.Tensor, form: Form, reader: frozenset[str] = frozenset()) -> None:
        """Note that a node reads `tensor` in `form`. `reader` names the padded outputs that the
        padding of `form` comes from."""
        native = self.form(tensor)
        if native == form:
            self.read_as_stored.add(tensor.name)
        if (
            native == form
            or isinstance(tensor, gs.Constant)
            or (tensor.name, form) in self.conversions
        ):
            return  # no conversion is needed, or another reader has it already
        if form == PLAIN and any(tensor is plain for plain in self.both.values()):
            return
        self.conversions[tensor.name, form] = tensor
        if native.padded and not self._leaves_padding_behind(tensor, form):
            self.padding.unfree.update(self.padding.sources.get(tensor.name, ()))
        if form.padded and native.last == form.last and native.channels != form.channels:
            self.padding.unfree.update(reader)

    def _leaves_padding_behind(self, tensor: gs.Tensor, form: Form) -> bool:
        """True if one layout conversion brings a fused node's result, or a Cast of it, into `form`
        without padding, at no further cost; so the result itself can stay padded."""
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
        """Note that `tensor` is written in `form`; its padding comes from the outputs `sources`."""
        self.forms[tensor.name] = form
        self.padding.sources[tensor.name] = sources if form.padded else frozenset()


Rule = Callable[[gs.Node, Assignment], Carry | None]


def last_node(candidate: Candidate) -> gs.Node:
    """The node at whose position the fused node is written: the last one that it replaces, or the
    one that computes a stored multi-use value, which may be read before the last node."""
    written = [*candidate.anchor.nodes, *(node for link in candidate.links for node in link.nodes)]
    if candidate.stored is None:
        return written[-1]
    return next(
        node for node in written if any(tensor is candidate.stored for tensor in node.outputs)
    )


def channels_last(tensor: gs.Tensor, state: Assignment) -> bool:
    """True if `tensor` is stored with its channels last and has a known rank and channel count."""
    form = state.form(tensor)
    return (
        form.last
        and not form.grouped
        and tensor.shape is not None
        and len(tensor.shape) in FIRST_TO_LAST
        and isinstance(tensor.shape[1], int)
    )
