"""Removes an Expand before an operator that broadcasts anyway: `x * gate.expand_as(x)` = x * gate,
a form in which squeeze-and-excitation and channel attention are often written.

    f(Expand(x)) = Expand(f(x)) for an elementwise f with further inputs of one element

The gate then stays a few values per channel instead of a tensor of the image's size, and the mask
of an attention a number per key.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import add_variable, insert, pinned, producer, remove

_BROADCASTING = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Where"})
_ELEMENTWISE = frozenset({"Add", "Cast", "Equal", "Mul", "Neg", "Not", "Sub", "Where"})


def run(graph: gs.Graph) -> int:
    """Make readers that do not need the Expand read its input; returns how many."""
    expands = [node for node in graph.nodes if node.op == "Expand" and not node.domain]
    count = 0
    for expand in expands:  # grows by those that are moved
        count += _pass_by(graph, expand)
        moved = _behind(graph, expand) if expand.outputs else []
        count += len(moved)
        expands += moved
    return count


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


def _behind(graph: gs.Graph, expand: gs.Node) -> list[gs.Node]:
    """Move an Expand behind elementwise readers; returns it at its new places."""
    (y,), moved = expand.outputs, list[gs.Node]()
    for reader in dict.fromkeys(y.outputs):
        before = [_before(tensor, expand) for tensor in reader.inputs]
        elementwise = not reader.domain and reader.op in _ELEMENTWISE
        if elementwise and all(tensor is not None for tensor in before):
            (result,) = reader.outputs
            small = add_variable(graph, f"{result.name}_small", result)
            small.shape = expand.inputs[0].shape
            reader.inputs, reader.outputs = before, [small]
            ends = [small, expand.inputs[1]], [result]
            moved.append(insert(graph, "Expand", *ends, [expand], at=_next(graph, reader)))
    if moved and not y.outputs and not pinned(graph, y):
        remove(graph, [expand])
    return moved


def _before(tensor: gs.Tensor, expand: gs.Node) -> gs.Tensor | None:
    """The tensor that an elementwise node may read in place of `tensor` before `expand`: it has the
    shape of the Expand's input, or one element. None if there is none."""
    shape, maker = list(expand.inputs[0].shape or ()), producer(tensor)
    if maker is not None and maker.op == "Expand" and not maker.domain:
        tensor = maker.inputs[0] if maker.inputs[1] is expand.inputs[1] else tensor
    if tensor.shape is None or not shape:
        return None
    one = all(size == 1 for size in tensor.shape) and len(tensor.shape) <= len(shape)
    return tensor if one or (None not in shape and list(tensor.shape) == shape) else None


def _next(graph: gs.Graph, node: gs.Node) -> gs.Node | None:
    """The node behind `node` in the graph's order."""
    index = next(i for i, other in enumerate(graph.nodes) if other is node)
    return graph.nodes[index + 1] if index + 1 < len(graph.nodes) else None
