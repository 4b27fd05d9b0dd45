"""The symbolic size in one element of a tensor, where a model computes sizes from shapes."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import constant_integers, constant_values, producer
from onnxbolt.graph.sizes import Size

_MOST_STEPS = 20  # between a shape and the element; exporters take about eight
_MOST = 64  # elements of a list of sizes


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
    if node.op == "ConstantOfShape":
        value = node.attrs.get("value")
        return 0 if value is None else int(value.reshape(-1)[0])
    if node.op == "Concat":
        return _joined(node, index, steps)
    if node.op in _SOURCES:
        source = _SOURCES[node.op](node, index)
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
    """The element of a tensor that element `index` of a Slice of its first axis is."""
    places, bounds = _places(node.inputs[0]), [constant_integers(node, i) for i in range(1, 5)]
    given = bounds[: len(node.inputs) - 1]
    if places is None or len(given) < 2 or any(b is None or len(b) != 1 for b in given):
        return None
    start, end, *others = (bound[0] for bound in given if bound is not None)
    axis, step = (*others, *(0, 1)[len(others) :])
    behind = None if step < 0 and end < -len(places) else end  # to the first element
    found = places[start:behind:step].reshape(-1)
    return int(found[index]) if axis == 0 and index < found.size else None


def _transposed(node: gs.Node, index: int) -> int | None:
    """The element of a tensor that element `index` of its Transpose is."""
    places = _places(node.inputs[0])
    found = None if places is None else places.transpose(node.attrs.get("perm")).reshape(-1)
    return int(found[index]) if found is not None and index < found.size else None


_SOURCES = {"Gather": _gathered, "Slice": _sliced, "Transpose": _transposed}


def _places(tensor: gs.Tensor) -> np.ndarray | None:
    """The number of each element of a tensor of known, small sizes."""
    shape = tensor.shape
    if not shape or not all(isinstance(size, int) for size in shape):
        return None
    count = int(np.prod(shape))
    return np.arange(count).reshape(shape) if count <= _MOST else None


def _length(tensor: gs.Tensor) -> int | None:
    """The number of elements of a list."""
    shape = tensor.shape
    return shape[0] if shape is not None and len(shape) == 1 and isinstance(shape[0], int) else None
