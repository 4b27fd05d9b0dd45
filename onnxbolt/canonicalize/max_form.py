"""GlobalMaxPool of an image of known sizes  =  MaxPool with a window of that image, for which there
is a kernel (ops/pool)."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import insert, remove


def run(graph: gs.Graph) -> int:
    """Rewrite all such nodes; returns how many."""
    found = [
        node
        for node in graph.nodes
        if node.op == "GlobalMaxPool" and not node.domain and _window(node) is not None
    ]
    for node in found:
        attributes = {"kernel_shape": _window(node)}
        (x,), outputs = node.inputs, list(node.outputs)
        node.outputs.clear()
        insert(graph, "MaxPool", [x], outputs, [node], attributes, at=node)
        remove(graph, [node])
    return len(found)


def _window(node: gs.Node) -> list[int] | None:
    """The sizes of an image; None if they are not known."""
    sizes = list((node.inputs[0].shape or ())[2:])
    return sizes if sizes and all(isinstance(size, int) and size > 0 for size in sizes) else None
