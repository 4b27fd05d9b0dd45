"""Move a Transpose from NHWC to NCHW behind what follows a matrix product:

    T(x W) * c  =  T(x W * c'),   T(x W) + c  =  T(x W + c'),   T(x W) + r  =  T(x W + T'(r))

with c' the constant and T'(r) the tensor in NHWC; T'(T(x)) = x. The block of ConvNeXt (Liu et al.
2022) ends with such a Transpose, a factor for each channel in front of it or behind, and the
residual. In front of the Transpose they are steps of the product's epilogue. The Transposes vanish
if the tensors are stored as NHWC; that is so between convolutions, so a residual is moved only
where a convolution, a mean over the image or a Transpose back to NHWC reads the sum.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.forms import FIRST_TO_LAST, LAST_TO_FIRST
from onnxbolt.graph.edit import (
    add_constant,
    constant_values,
    insert,
    is_float,
    is_mean,
    pinned,
    producer,
    remove,
    replace_uses,
    sole_use,
    stand_in,
)
from onnxbolt.graph.names import fresh

_RANK = 4
_TO_FIRST, _TO_LAST = list(LAST_TO_FIRST[_RANK]), list(FIRST_TO_LAST[_RANK])
_COMMUTATIVE = ("Add", "Mul")


def run(graph: gs.Graph) -> int:
    """Move Transposes as far as they go; returns how many nodes they passed or took away."""
    moved = 0
    for node in list(graph.nodes):
        while (other := _movable(graph, node)) is not None:
            node = _swap(graph, node, *other)
            moved += 1
        moved += _cancel(graph, node)
    return moved


def _movable(graph: gs.Graph, transpose: gs.Node) -> tuple[gs.Node, gs.Tensor] | None:
    """The only reader of a Transpose to NCHW and its other operand, if the Transpose may move
    behind that reader."""
    if not _turns(transpose, _TO_FIRST) or not _is_product(transpose.inputs[0]):
        return None
    y = transpose.outputs[0]
    reader = sole_use(graph, y)
    if reader is None or reader.domain or reader.op not in _COMMUTATIVE:
        return None
    others = [tensor for tensor in reader.inputs if tensor is not y]
    result = reader.outputs[0]
    if len(others) != 1 or y.shape is None or result.shape is None or None in y.shape:
        return None
    (other,) = others
    if list(result.shape) != list(y.shape):
        return None
    if isinstance(other, gs.Constant):
        return (reader, other) if _is_per_channel(other) else None
    same = other.shape is not None and list(other.shape) == list(y.shape)
    residual = reader.op == "Add" and same and any(map(_reads_images, result.outputs))
    return (reader, other) if residual else None


def _turns(node: gs.Node, order: list[int]) -> bool:
    return node.op == "Transpose" and not node.domain and list(node.attrs.get("perm", ())) == order


def _is_product(tensor: gs.Tensor) -> bool:
    """True for the result of a product with a constant matrix, and of constant factors and summands
    behind it."""
    node = producer(tensor)
    while node is not None and not node.domain and node.op in _COMMUTATIVE:
        rest = [operand for operand in node.inputs if not isinstance(operand, gs.Constant)]
        node = producer(rest[0]) if len(rest) == 1 else None
    return (
        node is not None
        and node.op == "MatMul"
        and not node.domain
        and isinstance(node.inputs[1], gs.Constant)
    )


def _is_per_channel(constant: gs.Constant) -> bool:
    """True if a constant varies along the channels of NCHW alone."""
    shape = (1,) * (_RANK - len(constant.shape)) + tuple(constant.shape)
    values = constant_values(constant) if is_float(constant) else None
    return values is not None and len(shape) == _RANK and shape == (1, shape[1], 1, 1)


def _reads_images(node: gs.Node) -> bool:
    """True for readers that have images as NHWC, or will have them so."""
    return not node.domain and (node.op == "Conv" or is_mean(node) or _turns(node, _TO_LAST))


def _swap(graph: gs.Graph, transpose: gs.Node, reader: gs.Node, other: gs.Tensor) -> gs.Node:
    """The Transpose behind `reader`, whose result keeps its name."""
    x, y, result = transpose.inputs[0], transpose.outputs[0], reader.outputs[0]
    shape = [result.shape[axis] for axis in _TO_LAST]
    inner = gs.Variable(fresh(graph, f"{result.name}_nhwc"), result.dtype, shape)
    stand_in(inner, result, channels_last=True)
    turned = _turned(graph, other, reader)
    inputs = [x if tensor is y else turned for tensor in reader.inputs]
    insert(graph, reader.op, inputs, [inner], [reader], reader.attrs, at=reader)
    behind = insert(
        graph, "Transpose", [inner], [result], [transpose], {"perm": _TO_FIRST}, at=reader
    )
    remove(graph, [transpose, reader])
    return behind


def _cancel(graph: gs.Graph, transpose: gs.Node) -> int:
    """Let the readers of a Transpose back to NHWC read what a Transpose to NCHW reads; returns how
    many such Transposes there were."""
    if not _turns(transpose, _TO_FIRST):
        return 0
    back = [
        node
        for node in transpose.outputs[0].outputs
        if _turns(node, _TO_LAST) and not pinned(graph, node.outputs[0])
    ]
    for node in back:
        replace_uses(node.outputs[0], transpose.inputs[0])
    remove(graph, back)
    return len(back)


def _turned(graph: gs.Graph, tensor: gs.Tensor, at: gs.Node) -> gs.Tensor:
    """A constant or a tensor in NHWC."""
    if isinstance(tensor, gs.Constant):
        values = constant_values(tensor)
        assert values is not None  # _is_per_channel has looked
        return add_constant(graph, f"{tensor.name}_nhwc", np.ascontiguousarray(values.reshape(-1)))
    shape = [tensor.shape[axis] for axis in _TO_LAST]
    turned = gs.Variable(fresh(graph, f"{tensor.name}_nhwc"), tensor.dtype, shape)
    stand_in(turned, tensor, channels_last=True)
    insert(graph, "Transpose", [tensor], [turned], [], {"perm": _TO_LAST}, at=at)
    return turned
