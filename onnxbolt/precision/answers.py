"""Finds the arithmetic that makes a model's answers of what its last products found.

A detector's products find how far a box lies from its place in a grid, and scores. What follows
adds the place, whose 11 bits in fp16 are a coarse measure for a small box (1/2 pixel between 512
and 1024), and makes the scores probabilities, of which fp16 has two between 0.999 and 1: where
overlapping boxes are suppressed, another one is then left. Boxes of several classes that are moved
apart for this, as torchvision does it, exceed fp16's range. No later product averages such errors
out, and the tensors are small.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import onnx_graphsurgeon as gs
from onnx import GraphProto

from onnxbolt.domains import INTERNAL
from onnxbolt.epilogues import EPILOGUES, steps_of
from onnxbolt.graph.bodies import bodies_in
from onnxbolt.graph.edit import MOVEMENT
from onnxbolt.graph.order import in_order
from onnxbolt.graph.scopes import outer_reads, subgraphs
from onnxbolt.precision.ops import ANCHORS

REASON = "makes answers, such as positions and scores, behind the last product"

_ROUNDS = frozenset(
    {"Add", "Div", "LogSoftmax", "Mul", "Sigmoid", "Softmax", "Sqrt", "Sub", "Sum", "Tanh"}
)
# they round nothing, and stay in fp32 where they read what does
_EXACT = MOVEMENT | {
    "Abs",
    "ArgMax",
    "ArgMin",
    "Cast",
    "Clip",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Max",
    "Min",
    "Neg",
    "ReduceMax",
    "ReduceMin",
    "Relu",
    "TopK",
}
# each of their results depends on many values, whose rounding errors average out
_AVERAGES = ANCHORS | {
    "Attention",
    "AveragePool",
    "DeformConv",
    "GRU",
    "GlobalAveragePool",
    "GridSample",
    "GroupNormalization",
    "InstanceNormalization",
    "LSTM",
    "LayerNormalization",
    "LpNormalization",
    "MultiHeadAttention",
    "RMSNormalization",
    "RNN",
    "ReduceMean",
    "ReduceSum",
    "Resize",
    "RoiAlign",
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization",
}
# inputs by position that are boxes and their scores
_BOXES = {"NonMaxSuppression": (0, 1), "RoiAlign": (1,)}


def answering(graph: gs.Graph) -> set[gs.Node]:
    """The nodes that have to stay in fp32. Steps of a product's epilogue are not among them, since
    kernels compute these in fp32, nor is the arithmetic of images, which are large, and whose
    pixels are compared one by one."""
    found, fusible, behind = set[gs.Node](), set[str](), set[str]()
    last, boxes = _last(graph), _making_boxes(graph)
    for node in in_order(graph):
        names = {t.name for t in node.outputs}
        after = any(t.name in behind for t in node.inputs)
        if node.op in ANCHORS or (_continues(node, fusible) and not _reads_grid(node)):
            fusible |= names
        elif not node.domain and (node in boxes or (after and node in last)):
            alone = node.op in _ROUNDS and (not _is_of_images(node) or _reads_grid(node))
            if alone or (node.op in _ROUNDS | _EXACT and _follows(node, found)):
                found.add(node)
        if after or node.op in ANCHORS:
            behind |= names
    return found


def _last(graph: gs.Graph) -> set[gs.Node]:
    """The nodes whose results reach no product, nor anything else that averages, but as boxes."""
    bodies = _readers_in_bodies(graph)
    last = set[gs.Node]()
    for node in reversed(in_order(graph)):
        uses = all(
            user in last or _takes_boxes(user, tensor)
            for tensor in node.outputs
            for user in tensor.outputs
        )
        inside = all(user in last for tensor in node.outputs for user in bodies[tensor.name])
        if uses and inside and not _averages(node):
            last.add(node)
    return last


def _making_boxes(graph: gs.Graph) -> set[gs.Node]:
    """The nodes from which boxes are made without anything that averages."""
    found = set[gs.Node]()
    for node in reversed(in_order(graph)):
        uses = ((user, tensor) for tensor in node.outputs for user in tensor.outputs)
        made = any(user in found or _takes_boxes(user, tensor) for user, tensor in uses)
        if made and not _averages(node):
            found.add(node)
    return found


def _takes_boxes(user: gs.Node, tensor: gs.Tensor) -> bool:
    places = [i for i, read in enumerate(user.inputs) if read is tensor]
    return all(i in _BOXES.get(user.op, ()) for i in places)


def _readers_in_bodies(graph: gs.Graph) -> dict[str, list[gs.Node]]:
    """The nodes of control flow whose bodies read a tensor, by its name."""
    readers = defaultdict[str, list[gs.Node]](list)
    for node in graph.nodes:
        for inner in _graphs_in(node):
            for name in outer_reads(inner):
                readers[name].append(node)
    return readers


def _averages(node: gs.Node) -> bool:
    return node.op in _AVERAGES or any(
        op in _AVERAGES for inner in _graphs_in(node) for op in _operators(inner)
    )


def _graphs_in(node: gs.Node) -> Iterator[GraphProto]:
    return (graph for body in bodies_in(node) for graph in subgraphs(body))


def _operators(graph: GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield node.op_type
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                yield from _operators(inner)


def _continues(node: gs.Node, fusible: set[str]) -> bool:
    """True if the node may be a step of the epilogue of what it reads."""
    known = node.op in EPILOGUES if node.domain == INTERNAL else bool(steps_of(node.op))
    return known and any(t.name in fusible and len(t.outputs) == 1 for t in node.inputs)


def _follows(node: gs.Node, found: set[gs.Node]) -> bool:
    """True if the node reads a result of those found, or an input of the graph."""
    variables = [t for t in node.inputs if t.name and not isinstance(t, gs.Constant)]
    return any(not t.inputs or t.inputs[0] in found for t in variables)


def _is_of_images(node: gs.Node) -> bool:
    shape = node.outputs[0].shape
    return shape is None or len(shape) == 4


def _reads_grid(node: gs.Node) -> bool:
    """True if the node reads a constant that varies along several axes, as the places of a grid do;
    shifts and scales of channels vary along one."""
    constants = (t for t in node.inputs if isinstance(t, gs.Constant))
    return any(sum(size > 1 for size in constant.shape) > 1 for constant in constants)
