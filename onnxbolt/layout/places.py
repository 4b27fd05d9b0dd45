"""Channels that kernels read or write where they lie, among others of a larger tensor.

An `Excerpt` is what a Split or a Slice takes of a tensor (excerpts.py), a `Slice` is where a tensor
lies in the result of a Concat (slices.py). Both change the `Operation` that reads or writes them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from onnxbolt.forms import Form
from onnxbolt.ops.base import Operation, Part


@dataclass(frozen=True)
class Read:
    """Channels `begin` to `end` of a variable, in the place of an input."""

    variable: gs.Variable
    begin: int
    end: int

    def by(self, operation: Operation) -> Operation:
        """The operation that would have this as its x, reading these channels of the variable."""
        return Operation(
            dataclasses.replace(operation.signature, sliced=True),
            [self.variable, *operation.inputs[1:]],
            {**operation.attributes, "channels": [self.begin, self.end]},
        )


@dataclass(frozen=True, eq=False)
class Excerpt:
    """Channels `begin` to `end` of a tensor, as a Split or a Slice takes them."""

    tensor: gs.Tensor
    form: Form
    begin: int
    end: int

    def within(self, whole: gs.Tensor | Read) -> Read:
        """It as kernels read it: from `whole`, which is where the tensor lies in `form`."""
        variable, before = (whole.variable, whole.begin) if isinstance(whole, Read) else (whole, 0)
        return Read(variable, before + self.begin, before + self.end)


@dataclass
class Whole:
    """The result of a Concat in the making."""

    concat: gs.Node
    tensor: gs.Tensor
    form: Form
    count: int  # of the nodes that write it
    written: list[gs.Variable] = field(default_factory=list)  # it after each of them

    @property
    def completed(self) -> list[gs.Node]:
        """The Concat, if the next node to write is the last one, which takes its place; else
        none."""
        return [self.concat] if len(self.written) + 1 == self.count else []


@dataclass(frozen=True, eq=False)
class Slice:
    """Where a tensor lies in the result of a Concat: one of its inputs, or several that another
    Concat joins; channels as stored."""

    whole: Whole
    tensor: gs.Tensor
    form: Form
    before: int
    width: int
    after: int
    in_place: bool = True  # written by the node that computes it, else copied

    def read(self) -> Read:
        """It as others read it."""
        return Read(self.whole.written[-1], self.before, self.before + self.width)

    def written_by(self, operation: Operation) -> Operation:
        """The operation that would compute it by itself, writing into the result."""
        written, others = self.whole.written[-1:], [0] * (len(self.tensor.shape) - 1)
        around = [*others, self.before, *others, self.after]  # as pads of ONNX's Pad
        part = Part.NEXT if written else Part.FIRST
        return Operation(
            dataclasses.replace(operation.signature, part=part),
            [*operation.inputs, *written],
            {**operation.attributes, "around": around},
        )
