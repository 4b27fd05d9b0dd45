"""Attention over tensors whose first axis is positions and whose second one is batch, as
torch.nn.MultiheadAttention computes it whatever its inputs' axes are:

    [S, B, heads x D] -> Reshape [S, B x heads, D] -> Transpose [B x heads, S, D] -> ...

Kernels read [B, S, ..], so the first two axes of what the projections wrote are exchanged before
attention and back behind it: one Transpose in place of each operand's. Where a Transpose of a
module's input stands in front of the projection (batch_first=True), the projection reads that input
instead, and none is left there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import add_constant, pinned, producer, prune, rearranged, remove
from onnxbolt.ops.attention import forms, views
from onnxbolt.ops.attention.found import AttentionAnchor
from onnxbolt.ops.attention.lengths import Size, sizes
from onnxbolt.ops.attention.products import Attempt
from onnxbolt.ops.attention.scales import before
from onnxbolt.ops.attention.views import Arrange
from onnxbolt.ops.base import FusedOp
from onnxbolt.patterns.types import Match

_SWAP = (1, 0)
_BEHIND = {4: [2, 0, 1, 3], 3: [1, 0, 2]}  # from the product's axes to positions, batch, heads


@dataclass(frozen=True, eq=False)
class _Root:
    """A tensor [S, B, ..] that an operand is made of, and the first node on the way to it."""

    tensor: gs.Tensor
    reader: gs.Node


def turn(op: FusedOp, graph: gs.Graph, among: Iterable[gs.Node]) -> list[gs.Node]:
    """Exchange the axes around attentions of this form; returns the softmaxes and operators,
    `among` the given ones, of these attentions."""
    turned, roots = list[gs.Node](), dict[str, gs.Tensor]()
    for node in among:
        if not _is_read(forms.match(op, node)):
            attempts = forms.attempts(node)
            turned += [node] if any(_turned(graph, each, roots) for each in attempts) else []
    if turned:
        prune(graph)
    return turned


def _is_read(found: Match) -> bool:
    """True if an attention is recognized as it is, and not with batch x heads for its batch."""
    anchor = found[0] if isinstance(found, tuple) else None
    return isinstance(anchor, AttentionAnchor) and anchor.attention.heads > 1


def _turned(graph: gs.Graph, attempt: Attempt, turned: dict[str, gs.Tensor]) -> bool:
    """Exchange the axes around one attention; False if it is of another form."""
    read, y = attempt.operands, attempt.y
    pairs = zip((read.q, read.k, read.v), read.arranged, strict=True)
    roots = [root for tensor, arrange in pairs if (root := _root(tensor, arrange)) is not None]
    rank, readers = len(y.shape or ()), list(y.outputs)
    if len(roots) < 3 or len(readers) != 1 or pinned(graph, y) or rank not in _BEHIND:
        return False
    if rank == 3 and attempt.heads == 1:  # then batch x heads would be taken for batch
        return False
    behind = readers[0]
    if behind.op != "Transpose" or behind.domain or behind.attrs.get("perm") != _BEHIND[rank]:
        return False
    for root in roots:
        _exchange(graph, root, turned)
    _exchange_result(graph, attempt, behind, sizes(roots[0].tensor)[1])
    return True


def _root(tensor: gs.Tensor, arrange: Arrange) -> _Root | None:
    """The tensor furthest back, if its first axes are positions and batch."""
    for root, layout, nodes in views.roots(tensor, before):
        axes, whole = None if layout is None else arrange(layout), views.of(root)
        if axes is None or whole is None or not nodes or len(whole.axes) < 3:
            continue
        batch, _, positions, _ = axes
        if whole.axes[:2] == (positions, batch) and batch != positions:
            return _Root(root, nodes[0])
    return None


# --- operands -------------------------------------------------------------------------------------


def _exchange(graph: gs.Graph, root: _Root, turned: dict[str, gs.Tensor]) -> None:
    """Make an operand's root a Transpose of a tensor [B, S, ..]."""
    tensor, name = root.tensor, root.tensor.name
    if name not in turned:
        made, inner = producer(tensor), _exchanged(graph, tensor)
        if inner is None or made is None:
            inner = _swap(graph, tensor, root.reader)
            turned[name] = _swap(graph, inner, root.reader)
        else:
            last = _swap(graph, inner, made).inputs[0]
            remove(graph, [made])
            last.outputs = [tensor]
            turned[name] = tensor
    for index, given in enumerate(root.reader.inputs):
        if given is tensor:
            root.reader.inputs[index] = turned[name]


