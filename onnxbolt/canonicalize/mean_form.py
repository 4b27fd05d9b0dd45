"""ReduceMean over all spatial axes that drops them  =  GlobalAveragePool, Flatten: PyTorch's
x.mean([2, 3]) and Keras' pooling.

GlobalAveragePool has a kernel for channels last, and Flatten needs none. A convolution's kernel can
also compute the pooling (plan/global_average.py). In [N, C, L] the last axis may as well hold the
elements of a token, so that only means of what convolutions made are rewritten there.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from onnx import NodeProto

from onnxbolt.domains import INTERNAL
from onnxbolt.graph.edit import (
    add_constant,
    add_variable,
    insert,
    is_float,
    pinned,
    producer,
    reduced_axes,
    remove,
)

_CHANNELS_FIRST = frozenset({"AveragePool", "Conv", "ConvTranspose", "MaxPool"})
_MOVING = frozenset({"MatMul", "Reshape", "Transpose"})  # may exchange axes of equal sizes
_AXES_ARE_INPUT = 18  # opset
_BETWEEN = 8  # the most nodes behind one of these


def run(graph: gs.Graph) -> int:
    """Rewrite all such ReduceMeans; returns how many."""
    means = [
        node
        for node in graph.nodes
        if node.op == "ReduceMean" and not node.domain and _drops_image(node)
    ]
    for node in means:
        x, y = node.inputs[0], node.outputs[0]
        pooled = add_variable(graph, f"{y.name}_pooled", x)
        pooled.shape = [*x.shape[:2], *(1 for _ in x.shape[2:])]
        pooled.original = getattr(y, "original", y.name)  # the same values: a kernel may end here
        node.outputs.clear()
        insert(graph, "GlobalAveragePool", [x], [pooled], [node], at=node)
        flatten = insert(graph, "Flatten", [pooled], [y], [node], {"axis": 1}, at=node)
        flatten.expansion = (NodeProto(op_type=node.op),)
        remove(graph, [node])
    return len(means)


def restore(graph: gs.Graph) -> int:
    """Write those that no kernel took as the ReduceMeans that they were, since cuDNN's poolings
    of large windows may take far longer; returns how many."""
    restored = 0
    flattened: list[gs.Node] = [node for node in graph.nodes if node.op == "Flatten"]
    for flatten in flattened:
        pooling = producer(flatten.inputs[0]) if _was_mean(flatten) else None
        if pooling is None or pooling.domain or pooling.op != "GlobalAveragePool":
            continue
        if len(pooling.outputs[0].outputs) != 1 or pinned(graph, pooling.outputs[0]):
            continue
        x, outputs = pooling.inputs[0], list(flatten.outputs)
        axes = np.arange(2, len(x.shape))
        inputs: list[gs.Tensor] = [x]
        attributes: dict[str, object] = {"keepdims": 0, "axes": axes.tolist()}
        if graph.opset >= _AXES_ARE_INPUT:
            inputs.append(add_constant(graph, f"{flatten.name}.axes", axes))
            del attributes["axes"]
        flatten.outputs.clear()
        insert(graph, "ReduceMean", inputs, outputs, [flatten], attributes, at=flatten)
        remove(graph, [pooling, flatten])
        restored += 1
    return restored


def _was_mean(flatten: gs.Node) -> bool:
    return not flatten.domain and any(
        proto.op_type == "ReduceMean" for proto in getattr(flatten, "expansion", ())
    )


def _drops_image(node: gs.Node) -> bool:
    x, axes = node.inputs[0], reduced_axes(node)
    rank = len(x.shape or ())
    return (
        rank in (3, 4, 5)
        and is_float(x)
        and not node.attrs.get("keepdims", 1)
        and sorted(axis % rank for axis in axes or ()) == list(range(2, rank))
        and (rank > 3 or _convolved(x))
    )


def _convolved(x: gs.Tensor) -> bool:
    """True if a convolution or pooling made x, with nodes behind it that keep its shape."""
    shape = x.shape
    for _ in range(_BETWEEN):
        maker = x.inputs[0] if x.inputs else None
        if maker is None or maker.domain not in (None, "", INTERNAL):
            return False
        if maker.op in _CHANNELS_FIRST:
            return True
        if maker.op in _MOVING:
            return False
        same = [each for each in maker.inputs if each.inputs and each.shape == shape]
        if not same:
            return False
        x = same[0]
    return False
