"""Take a node that computes nothing out of a graph."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.graph.bodies import bodies_in
from onnxbolt.graph.edit import pinned, producer, remove, replace_uses


def bypass(graph: gs.Graph, node: gs.Node, source: gs.Tensor) -> bool:
    """Remove a node whose only result has the values of `source`; returns whether it is gone.

    The readers of the result read `source` instead. Where the result must keep its name (a graph
    output), the node that computes `source` writes the result itself, if the name of `source` may
    go; else the node stays. Results of control flow keep their names, by which its bodies are found
    again.
    """
    result, maker = node.outputs[0], producer(source)
    if not pinned(graph, result):
        replace_uses(result, source)
        remove(graph, [node])
        return True
    if maker is None or pinned(graph, source) or any(bodies_in(maker)):
        return False
    remove(graph, [node])
    replace_uses(source, result)
    maker.outputs[next(i for i, tensor in enumerate(maker.outputs) if tensor is source)] = result
    return True
