"""The forms that an ordinary node reads and writes, and how its replacement is written.

A layout rule (rules/) returns a `Carry`, whose `emit` writes nodes through a `Writer`; rewrite.py
implements that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.families import KernelConfig
from onnxbolt.forms import Form
from onnxbolt.layout.places import Read, Slice
from onnxbolt.ops.base import Operation, Tensors


@dataclass(frozen=True)
class Carry:
    """How an ordinary node works on stored forms.

    `reads` has the form of each input, None for constants, which `emit` converts itself; `writes`
    has the form of each output. `emit` writes the node's replacement.
    """

    reads: tuple[Form | None, ...]
    writes: tuple[Form, ...]
    emit: Callable[[Writer, gs.Node, Carry], None]
    ours: bool = False  # True if the replacement is a node of our domain


@dataclass(frozen=True)
class Result:
    """The output of a node of our domain: `tensor` in `form`."""

    tensor: gs.Tensor
    form: Form
    stored: gs.Tensor | None = None  # a second output, in the form that is assigned to it
    place: Slice | None = None  # its part of a Concat's result; None: by the tensor's name


@dataclass(frozen=True)
class Origin:
    """Why there is a node of our domain: the rule in words, the source node that gives its name,
    and the nodes that it replaces."""

    rule: str
    source: gs.Node | None
    covered: Sequence[gs.Node] = ()


@dataclass(frozen=True)
class Kernels:
    """The configurations that a node carries, and the source of their times: "predicted" or
    "measured"."""

    configs: Sequence[KernelConfig] = field(default=())
    source: str = "predicted"


class Writer(Tensors, Protocol):
    """Writes the new list of nodes. Nodes name their inputs by `get` and their outputs by
    `produce`, each in a stored form."""

    graph: gs.Graph
    archs: Sequence[int]

    @property
    def carries(self) -> Mapping[gs.Node, Carry]:
        """The ordinary nodes that work on stored forms."""

    def form(self, tensor: gs.Tensor) -> Form:
        """The form in which the node that computes `tensor` writes it."""

    def get(self, tensor: gs.Tensor, form: Form | None) -> gs.Tensor | Read:
        """`tensor` as stored in `form`, converted once for all readers."""

    def is_read_in_place(self, tensor: gs.Tensor) -> bool:
        """True if all readers of this excerpt are kernels that read it from the larger tensor."""

    def is_replaced(self, node: gs.Node) -> bool:
        """True if a run of elementwise nodes, which one kernel computes, has the node."""

    def produce(self, tensor: gs.Tensor, form: Form) -> gs.Tensor:
        """The variable that a new node writes for `tensor` in `form`; the original variable is
        the plain form."""

    def variable(self, tensor: gs.Tensor, form: Form) -> gs.Variable:
        """A new variable for `tensor` as stored in `form`."""

    def scratch(self, tensor: gs.Tensor, dtype: np.dtype | type) -> gs.Variable:
        """A new variable of another element type, its shape left to inference."""

    def add(
        self,
        op: str,
        inputs: Sequence[gs.Tensor],
        outputs: Sequence[gs.Tensor],
        attributes: dict[str, object],
        about: gs.Tensor,
        source: gs.Node | None = None,
        domain: str = "",
    ) -> gs.Node:
        """Append a new node, named after `about`, with the provenance of `source`."""

    def replace(
        self,
        node: gs.Node,
        inputs: Sequence[gs.Tensor],
        form: Form,
        changes: dict[str, object] | None = None,
    ) -> None:
        """Append `node` with these inputs and changed attributes, its outputs in `form`."""

    def alias(self, node: gs.Node, stored: gs.Tensor, form: Form) -> None:
        """Let readers of the node's result read `stored`, which holds the same in `form`."""

    def drop(self, node: gs.Node) -> None:
        """Take a node out of the graph."""

    def own(
        self, operation: Operation, result: Result, origin: Origin, kernels: Kernels
    ) -> gs.Node:
        """Append a node of our domain for the result, which is written into a Concat's result if it
        has a place there."""
