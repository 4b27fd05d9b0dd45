"""Scores that are reshaped to the grids of their queries and keys, where biases are added along
rows and columns (ViTDet):

    Reshape(Reshape(scores, grid) + a + b)   =   scores + Reshape(a + b)

The sum of the biases has the grid's shape, so that nothing is broadcast behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import add_variable, constant_integers, insert, producer, remove, sole_use
from onnxbolt.ops.attention.lengths import Size, sizes
from onnxbolt.ops.attention.masks import leads_to_product
from onnxbolt.ops.base import FusedOp


@dataclass(frozen=True, eq=False)
class _Grid:
    """Scores with biases: `to` reshapes them to a grid, `sums` add to that, `back` reshapes it."""

    to: gs.Node
    sums: Sequence[gs.Node]
    back: gs.Node
    biases: Sequence[gs.Tensor]


def flatten(op: FusedOp, graph: gs.Graph, among: Iterable[gs.Node]) -> list[gs.Node]:
    """Add such biases to the scores as they were; returns the softmaxes, `among` the given ones, of
    the attentions that have them."""
    found = [(softmax, _grid(graph, softmax)) for softmax in among]
    for _, grid in found:
        if grid is not None:
            _flatten(graph, grid)
    return [softmax for softmax, grid in found if grid is not None]


def _grid(graph: gs.Graph, softmax: gs.Node) -> _Grid | None:
    back = _reshape(graph, softmax.inputs[0])
    if back is None:
        return None
    y, tensor = back.outputs[0], back.inputs[0]
    sums, biases = list[gs.Node](), list[gs.Tensor]()
    while (node := producer(tensor)) is not None and node.op == "Add" and not node.domain:
        scores = [term for term in node.inputs if leads_to_product(term, sizes(y)[-2:])]
        if len(scores) != 1 or sole_use(graph, tensor) is None:
            return None
        biases.insert(0, node.inputs[1 if node.inputs[0] is scores[0] else 0])
        sums.insert(0, node)
        tensor = scores[0]
    to = _reshape(graph, tensor)
    if to is None or not sums:
        return None
    # a constant target has a 0 or a -1 for the batch, and so fits biases of any batch
    open_batch = constant_integers(back, 1) is not None
    same = _alike(sizes(to.inputs[0]), sizes(y), open_batch)
    whole = same and _alike(_broadcast(biases), sizes(to.outputs[0]), open_batch)
    typed = all(bias.dtype == y.dtype for bias in biases)
    return _Grid(to, sums, back, biases) if whole and typed else None


def _alike(a: Sequence[Size], b: Sequence[Size], open_batch: bool) -> bool:
    """True if sizes are the same; where `open_batch`, the first ones may be unknown if the others
    are numbers."""
    if [*a] == [*b]:
        return True
    rest = [*a[1:]] == [*b[1:]] and all(isinstance(size, int) for size in a[1:])
    return open_batch and rest and all(isinstance(size, str) for size in (*a[:1], *b[:1]))


def _reshape(graph: gs.Graph, tensor: gs.Tensor) -> gs.Node | None:
    """The Reshape that computes a tensor with a single reader, if all shapes are known."""
    node = producer(tensor)
    if node is None or node.op != "Reshape" or node.domain or sole_use(graph, tensor) is None:
        return None
    known = tensor.shape is not None and node.inputs[0].shape is not None
    return node if known else None


def _broadcast(biases: Sequence[gs.Tensor]) -> list[Size]:
    """The shape of the sum, if all biases have as many axes; else empty."""
    if any(bias.shape is None or len(bias.shape) != len(biases[0].shape) for bias in biases):
        return []
    axes = zip(*map(sizes, biases), strict=True)
    return [next((size for size in axis if size != 1), 1) for axis in axes]


def _flatten(graph: gs.Graph, grid: _Grid) -> None:
    to, back, last = grid.to, grid.back, grid.sums[-1]
    scores, y, shaped = to.inputs[0], back.outputs[0], to.outputs[0]
    total, *others = grid.biases
    for bias in others:
        result = add_variable(graph, f"{y.name}_bias", shaped)
        insert(graph, "Add", [total, bias], [result], [last], at=back)
        total = result
    flat = add_variable(graph, f"{y.name}_flat", y)
    insert(graph, "Reshape", [total, back.inputs[1]], [flat], [back], back.attrs, at=back)
    insert(graph, "Add", [scores, flat], [], [last], at=back).outputs = [y]
    remove(graph, [to, *grid.sums, back])
