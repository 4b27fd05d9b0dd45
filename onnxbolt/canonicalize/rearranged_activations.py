"""Move an activation in front of nodes that only rearrange the result of a product or convolution:

    act(Transpose(Reshape(conv(x))))  =  Transpose(Reshape(act(conv(x))))

There it is a step of the convolution's epilogue. SegFormer's blocks (Xie et al. 2021) and others
with a depthwise convolution between the two products of their MLP turn images into tokens first.
"""

from __future__ import annotations

import itertools
import math

import onnx_graphsurgeon as gs

from onnxbolt.domains import INTERNAL
from onnxbolt.epilogues import CASTS, EPILOGUES, steps_of
from onnxbolt.graph.edit import add_variable, producer, sole_use, stand_alone

_REARRANGES = frozenset({"Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_PRODUCTS = frozenset({"Conv", "MatMul"})
_SUMS = frozenset({"Add", "BatchNormalization"})


def run(graph: gs.Graph) -> int:
    """Move all such activations; returns how many."""
    moved = 0
    for node in list(graph.nodes):
        if _is_activation(node) and (path := _path(graph, node)):
            _move(graph, node, path)
            moved += 1
    return moved


def _is_activation(node: gs.Node) -> bool:
    """True for an epilogue step of one tensor and scalars, recognized or ONNX's own operator."""
    scalars = all(not tensor.name or _is_scalar(tensor) for tensor in node.inputs[1:])
    if node.domain == INTERNAL:
        return scalars and node.op in EPILOGUES
    own = [
        step for step in steps_of(node.op) if not step.operand and step.name not in CASTS.values()
    ]
    return scalars and not node.domain and bool(own)


def _is_scalar(tensor: gs.Tensor) -> bool:
    return isinstance(tensor, gs.Constant) and math.prod(tensor.shape) == 1


def _path(graph: gs.Graph, activation: gs.Node) -> list[gs.Node]:
    """The rearranging nodes between a product's result and an activation of it, in their order;
    empty if there are none or one of their results has another reader."""
    path = list[gs.Node]()
    x = activation.inputs[0]
    while (node := producer(x)) is not None and sole_use(graph, x) is not None:
        if node.op not in _REARRANGES or node.domain or x is not node.outputs[0]:
            break
        path.insert(0, node)
        x = node.inputs[0]
    return path if path and _takes(graph, x, activation) else []


def _takes(graph: gs.Graph, x: gs.Tensor, activation: gs.Node) -> bool:
    """True if x is a product's result, with constants or a residual added, that nothing else reads,
    and the activation's constants do not widen x's shape."""
    if sole_use(graph, x) is None or not x.shape:
        return False
    constants = [tensor for tensor in activation.inputs[1:] if tensor.name]
    if activation.domain == INTERNAL:
        constants += activation.recognition.constants.values()
    rank = max((len(constant.shape) for constant in constants), default=0)
    return rank <= len(x.shape) and _is_product(producer(x))


def _is_product(node: gs.Node | None) -> bool:
    """True for a product with constant weights and for sums of it. A product of two tensors may be
    attention's, whose result nothing may change before it is rearranged."""
    if node is None or node.domain:
        return False
    if node.op in _SUMS:
        return any(_is_product(producer(term)) for term in node.inputs[:2])
    weighted = any(isinstance(operand, gs.Constant) for operand in node.inputs[:2])
    return weighted and node.op in _PRODUCTS


def _move(graph: gs.Graph, activation: gs.Node, path: list[gs.Node]) -> None:
    """The tensors between have other values now, and new names; the last one keeps its own."""
    first, last, y = path[0], path[-1], activation.outputs[0]
    x = first.inputs[0]
    for node, after in itertools.pairwise(path):
        between = add_variable(graph, f"{node.outputs[0].name}_activated", node.outputs[0])
        node.outputs, after.inputs[0] = [between], between
    last.outputs = [y]
    activated = add_variable(graph, f"{x.name}_activated", x)
    stand_alone(activated)
    activation.inputs[0], activation.outputs = x, [activated]
    first.inputs[0] = activated
    nodes = [node for node in graph.nodes if node is not activation]
    nodes.insert(next(i for i, node in enumerate(nodes) if node is first), activation)
    graph.nodes = nodes
