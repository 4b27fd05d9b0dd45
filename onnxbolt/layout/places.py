"""Channels of a larger NHWC tensor that kernels read or write in place, without a copy.

An `Excerpt` is the output of a Split or a Slice (excerpts.py); a `Slice` is an input of a Concat,
as a part of its result (slices.py). Both change the `Operation` that reads or writes them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from onnxbolt.forms import Form
from onnxbolt.ops.base import Operation, Part


@dataclass(frozen=True)
class Read:
    """Channels `begin` to `end` of a variable, given instead of an input."""

    variable: gs.Variable
    begin: int
    end: int

    def by(self, operation: Operation) -> Operation:
        """`operation`, which has these channels as its x, as it reads them from the variable."""
        return Operation(
            dataclasses.replace(operation.signature, sliced=True),
            [self.variable, *operation.inputs[1:]],
            {**operation.attributes, "channels": [self.begin, self.end]},
        )


def without_padding(operation: Operation, form: Form) -> Operation:
    """`operation`, whose x lies in `form`, reading the channels in front of the padding alone, if
    its op does so."""
    if form.channels is None or not operation.signature.op.skips_padding:
        return operation
    x, count = operation.inputs[0], sum(channel >= 0 for channel in form.channels)
    begin = x.begin if isinstance(x, Read) else 0
    read = Read(x.variable if isinstance(x, Read) else x, begin, begin + count)
    return dataclasses.replace(operation, inputs=[read, *operation.inputs[1:]])


@dataclass(frozen=True, eq=False)
class Excerpt:
    """Channels `begin` to `end` of a tensor: the output of a Split or a Slice."""

    tensor: gs.Tensor
    form: Form
    begin: int
    end: int

    def within(self, whole: gs.Tensor | Read) -> Read:
        """The channels as kernels read them from `whole`, which holds the tensor in `form`."""
        variable, before = (whole.variable, whole.begin) if isinstance(whole, Read) else (whole, 0)
        return Read(variable, before + self.begin, before + self.end)


@dataclass
class Whole:
    """The result of a Concat, while nodes write their parts of it one after the other."""

    concat: gs.Node
    tensor: gs.Tensor
    form: Form
    count: int  # nodes that write a part of it
    written: list[gs.Variable] = field(default_factory=list)  # its variable after each of them

    @property
    def completed(self) -> list[gs.Node]:
        """The Concat, if the next node is the last one to write and so replaces it; otherwise
        empty."""
        return [self.concat] if len(self.written) + 1 == self.count else []


@dataclass(frozen=True, eq=False)
class Slice:
    """A tensor as a part of a Concat's result: one of its inputs, or the result of another Concat,
    all of whose inputs are. `before`, `width` and `after` count stored channels."""

    whole: Whole
    tensor: gs.Tensor
    form: Form
    before: int
    width: int
    after: int
    in_place: bool = True  # True: the node that computes it writes it there; False: it is copied

    def read(self) -> Read:
        """The part as kernels read it."""
        return Read(self.whole.written[-1], self.before, self.before + self.width)

    def written_by(self, operation: Operation) -> Operation:
        """`operation`, which computes the tensor, as it writes into the Concat's result."""
        written, others = self.whole.written[-1:], [0] * (len(self.tensor.shape) - 1)
        around = [*others, self.before, *others, self.after]  # as pads of ONNX's Pad
        part = Part.NEXT if written else Part.FIRST
        return Operation(
            dataclasses.replace(operation.signature, part=part),
            [*operation.inputs, *written],
            {**operation.attributes, "around": around},
        )
