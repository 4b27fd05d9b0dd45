"""Concats without a copy: the nodes that compute their inputs write these into the result.

A Concat of NHWC tensors along channels reads all that kernels have just written, and writes it
again. Our kernels can write channels of a larger tensor, and read them from there, since the
distance between pixels is an argument (docs/decisions/concat.md).
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from onnxbolt import ops
from onnxbolt.candidates import Candidate, Refusal
from onnxbolt.dtypes import DType
from onnxbolt.families import only
from onnxbolt.forms import Form, stored_shape
from onnxbolt.graph.edit import pinned
from onnxbolt.layout.assignment import Assignment
from onnxbolt.layout.carry import Kernels, Origin, Result, Writer
from onnxbolt.layout.excerpts import excerpts
from onnxbolt.layout.places import Excerpt, Slice, Whole
from onnxbolt.ops.base import Operation, Signature


class _Users:
    """The tensors that nodes of our domain will write, and those that they will read as their x
    without a conversion; by name."""

    def __init__(self, assignment: Assignment, runs: Sequence[Candidate]) -> None:
        self._written: dict[str, Form] = {}
        self._readers: dict[str, set[gs.Node]] = defaultdict(set)
        for candidate in (*assignment.candidates, *runs):
            self._add(candidate, assignment)
        for node, carry in assignment.carries.items():
            if carry.ours:
                self._written.update(
                    (tensor.name, form)
                    for tensor, form in zip(node.outputs, carry.writes, strict=True)
                )
                self._readers[node.inputs[0].name].add(node)

    def _add(self, candidate: Candidate, assignment: Assignment) -> None:
        x = candidate.anchor.x
        anchor = candidate.anchor
        if candidate.out is anchor.dtype and anchor.op.writes_slices(anchor):
            self._written[candidate.output.name] = assignment.form(candidate.output)
        reads = assignment.fused_reads.get(candidate.anchor.node, assignment.form(candidate.output))
        if reads == assignment.form(x) and all(link.operand is not x for link in candidate.links):
            self._readers[x.name].update(candidate.nodes)

    def writes(self, tensor: gs.Tensor, form: Form) -> bool:
        """True if a node of ours writes `tensor` in this form."""
        return self._written.get(tensor.name) == form

    def reads(self, node: gs.Node, tensor: gs.Tensor) -> bool:
        """True if a node of ours replaces `node` and reads `tensor` as its x and nowhere else."""
        return node in self._readers.get(tensor.name, ())


@dataclass(frozen=True)
class Slices:
    """The Concats without a copy, and the excerpts that are read in place."""

    # the inputs of each such Concat, by its node
    parts: dict[gs.Node, list[Slice]] = field(default_factory=dict)
    # Concats whose result is a part of another Concat's, by node
    views: dict[gs.Node, Slice] = field(default_factory=dict)
    # outputs of Split and Slice that need no copy, by name
    excerpts: dict[str, Excerpt] = field(default_factory=dict)
    # why other Concats need a copy
    refusals: list[Refusal] = field(default_factory=list)

    def finish(self, concat: gs.Node, writer: Writer) -> None:
        """Write the copies of inputs that could not be written in place, at the Concat's position,
        where all inputs are computed."""
        if concat in self.views:
            writer.drop(concat)
        for place in self.parts.get(concat, ()):
            dtype = DType.of(place.tensor.dtype)
            if place.in_place or dtype is None:
                continue
            configs = [only(ops.ALONE.name, arch) for arch in writer.archs]
            writer.own(
                Operation(Signature(ops.ALONE, dtype), [writer.get(place.tensor, place.form)]),
                Result(place.tensor, place.form, place=place),
                Origin("Concat in NHWC", concat),
                Kernels(configs),
            )

    def by_tensor(self) -> dict[str, Slice]:
        """The parts that need no copy, by tensor's name."""
        places = [place for parts in self.parts.values() for place in parts if place.in_place]
        return {place.tensor.name: place for place in (*places, *self.views.values())}


def slices(graph: gs.Graph, assignment: Assignment, runs: Sequence[Candidate]) -> Slices:
    """The Concats whose inputs are written into their results. `runs` are the fused runs of
    elementwise nodes. Later Concats are decided first, since their results can include those of
    earlier ones."""
    users = _Users(assignment, runs)
    concats = [
        _Concat(graph, node, assignment, users)
        for node in graph.nodes
        if node.op == "Concat" and _joins_channels(node, assignment)
    ]
    parts = dict[gs.Node, list[Slice]]()
    views, refused = dict[gs.Node, Slice](), dict[gs.Node, Refusal]()
    for concat in reversed(concats):
        if concat.node in views:
            continue
        here, inner = concat.in_place(concats)
        placed = [
            dataclasses.replace(part, in_place=part.tensor.name in here) for part in concat.parts
        ]
        if reason := concat.obstacle or _loss(placed):
            refused[concat.node] = Refusal(concat.node.name, "Concat", reason, concat.out.name)
        else:
            parts[concat.node] = placed
            views.update(inner)
    refusals = [refusal for node, refusal in refused.items() if node not in views]
    return Slices(parts, views, dict(_excerpts(graph, assignment, users)), refusals)


