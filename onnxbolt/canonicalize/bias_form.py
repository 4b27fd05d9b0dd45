"""BiasGelu(x, b) = Gelu(x + b), and FastGelu(x, b) = FastGelu(x + b): ONNX Runtime's own operators
with their bias apart, which is then a product's like any other."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.domains import CONTRIB
from onnxbolt.graph.edit import add_variable, insert

_WITHOUT = {"BiasGelu": "Gelu", "FastGelu": "FastGelu"}


def run(graph: gs.Graph) -> int:
    """Split all that have a constant bias; returns how many."""
    biased = [
        node
        for node in graph.nodes
        if node.domain == CONTRIB and node.op in _WITHOUT and _has_constant_bias(node)
    ]
    for node in biased:
        x, bias = node.inputs[:2]
        total = add_variable(graph, f"{node.outputs[0].name}_biased", x)
        insert(graph, "Add", [x, bias], [total], [node], at=node)
        node.op, node.inputs, node.origin = _WITHOUT[node.op], [total], None
    return len(biased)


def _has_constant_bias(node: gs.Node) -> bool:
    return len(node.inputs) > 1 and isinstance(node.inputs[1], gs.Constant)
