"""The requirements and guarantees of stages, which are checked while tests run.

A stage is a function that takes the graph first and changes it in place. `@stage(requires=..,
ensures=..)` states its promises where it is defined. Without the environment variable
ONNXBOLT_CHECK_PROMISES=1, which the tests set, nothing is checked and nothing costs time.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
import onnx_graphsurgeon as gs
from onnx import NodeProto

from onnxbolt.graph.edit import is_float
from onnxbolt.graph.importer import attributes_of

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
SWITCH = "ONNXBOLT_CHECK_PROMISES"


class PromiseError(AssertionError):
    """A stage was given or left a graph that breaks a promise; this is a fault of this package."""


@dataclass(frozen=True)
class Type:
    """A tensor's kind of element type (all floating-point types are one kind) and its shape as far
    as known."""

    element: str
    shape: tuple[int | str | None, ...] | None

    @classmethod
    def of(cls, tensor: gs.Tensor) -> Type:
        element = "float" if is_float(tensor) else str(tensor.dtype)
        return cls(element, None if tensor.shape is None else tuple(tensor.shape))

    def agrees(self, other: Type) -> bool:
        """True unless the two types are both known and differ."""
        if "None" not in (self.element, other.element) and self.element != other.element:
            return False
        if self.shape is None or other.shape is None:
            return True
        if len(self.shape) != len(other.shape):
            return False
        pairs = zip(self.shape, other.shape, strict=True)
        return all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))


Types = dict[str, Type]
Promise = Callable[[gs.Graph, Types], Iterator[str]]


def unique_names(graph: gs.Graph, before: Types) -> Iterator[str]:
    """Each tensor name belongs to one tensor, and at most one node computes it."""
    found: dict[str, gs.Tensor] = {}
    for tensor in _tensors(graph):
        if tensor.name and found.setdefault(tensor.name, tensor) is not tensor:
            yield f"two tensors are named {tensor.name!r}"
    written: set[str] = set()
    for tensor in (tensor for node in graph.nodes for tensor in node.outputs if tensor.name):
        if tensor.name in written:
            yield f"{tensor.name!r} is computed twice"
        written.add(tensor.name)


def topological_order(graph: gs.Graph, before: Types) -> Iterator[str]:
    """Each node comes after the nodes that compute its inputs, and none of these is missing."""
    ready = {tensor.name for tensor in graph.inputs}
    ready |= {sparse.values.name for sparse in graph.source.graph.sparse_initializer}
    for node in graph.nodes:
        for tensor in node.inputs:
            known = isinstance(tensor, gs.Constant) or not tensor.name or tensor.name in ready
            if not known:
                yield f"{node.op} {node.name!r} reads {tensor.name!r}, which is not computed yet"
        ready.update(tensor.name for tensor in node.outputs)


def results_are_there(graph: gs.Graph, before: Types) -> Iterator[str]:
    """The graph's outputs and the tensors that subgraphs read exist under their names."""
    there = {tensor.name for node in graph.nodes for tensor in node.outputs}
    there |= {tensor.name for tensor in graph.inputs} | graph.constants.keys()
    there |= {tensor.name for tensor in _tensors(graph) if isinstance(tensor, gs.Constant)}
    wanted = {tensor.name for tensor in graph.outputs} | set(graph.captured)
    for name in sorted(wanted - there):
        yield f"nothing computes {name!r}"


def names_keep_their_meaning(graph: gs.Graph, before: Types) -> Iterator[str]:
    """A tensor of the source model keeps its shape and its kind of type under its name.

    That its values stay, too, takes a run: verification and tests/graph/test_promises.py do that.
    """
    for tensor in _tensors(graph):
        known = before.get(tensor.name) if tensor.name in graph.source_tensors else None
        if known is not None and not known.agrees(now := Type.of(tensor)):
            yield f"{tensor.name!r} was {known} and is {now}"


def origins_are_true(graph: gs.Graph, before: Types) -> Iterator[str]:
    """A node that is exported as its origin still is the node that its origin describes."""
    for node in graph.nodes:
        origin: NodeProto | None = getattr(node, "origin", None)
        if origin is None:
            continue
        domain = "" if origin.domain == "ai.onnx" else origin.domain  # as it is imported
        if (node.op, node.domain or "") != (origin.op_type, domain):
            yield f"{node.name!r} is {node.op}, and its origin {origin.op_type}"
        there = attributes_of(origin)
        if there.keys() != node.attrs.keys() or any(
            not _same(value, node.attrs[name]) for name, value in there.items()
        ):
            yield f"{node.op} {node.name!r} has other attributes than its origin"


SOUND: tuple[Promise, ...] = (unique_names, results_are_there, origins_are_true)
ORDERED: tuple[Promise, ...] = (*SOUND, topological_order)
KEPT: tuple[Promise, ...] = (*SOUND, names_keep_their_meaning)


def stage(
    requires: Sequence[Promise] = (), ensures: Sequence[Promise] = ()
) -> Callable[
    [Callable[Concatenate[gs.Graph, Parameters], Result]],
    Callable[Concatenate[gs.Graph, Parameters], Result],
]:
    """States what a function that changes the graph requires and ensures. While tests run, a broken
    promise raises PromiseError."""

    def stated(
        function: Callable[Concatenate[gs.Graph, Parameters], Result],
    ) -> Callable[Concatenate[gs.Graph, Parameters], Result]:
        @functools.wraps(function)
        def checked(
            graph: gs.Graph, /, *arguments: Parameters.args, **options: Parameters.kwargs
        ) -> Result:
            if os.environ.get(SWITCH) != "1":
                return function(graph, *arguments, **options)
            name = f"{function.__module__.removeprefix('onnxbolt.')}.{function.__name__}"
            before = {tensor.name: Type.of(tensor) for tensor in _tensors(graph)}
            _hold(requires, graph, before, f"{name} requires")
            result = function(graph, *arguments, **options)
            _hold(ensures, graph, before, f"{name} ensures")
            return result

        return checked

    return stated


def _hold(promises: Sequence[Promise], graph: gs.Graph, before: Types, whose: str) -> None:
    for promise in promises:
        for fault in promise(graph, before):
            raise PromiseError(f"{whose} {promise.__name__}: {fault}")


def _tensors(graph: gs.Graph) -> Iterator[gs.Tensor]:
    """Every tensor that a node reads or writes, and the graph's inputs and outputs."""
    yield from graph.inputs
    for node in graph.nodes:
        yield from node.inputs
        yield from node.outputs
    yield from graph.outputs


def _same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(np.asarray(one), np.asarray(other))
    return one == other or (one != one and other != other)  # NaN is itself, too