def _excerpts(
    graph: gs.Graph, assignment: Assignment, users: _Users
) -> Iterator[tuple[str, Excerpt]]:
    """Outputs of Split and Slice all of whose readers are kernels of ours with them as x."""
    for node, carry in assignment.carries.items():
        for tensor, excerpt in (
            zip(node.outputs, excerpts(node), strict=True)
            if node.op in ("Slice", "Split") and carry.ours
            else ()
        ):
            if not pinned(graph, tensor) and all(
                users.reads(user, tensor) for user in tensor.outputs
            ):
                yield tensor.name, excerpt


def _joins_channels(node: gs.Node, assignment: Assignment) -> bool:
    """True for a Concat of NHWC tensors along channels."""
    carry = assignment.carries.get(node)
    return (
        carry is not None
        and carry.writes[0].last
        and node.attrs["axis"] % len(node.outputs[0].shape) == 1
    )


def _loss(parts: list[Slice]) -> str:
    """Why the Concat itself would cost less than copying some parts; empty if it would not.

    A Concat costs one launch, and reads and writes everything once; each copy costs one launch, and
    reads and writes its part once.
    """
    widths = {
        kind: [part.width for part in parts if part.in_place is kind] for kind in (True, False)
    }
    if len(widths[False]) <= len(widths[True]) and sum(widths[False]) <= sum(widths[True]):
        return ""
    copied = (
        f"{len(widths[False])} of {len(parts)} inputs, {sum(widths[False])} of"
        f" {sum(part.width for part in parts)} channels"
    )
    return f"too many channels would have to be copied to or from kernels of ONNX Runtime: {copied}"


class _Concat:
    """A Concat of NHWC tensors along channels, the parts of its result, and what prevents writing
    these in place, if anything does."""

    def __init__(
        self, graph: gs.Graph, node: gs.Node, assignment: Assignment, users: _Users
    ) -> None:
        self.node, self.out, self._graph, self._users = node, node.outputs[0], graph, users
        self.parts: list[Slice] = []
        carry = assignment.carries[node]
        inputs = [
            (tensor, form, _width(tensor, form))
            for tensor, form in zip(node.inputs, carry.reads, strict=True)
        ]
        self.obstacle = self._obstacle([width for *_, width in inputs])
        whole, before, total = (
            Whole(node, self.out, carry.writes[0], len(inputs)),
            0,
            sum(width for *_, width in inputs),
        )
        for tensor, form, width in inputs if not self.obstacle else ():
            assert form is not None  # else it had no width
            self.parts.append(Slice(whole, tensor, form, before, width, total - before - width))
            before += width

    def _obstacle(self, widths: list[int]) -> str:
        dtype = DType.of(self.out.dtype)
        if dtype is None:
            return f"no kernel writes slices of {self.out.dtype}"
        if any(width % dtype.alignment for width in widths):
            return f"slices are not aligned to 16 bytes: {', '.join(map(str, widths))} channels"
        return "a subgraph reads the result" if self.out.name in self._graph.captured else ""

    def in_place(self, others: list[_Concat]) -> tuple[set[str], dict[gs.Node, Slice]]:
        """The names of the inputs whose nodes can write into this result, and the Concats whose
        results are then parts of this one."""
        names = [part.tensor.name for part in self.parts]
        here = {
            part.tensor.name for part in self.parts if self._users.writes(part.tensor, part.form)
        }
        here -= {
            part.tensor.name
            for part in self.parts
            if pinned(self._graph, part.tensor) or names.count(part.tensor.name) > 1
        }
        while True:
            views = {
                other.node: view
                for other in others
                if other is not self and (view := self._view(other, here))
            }
            able = {
                part.tensor.name
                for part in self.parts
                if all(
                    user is self.node or user in views or self._users.reads(user, part.tensor)
                    for user in part.tensor.outputs
                )
            }
            if here <= able:
                return here, views
            here &= able

    def _view(self, other: _Concat, here: set[str]) -> Slice | None:
        """The result of `other` as a part of this one's; None unless the inputs of `other` are
        neighbouring inputs of this Concat, in order, and kernels of ours alone read the result."""
        names, wanted = ([part.tensor.name for part in concat.parts] for concat in (self, other))
        if not wanted or not here.issuperset(wanted) or pinned(self._graph, other.out):
            return None
        start = names.index(wanted[0])
        if names[start : start + len(wanted)] != wanted or not all(
            self._users.reads(user, other.out) for user in other.out.outputs
        ):
            return None
        first, last = self.parts[start], self.parts[start + len(wanted) - 1]
        width = last.before + last.width - first.before
        return Slice(
            first.whole, other.out, other.parts[0].whole.form, first.before, width, last.after
        )


def _width(tensor: gs.Tensor, form: Form | None) -> int:
    """The number of stored channels; 1, which is never aligned, for constants and if the number is
    unknown."""
    stored = stored_shape(tensor.shape, form) if form is not None else None
    return stored[-1] if stored and isinstance(stored[-1], int) else 1
