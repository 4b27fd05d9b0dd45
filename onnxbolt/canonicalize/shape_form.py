"""Reads sizes from an image that is stored anyway, instead of from a layer's result.

    Gather(Shape(f(x)), i) = Gather(Shape(x), i)  where f keeps the size of axis i

A value that two nodes read ends an epilogue, even if one of them only reads its shape: that of a
feature pyramid's 1x1 convolution says to which size the coarser image is resized before it is
added. The convolution's own input has the same height and width, and has other readers.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import (
    add_variable,
    constant_values,
    insert,
    pinned,
    producer,
    remove,
    replace_uses,
)

_MOST_STEPS = 8  # layers between a result and the image


def run(graph: gs.Graph) -> int:
    """Move Shapes to other images; returns how many."""
    shapes = [node for node in graph.nodes if node.op == "Shape" and not node.domain]
    return sum(_moved(graph, node) for node in shapes)


def _moved(graph: gs.Graph, node: gs.Node) -> bool:
    (x,), (y,) = node.inputs, node.outputs
    if x.shape is None or len(_readers(x)) != 1 or pinned(graph, x) or pinned(graph, y):
        return False
    image = _image(graph, x, _axes(node, len(x.shape)))
    if image is None:
        return False
    sizes = add_variable(graph, f"{image.name}_shape", y)  # other sizes than y's may differ
    insert(graph, "Shape", [image], [sizes], [node], dict(node.attrs), at=node)
    replace_uses(y, sizes)
    remove(graph, [node])
    return True


def _readers(tensor: gs.Tensor) -> list[gs.Node]:
    """The nodes that read more of a tensor than its shape."""
    return [node for node in tensor.outputs if node.op != "Shape" or node.domain]


def _axes(node: gs.Node, rank: int) -> Sequence[int]:
    """The axes whose sizes the readers of a Shape take: those that Gathers by constants choose,
    else all that it has."""
    part = range(rank)[node.attrs.get("start", 0) : node.attrs.get("end")]
    chosen = set[int]()
    for reader in node.outputs[0].outputs:
        index = constant_values(reader.inputs[1]) if reader.op == "Gather" else None
        if index is None or reader.inputs[0] is not node.outputs[0]:
            return part
        chosen |= {part[int(i)] for i in index.reshape(-1)}
    return sorted(chosen)


def _image(graph: gs.Graph, x: gs.Tensor, axes: Sequence[int]) -> gs.Tensor | None:
    """The nearest tensor in front of x that is a graph input or has several readers, and has the
    same sizes along `axes`."""
    found = x
    for _ in range(_MOST_STEPS):
        node = producer(found)
        if node is None or not node.inputs or not _keeps(node.inputs[0], x, axes):
            return None
        found = node.inputs[0]
        if not found.inputs or len(_readers(found)) > 1 or pinned(graph, found):
            return found
    return None


def _keeps(tensor: gs.Tensor, x: gs.Tensor, axes: Sequence[int]) -> bool:
    """True if a tensor has the sizes of x along `axes`, for all sizes of the model's inputs."""
    shape = tensor.shape
    return (
        isinstance(tensor, gs.Variable)
        and shape is not None
        and len(shape) == len(x.shape)
        and all(x.shape[axis] is not None and shape[axis] == x.shape[axis] for axis in axes)
    )
