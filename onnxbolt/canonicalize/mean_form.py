"""ReduceMean over height and width that drops them  =  GlobalAveragePool, Flatten: PyTorch's
x.mean([2, 3]) and Keras' pooling.

GlobalAveragePool has a kernel for NHWC, and Flatten needs none. A convolution's kernel can also
compute the pooling (plan/global_average.py).
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import add_variable, insert, is_float, reduced_axes, remove


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
        pooled.shape = [*x.shape[:2], 1, 1]
        pooled.original = getattr(y, "original", y.name)  # the same values: a kernel may end here
        node.outputs.clear()
        insert(graph, "GlobalAveragePool", [x], [pooled], [node], at=node)
        insert(graph, "Flatten", [pooled], [y], [node], {"axis": 1}, at=node)
        remove(graph, [node])
    return len(means)


def _drops_image(node: gs.Node) -> bool:
    x, axes = node.inputs[0], reduced_axes(node)
    images = x.shape is not None and len(x.shape) == 4 and is_float(x)
    return (
        images
        and not node.attrs.get("keepdims", 1)
        and sorted(axis % 4 for axis in axes or ()) == [2, 3]
    )
