"""Let attention read windows of images from the images themselves (Swin):

    MatMul(P x, W) + b  =  P (MatMul(x, W) + b)

P divides images into windows, shifted or not. It only moves rows, and a product with a constant
weight does not care about their order. So P moves from the projections' input to their results,
and behind attention its inverse from the output projection's result to its input:

    x -> P -> projections -> attention -> projection -> P^-1 -> y
    x -> projections -> P -> attention -> P^-1 -> projection -> y

There each is a Gather of rows by constant indices, and its op reads and writes past it
(FusedOp.takes_windows). P is left where it is if its inverse does not follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.candidates import Candidate
from onnxbolt.graph import promises
from onnxbolt.graph.edit import (
    Node,
    add_constant,
    held_by,
    insert,
    pinned,
    producer,
    remove,
    sole_use,
)
from onnxbolt.graph.names import fresh
from onnxbolt.graph.promises import stage
from onnxbolt.graph.windows import Windows
from onnxbolt.match.matcher import match
from onnxbolt.match.window_rows import Moved, divided, united
from onnxbolt.ops.attention.lengths import sizes


@dataclass(frozen=True, eq=False)
class _Rowwise:
    """A product with a constant weight and what follows it for each row alone: from `source` to
    `result`."""

    source: gs.Tensor
    nodes: tuple[gs.Node, ...]

    @property
    def result(self) -> gs.Variable:
        return self.nodes[-1].outputs[0]


@dataclass(frozen=True, eq=False)
class _Block:
    """An attention over windows, from the image that is divided to the united one."""

    before: Moved
    projections: tuple[_Rowwise, ...]
    attended: gs.Tensor
    projection: _Rowwise
    after: Moved

    @property
    def axes(self) -> int:
        """1 if both images are at hand with one axis for pixels, else 2."""
        return 1 if self.before.flat and self.after.flat else 2


@stage(requires=promises.SOUND, ensures=promises.KEPT)
def move(graph: gs.Graph) -> list[str]:
    """Move in place; returns a line for the report if anything was moved."""
    candidates = [each for each in match(graph).candidates if each.anchor.op.takes_windows]
    found = [_block(graph, candidate) for candidate in candidates]
    blocks = [block for block in found if block is not None]
    indices = _Indices(graph)
    for block in blocks:
        _move_in_front(graph, block, indices)
        _move_behind(graph, block, indices)
    count = len(blocks)
    return [f"windows: {count} (attentions that read windows of images in place)"] if count else []


class _Indices:
    """Constants of rows, which blocks share."""

    def __init__(self, graph: gs.Graph) -> None:
        self._graph = graph
        self._made = dict[tuple[Windows, bool], gs.Constant]()

    def get(self, windows: Windows, back: bool) -> gs.Constant:
        if (windows, back) not in self._made:
            rows = windows.back() if back else windows.rows()
            name = "windows_back" if back else "windows"
            self._made[windows, back] = add_constant(self._graph, name, rows)
        return self._made[windows, back]


# --- attention and its surroundings ---------------------------------------------------------------


def _block(graph: gs.Graph, candidate: Candidate) -> _Block | None:
    operands = candidate.anchor.strided
    tensors = {operand.tensor.name: operand.tensor for operand in operands}
    before = [_rowwise_before(graph, tensor, candidate) for tensor in tensors.values()]
    projections = tuple(each for each in before if each is not None)
    if not projections or len(projections) < len(before) or len(operands) < 3:
        return None
    sources = {each.source.name for each in projections}
    moved = divided(projections[0].source) if len(sources) == 1 else None
    after = _rowwise_behind(graph, candidate.output)
    if moved is None or after is None:
        return None
    back = united(graph, after.result, moved.windows, sizes(moved.image)[0])
    if back is None:
        return None
    block = _Block(moved, projections, candidate.output, after, back)
    ranks = {len(each.image.shape) for each in (moved, back)}
    return block if block.axes == 1 or ranks == {4} else None


def _rowwise_before(graph: gs.Graph, result: gs.Tensor, reader: Candidate) -> _Rowwise | None:
    """The row-wise nodes that compute `result`, which `reader` alone reads."""
    nodes, tensor = list[gs.Node](), result
    inside = set(reader.nodes)
    if pinned(graph, result) or not inside.issuperset(result.outputs) or len(result.shape) != 3:
        return None
    while (node := producer(tensor)) is not None:
        if nodes and sole_use(graph, tensor) is None:
            return None
        nodes.insert(0, node)
        if _is_product(node):
            return _Rowwise(node.inputs[0], tuple(nodes))
        if (source := _source(node)) is None:
            return None
        tensor = source
    return None


def _rowwise_behind(graph: gs.Graph, tensor: gs.Tensor) -> _Rowwise | None:
    """The row-wise nodes that alone read `tensor`."""
    product = sole_use(graph, tensor)
    if product is None or not _is_product(product) or product.inputs[0] is not tensor:
        return None
    nodes = [product]
    while True:
        result = nodes[-1].outputs[0]
        reader = sole_use(graph, result)
        if reader is None or _source(reader) is not result:
            return _Rowwise(tensor, tuple(nodes)) if len(tensor.shape or ()) == 3 else None
        nodes.append(reader)


def _is_product(node: gs.Node) -> bool:
    """True for a MatMul with a constant matrix."""
    if node.op != "MatMul" or node.domain:
        return False
    return isinstance(node.inputs[1], gs.Constant) and len(node.inputs[1].shape) == 2


def _source(node: gs.Node) -> gs.Tensor | None:
    """The tensor to whose rows a node adds a constant vector, or which it multiplies by one."""
    if node.op not in ("Add", "Mul") or node.domain:
        return None
    others = [tensor for tensor in node.inputs if not _is_vector(tensor)]
    return others[0] if len(others) == 1 else None


def _is_vector(tensor: gs.Tensor) -> bool:
    return isinstance(tensor, gs.Constant) and len(tensor.shape) <= 1


# --- moving ---------------------------------------------------------------------------------------


def _move_in_front(graph: gs.Graph, block: _Block, indices: _Indices) -> None:
    moved = block.before
    image = moved.flat[0] if block.axes == 1 and moved.flat else moved.image
    for each in block.projections:
        result = each.result
        _let_read(graph, each, image)
        stored = _renamed(graph, result, image, moved.windows)
        each.nodes[-1].outputs = [stored]
        rows = _Rearranging(graph, result, moved, each.nodes[-1])
        if block.axes == 2:
            stored = rows.reshaped(stored, [moved.windows.pixels, result.shape[-1]])
        windows = rows.gathered(stored, indices.get(moved.windows, back=False))
        rows.reshaped(windows, [moved.windows.positions, result.shape[-1]], result)
    _remove_unread(graph, [*(moved.flat[1:] if moved.flat else ()), *moved.nodes])


def _move_behind(graph: gs.Graph, block: _Block, indices: _Indices) -> None:
    moved, each, attended = block.after, block.projection, block.attended
    flat = block.axes == 1 and moved.flat is not None
    image = moved.flat[0] if flat and moved.flat else moved.image
    rows = _Rearranging(graph, attended, moved, producer(attended))
    width = attended.shape[-1]
    pixels = rows.reshaped(attended, [moved.windows.pixels, width])
    stored = _renamed(graph, attended, image, moved.windows)
    if block.axes == 1:
        rows.gathered(pixels, indices.get(moved.windows, back=True), stored)
    else:
        united = rows.gathered(pixels, indices.get(moved.windows, back=True))
        rows.reshaped(united, [moved.windows.height, moved.windows.width, width], stored)
    remove(graph, [*moved.nodes, *(moved.flat[1:] if flat and moved.flat else ())])
    _let_read(graph, each, stored)
    each.nodes[-1].outputs = [image]


def _let_read(graph: gs.Graph, rowwise: _Rowwise, image: gs.Tensor) -> None:
    """Let row-wise nodes read an image instead of its windows. Results between them have other
    values, and so other names."""
    old, new = rowwise.source, image
    for node in rowwise.nodes:
        node.inputs[next(i for i, tensor in enumerate(node.inputs) if tensor is old)] = new
        old = node.outputs[0]
        if node is not rowwise.nodes[-1]:
            new = _like(graph, old, image)
            node.outputs = [new]


def _like(graph: gs.Graph, windows: gs.Tensor, image: gs.Tensor) -> gs.Variable:
    """A new tensor for the image whose windows a tensor has."""
    shape = [*image.shape[:-1], windows.shape[-1]]
    return gs.Variable(fresh(graph, f"{windows.name}_image"), windows.dtype, shape)


def _renamed(graph: gs.Graph, windows: gs.Tensor, image: gs.Tensor, order: Windows) -> gs.Variable:
    """`_like`, which holds the same tensors of the source in another order of rows."""
    stored = _like(graph, windows, image)
    if hasattr(windows, "joined"):
        stored.joined = windows.joined
    else:
        (stored.original,) = held_by(windows)
    stored.windows = order
    return stored


class _Rearranging:
    """Appends nodes that rearrange the windows `about` of images, in the place of those that did
    so before."""

    def __init__(
        self, graph: gs.Graph, about: gs.Tensor, moved: Moved, behind: gs.Node | None
    ) -> None:
        self._graph, self._about, self._moved, self._behind = graph, about, moved, behind

    def reshaped(
        self, x: gs.Tensor, size: Sequence[int], y: gs.Variable | None = None
    ) -> gs.Variable:
        """x as images of `size`, or as the tensor `y`."""
        target = add_constant(self._graph, f"{self._about.name}_size", np.array([-1, *size]))
        return self._add("Reshape", [x, target], [self._moved.image.shape[0], *size], y)

    def gathered(
        self, x: gs.Tensor, rows: gs.Constant, y: gs.Variable | None = None
    ) -> gs.Variable:
        """Rows of x [batch, rows, channels]."""
        return self._add("Gather", [x, rows], [x.shape[0], *rows.shape, x.shape[-1]], y, axis=1)

    def _add(
        self,
        op: str,
        inputs: list[gs.Tensor],
        shape: list[int | str],
        y: gs.Variable | None,
        **attributes: int,
    ) -> gs.Variable:
        name = fresh(self._graph, f"{self._about.name}_rows") if y is None else ""
        y = gs.Variable(name, self._about.dtype, shape) if y is None else y
        index = next(i for i, node in enumerate(self._graph.nodes) if node is self._behind)
        following = self._graph.nodes[index + 1] if index + 1 < len(self._graph.nodes) else None
        sources = self._moved.nodes if op == "Gather" else ()
        node: Node = insert(self._graph, op, inputs, [y], sources, attributes, at=following)
        self._behind = node
        return y


def _remove_unread(graph: gs.Graph, nodes: Sequence[gs.Node]) -> None:
    """Remove those of `nodes`, in the graph's order, whose results nobody reads any more."""
    for node in reversed(nodes):
        if node.outputs and not any(t.outputs or pinned(graph, t) for t in node.outputs):
            remove(graph, [node])
