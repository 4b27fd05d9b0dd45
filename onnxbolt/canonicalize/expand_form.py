"""Removes an Expand before an operator that broadcasts anyway: `x * gate.expand_as(x)` = x * gate,
a form in which squeeze-and-excitation and channel attention are often written.

The gate then stays a few values per channel instead of a tensor of the image's size.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import pinned, remove

_BROADCASTING = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Where"})


def run(graph: gs.Graph) -> int:
    """Make readers that do not need the Expand read its input; returns how many."""
    return sum(
        _pass_by(graph, node)
        for node in list(graph.nodes)
        if node.op == "Expand" and not node.domain
    )


def _pass_by(graph: gs.Graph, expand: gs.Node) -> int:
    x, y = expand.inputs[0], expand.outputs[0]
    count = 0
    for reader in dict.fromkeys(y.outputs):
        if (
            not reader.domain
            and reader.op in _BROADCASTING
            and any(_as_large(other, y) for other in reader.inputs if other is not y)
        ):
            reader.inputs = [x if tensor is y else tensor for tensor in reader.inputs]
            count += 1
    if count and not y.outputs and not pinned(graph, y):
        remove(graph, [expand])
    return count


def _as_large(other: gs.Tensor, y: gs.Tensor) -> bool:
    """True if `other` alone gives the result y's shape."""
    known = y.shape is not None and other.shape is not None and None not in y.shape
    return known and list(other.shape) == list(y.shape)
