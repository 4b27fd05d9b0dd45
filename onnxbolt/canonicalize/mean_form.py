"""ReduceMean over all spatial axes that drops them  =  GlobalAveragePool, Flatten: PyTorch's
x.mean([2, 3]) and Keras' pooling.

GlobalAveragePool has a kernel for channels last, and Flatten needs none. A convolution's kernel can
also compute the pooling (plan/global_average.py). In [N, C, L] the last axis may as well hold the
elements of a token, so that only means of what convolutions made are rewritten there.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.domains import INTERNAL
from onnxbolt.graph.edit import add_variable, insert, is_float, reduced_axes, remove

_CHANNELS_FIRST = frozenset({"AveragePool", "Conv", "ConvTranspose", "MaxPool"})
_MOVING = frozenset({"MatMul", "Reshape", "Transpose"})  # may exchange axes of equal sizes
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
        insert(graph, "Flatten", [pooled], [y], [node], {"axis": 1}, at=node)
        remove(graph, [node])
    return len(means)


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
