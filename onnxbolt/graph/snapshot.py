"""The nodes of a graph as they are at some time, so that changes can be taken back."""

from __future__ import annotations

import onnx_graphsurgeon as gs


class Snapshot:
    """A graph's nodes with their inputs and outputs. Attributes and types of nodes and tensors are
    not part of it."""

    def __init__(self, graph: gs.Graph) -> None:
        self._nodes = [
            (node, list(node.inputs), list(node.outputs), node.origin) for node in graph.nodes
        ]
        self._names = set(getattr(graph, "taken_names", ()))

    def restore(self, graph: gs.Graph) -> None:
        """Give the graph the nodes that it had, in their order, and free the names given out
        since."""
        for node in graph.nodes:
            node.inputs.clear()
            node.outputs.clear()
        for node, inputs, outputs, origin in self._nodes:
            node.inputs, node.outputs, node.origin = inputs, outputs, origin
        graph.nodes = [node for node, *_ in self._nodes]
        if self._names:
            graph.taken_names = set(self._names)
