"""Follows the result of attention to the tensor that lies in memory as a kernel writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import producer
from onnxbolt.ops.attention import views
from onnxbolt.ops.attention.lengths import Size, sizes
from onnxbolt.ops.attention.scales import before
from onnxbolt.ops.attention.views import Arrange, Atom, Axis, Layout, View

_REARRANGE = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


@dataclass(frozen=True, eq=False)
class Output:
    """The result in memory [batch, queries, heads, size], and the nodes that make it so of
    [batch, heads, queries, size]."""

    tensor: gs.Tensor
    nodes: tuple[gs.Node, ...]
    joined: bool  # heads and size are one axis


def output(y: gs.Tensor, arrange: Arrange, q: View, heads: int) -> Output | None:
    """The first tensor behind y that lies so, with heads and size as one axis and in the operands'
    element type if there is one; None if there is no such tensor."""
    layout = _divided(y, q, heads)
    axes = None if layout is None else arrange(layout)
    if layout is None or axes is None:
        return None
    names = _names(axes, q)
    batch, head, row, element = (_renamed(axis, names) for axis in axes)
    start = Layout(tuple(_renamed(axis, names) for axis in layout.axes))
    both = *head, *element
    even = views.merged(both)
    wanted = {
        (batch, row, head, element): False,
        (batch, row, both): True,
        (batch, row, both if even is None else (even,)): True,
    }
    found = [
        Output(tensor, (*_sizing(nodes), *nodes), wanted[layout.axes])
        for tensor, layout, nodes in _behind(y, start, names)
        if layout.axes in wanted
    ]
    found = [each for each in found if _is_alone(y, each)]
    found.sort(key=lambda each: (each.tensor.dtype != q.tensor.dtype, not each.joined))
    return found[0] if found else None


def _sizing(nodes: Sequence[gs.Node]) -> tuple[gs.Node, ...]:
    """The nodes that compute shapes for these nodes alone, of the sizes of tensors between them."""
    pending = [p for node in nodes for t in node.inputs[1:] if (p := producer(t)) is not None]
    inside, own = set(nodes), list[gs.Node]()
    while pending:
        node = pending.pop()
        if node not in inside and all(r in inside for t in node.outputs for r in t.outputs):
            inside.add(node)
            own.append(node)
            pending += [p for t in node.inputs if node.op != "Shape" and (p := producer(t))]
    return tuple(own)


def _is_alone(y: gs.Tensor, found: Output) -> bool:
    """True if no other node reads a tensor between y and the result."""
    between = [y, *(tensor for node in found.nodes for tensor in node.outputs)]
    return all(
        reader in found.nodes
        for tensor in between
        if tensor is not found.tensor
        for reader in tensor.outputs
    )


def _divided(y: gs.Tensor, q: View, heads: int) -> Layout | None:
    """The layout of y, in which a symbolic first axis for batch and heads is divided."""
    layout = views.of(y)
    if layout is None or len(layout.axes) != 3 or isinstance(y.shape[0], int) or heads == 1:
        return layout
    (both,) = layout.axes[0]
    parted = Atom(q.batch, both.stride * heads), Atom(heads, both.stride)
    return Layout((parted, *layout.axes[1:]))


def _names(axes: tuple[Axis, Axis, Axis, Axis], q: View) -> dict[Size, Size]:
    """The names that inference gives to batch and queries of y, which it may have lost behind a
    mask, with those that the queries have."""
    pairs = (axes[0], q.batch), (axes[2], q.positions)
    known = [(axis[0].size, size) for axis, size in pairs if len(axis) == 1]
    return {old: new for old, new in known if isinstance(old, str) and isinstance(new, str)}


def _renamed(axis: Axis, names: Mapping[Size, Size]) -> Axis:
    return tuple(Atom(names.get(atom.size, atom.size), atom.stride) for atom in axis)


def _behind(
    tensor: gs.Tensor, layout: Layout | None, names: Mapping[Size, Size]
) -> Iterator[tuple[gs.Tensor, Layout, tuple[gs.Node, ...]]]:
    """A tensor, and those behind it that are only rearranged or cast to 16 bits for one reader
    beside those of its shape, each with its layout and the nodes before it."""
    nodes: tuple[gs.Node, ...] = ()
    while layout is not None:
        yield tensor, layout, nodes
        readers = [node for node in tensor.outputs if node.op != "Shape"]
        if len(readers) != 1:
            return
        (node,) = readers
        if node.op in _REARRANGE and not node.domain:
            layout = _through(node, layout, names)
        elif node.op != "Cast" or before(node) is None or tensor.dtype != np.float32:
            return
        tensor, nodes = node.outputs[0], (*nodes, node)


def _through(node: gs.Node, layout: Layout, names: Mapping[Size, Size]) -> Layout | None:
    """The layout behind a node, whose output's sizes have other names."""
    output = node.outputs[0]
    if output.shape is None:
        return None
    shape = [names.get(size, size) for size in sizes(output)]
    return views.through(node, layout, gs.Variable(output.name, output.dtype, shape))
