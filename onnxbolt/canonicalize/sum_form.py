"""Sum(a, b) = Add(a, b): the residual in models that Caffe2 or MXNet exported. Sums of three or
more stay, because ONNX Runtime computes them in one kernel."""

from __future__ import annotations

import onnx_graphsurgeon as gs


def run(graph: gs.Graph) -> int:
    """Turn Sums of two tensors into Adds; returns how many."""
    sums = [
        node
        for node in graph.nodes
        if node.op == "Sum" and not node.domain and len(node.inputs) == 2
    ]
    for node in sums:
        node.op, node.origin = "Add", None
    return len(sums)