def _exchanged(graph: gs.Graph, tensor: gs.Tensor) -> gs.Tensor | None:
    """The tensor with its first two axes exchanged, if it follows from one that has been exchanged
    by products and sums that treat each row alike."""
    node = producer(tensor)
    if node is None or node.domain or len(tensor.shape or ()) != 3:
        return None
    if node.op == "Transpose":
        source: gs.Tensor = node.inputs[0]
        return source if list(node.attrs.get("perm", ())) == [1, 0, 2] else None
    rows = [t for t in node.inputs if not isinstance(t, gs.Constant)]
    constants = [t for t in node.inputs if isinstance(t, gs.Constant)]
    if node.op not in ("Add", "MatMul") or len(rows) != 1 or len(constants) != 1:
        return None
    shape = constants[0].shape
    alike = len(shape) == 2 and node.inputs[0] is rows[0] if node.op == "MatMul" else _is_row(shape)
    inner = _exchanged(graph, rows[0]) if alike else None
    if inner is None:
        return None
    inputs = [inner if each is rows[0] else each for each in node.inputs]
    return rearranged(graph, node.op, inputs, tensor, _swapped(tensor), node)


def _is_row(shape: Sequence[int]) -> bool:
    """True for constants that are the same in all rows."""
    return len(shape) <= 3 and all(size == 1 for size in shape[:-1])


def _swapped(tensor: gs.Tensor) -> list[Size]:
    positions, batch, *others = sizes(tensor)
    return [batch, positions, *others]


def _swap(graph: gs.Graph, tensor: gs.Tensor, at: gs.Node) -> gs.Variable:
    """A Transpose of the first two axes."""
    perm = [*_SWAP, *range(2, len(tensor.shape))]
    return rearranged(graph, "Transpose", [tensor], tensor, _swapped(tensor), at, perm=perm)


# --- the result -----------------------------------------------------------------------------------


def _exchange_result(graph: gs.Graph, attempt: Attempt, behind: gs.Node, batch: Size) -> None:
    """Make the result [B, S, heads, E] first, and of it what `behind` makes."""
    y, after = attempt.y, behind.outputs[0]
    result, folded = y, len(y.shape) == 3
    *_, queries, size = sizes(y)
    heads: Size = attempt.heads if folded else sizes(y)[1]
    if folded:
        shape = _shape(graph, y, behind, attempt.heads)
        divided = [batch, heads, queries, size]
        result = rearranged(graph, "Reshape", [y, shape], y, divided, behind)
    rows = [batch, queries, heads, size]
    result = rearranged(graph, "Transpose", [result], y, rows, behind, perm=[0, 2, 1, 3])
    result = _swap(graph, result, behind)
    if folded:
        joined = add_constant(graph, f"{y.name}/shape", np.array([0, -1, size], np.int64))
        result = rearranged(graph, "Reshape", [result, joined], y, sizes(after), behind)
    last = producer(result)
    assert last is not None  # it has just been made
    remove(graph, [behind])
    last.outputs = [after]


def _shape(graph: gs.Graph, y: gs.Tensor, at: gs.Node, heads: int) -> gs.Tensor:
    """The shape [B, heads, S, E] for a Reshape of [B x heads, S, E]."""
    ends = np.array([-1, heads, *(n if isinstance(n, int) else 0 for n in y.shape[1:])], np.int64)
    if 0 not in ends:
        return add_constant(graph, f"{y.name}/shape", ends)
    integers = gs.Variable(y.name, np.dtype(np.int64))
    bounds = [add_constant(graph, f"{y.name}/bound", np.array([n], np.int64)) for n in (1, 3)]
    whole = rearranged(graph, "Shape", [y], integers, [3], at)
    part = rearranged(graph, "Slice", [whole, *bounds], integers, [2], at)
    first = add_constant(graph, f"{y.name}/shape", ends[:2])
    return rearranged(graph, "Concat", [first, part], integers, [4], at, axis=0)
