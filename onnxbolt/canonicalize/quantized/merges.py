"""Remove QuantizeLinear and DequantizeLinear that repeat others:

    Q(DQ(q)) = q,   Q(x) and Q(x) = one Q(x),   DQ(q) and DQ(q) = one DQ(q)

for equal scales, zero points and types. The first holds where values of codes have the same codes
again, which `Scaling.returns` says.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.canonicalize.quantized.scaling import is_dequantize, is_quantize, scaling_of
from onnxbolt.graph.edit import disconnect, pinned, producer, remove, replace_uses


def run(graph: gs.Graph) -> int:
    """Remove all such nodes; returns how many."""
    returned = [node for node in graph.nodes if is_quantize(node) and _returns(graph, node)]
    remove(graph, returned)
    return len(returned) + _merge(graph)


def _returns(graph: gs.Graph, quantize: gs.Node) -> bool:
    before, result = producer(quantize.inputs[0]), quantize.outputs[0]
    if before is None or not is_dequantize(before) or pinned(graph, result):
        return False
    down, up = scaling_of(before), scaling_of(quantize)
    if down is None or up is None or not down.same(up) or not down.returns:
        return False
    replace_uses(result, before.inputs[0])
    disconnect(quantize)
    return True


def _merge(graph: gs.Graph) -> int:
    """Let all readers of equal nodes read the first one; results that have to keep their names
    stay."""
    merged = list[gs.Node]()
    for node in graph.nodes:
        if not node.outputs or not _is_pair(node):
            continue  # merged meanwhile, or another operator
        twins = [other for other in dict.fromkeys(node.inputs[0].outputs) if _twins(node, other)]
        twins = [other for other in twins if not pinned(graph, other.outputs[0])]
        for other in twins:
            replace_uses(other.outputs[0], node.outputs[0])
            disconnect(other)
        merged += twins
    remove(graph, merged)
    return len(merged)


def _twins(node: gs.Node, other: gs.Node) -> bool:
    """True if `other` computes the same as `node`."""
    if other is node or not _is_pair(other) or other.op != node.op:
        return False
    if other.inputs[0] is not node.inputs[0]:
        return False
    one, two = scaling_of(node), scaling_of(other)
    return one is not None and two is not None and one.same(two)


def _is_pair(node: gs.Node) -> bool:
    return is_quantize(node) or is_dequantize(node)
