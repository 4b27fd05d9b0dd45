"""The symbolic size in one element of a tensor, where a model computes sizes from shapes."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import constant_values, producer
from onnxbolt.graph.sizes import Size

_MOST_STEPS = 20  # between a shape and the element; exporters take about eight


def size_at(tensor: gs.Tensor, index: int, steps: int = _MOST_STEPS) -> Size:
    """The size in element `index` of `tensor`, a list of sizes or one of them; None if it is
    unknown."""
    values = constant_values(tensor)
    if values is not None:
        flat = values.reshape(-1)
        return int(flat[index]) if index < flat.size and float(flat[index]).is_integer() else None
    node = producer(tensor)
    if node is None or node.domain or not steps:
        return None
    if node.op in ("Cast", "Identity", "Squeeze", "Unsqueeze", "Reshape"):
        return size_at(node.inputs[0], index, steps - 1)
    if node.op == "Shape":
        shape = node.inputs[0].shape
        part = (shape or [])[node.attrs.get("start", 0) : node.attrs.get("end")]
        return part[index] if index < len(part) else None
    if node.op == "Concat":
        return _joined(node, index, steps)
    if node.op in ("Gather", "Slice"):
        source = _gathered(node, index) if node.op == "Gather" else _sliced(node, index)
        return None if source is None else size_at(node.inputs[0], source, steps - 1)
    return None


def _joined(node: gs.Node, index: int, steps: int) -> Size:
    for part in node.inputs:
        if part.shape is None or len(part.shape) != 1 or not isinstance(part.shape[0], int):
            return None
        if index < part.shape[0]:
            return size_at(part, index, steps - 1)
        index -= part.shape[0]
    return None


def _gathered(node: gs.Node, index: int) -> int | None:
    """The element of a list that element `index` of a Gather is."""
    indices = constant_values(node.inputs[1])
    length = _length(node.inputs[0])
    if indices is None or length is None or index >= indices.size:
        return None
    return int(indices.reshape(-1)[index]) % length


def _sliced(node: gs.Node, index: int) -> int | None:
    """The element of a list that element `index` of a Slice with a step of 1 is."""
    length = _length(node.inputs[0])
    found = [constant_values(bound) for bound in node.inputs[1:]]
    if length is None or len(found) < 2 or any(v is None or v.size != 1 for v in found):
        return None
    start, end, *others = (int(v.reshape(-1)[0]) for v in found if v is not None)
    begin, behind, _ = slice(start, end).indices(length)
    return begin + index if others in ([], [0], [0, 1]) and begin + index < behind else None


def _length(tensor: gs.Tensor) -> int | None:
    """The number of elements of a list."""
    shape = tensor.shape
    return shape[0] if shape is not None and len(shape) == 1 and isinstance(shape[0], int) else None
