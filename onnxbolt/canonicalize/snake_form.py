"""Recognizes Snake (Ziyin et al. 2020) and writes it as one node of the domain `onnxbolt.internal`:

    x + c sin(a x)^2    with constants a and c, which have a value for each channel

Vocoders have it behind each convolution. By itself, a sine of rounded angles has no digits left
where these are large; here, what x was rounded by is in the sum as well, so that all of it may be
in 16 bits. `restore` writes out again the ones that were not fused.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize.recognition import replace
from onnxbolt.dtypes import DType
from onnxbolt.graph.edit import Node, add_constant, add_variable, producer, scalar
from onnxbolt.graph.names import fresh

OP = "Snake"
# |c a| of a Snake is 1, of one with a second parameter near it: the slope is 1 + |c a| at most
_MOST_GROWTH = 16.0
_MOST_FREQUENCY = 64.0  # with this a, the product a x overflows fp16 where |x| exceeds 1,023


def run(graph: gs.Graph) -> int:
    """Recognize all of them; returns how many."""
    pinned = {tensor.name for tensor in graph.outputs} | set(graph.captured)
    count = 0
    for node in list(graph.nodes):
        found = _recognized(node, pinned) if _is(node, "Add") else None
        if found is not None:
            inputs, nodes = found
            replace(graph, node, OP, inputs, [node, *nodes])
            count += 1
    return count


def written(
    graph: gs.Graph, node: gs.Node, inputs: Sequence[gs.Tensor], y: gs.Tensor
) -> list[Node]:
    """Operators that compute the recognized `node` of x, a and c as they are now: in their type, or
    in fp32 where ONNX has no sine of that type."""
    made = list[Node]()

    def add(op: str, *inputs: gs.Tensor, **attrs: int) -> gs.Tensor:
        result = add_variable(graph, f"{node.name}/{op}", y)
        result.dtype = inputs[0].dtype
        made.append(
            Node(op, fresh(graph, result.name), attrs, [*inputs], [result], "", node.provenance)
        )
        return result

    x, frequency, factor = inputs
    dtype = x.dtype
    if DType.of(dtype) is DType.BF16:
        x = add("Cast", x, to=DType.F32.onnx)
        x.dtype = DType.F32.numpy
        frequency, factor = (
            add_constant(graph, f"{c.name}/f32", c.values.astype(DType.F32.numpy))
            for c in (frequency, factor)
        )
    sine = add("Sin", add("Mul", x, frequency))
    result = add("Add", x, add("Mul", add("Mul", sine, sine), factor))
    if DType.of(dtype) is DType.BF16:
        add("Cast", result, to=DType.BF16.onnx)
    made[-1].outputs = [y]
    return made


def _recognized(node: gs.Node, pinned: set[str]) -> tuple[list[gs.Tensor], list[gs.Node]] | None:
    """x, a and c, and the nodes in front of the sum `node`; None for another sum."""
    for x, term in (node.inputs, node.inputs[::-1]):
        if node.outputs[0].shape != x.shape:  # the constants have more channels than x
            continue
        found = _term(x, term, pinned)
        if found is not None and DType.of(x.dtype) is not None and isinstance(x, gs.Variable):
            return found
    return None


def _term(
    x: gs.Tensor, term: gs.Tensor, pinned: set[str]
) -> tuple[list[gs.Tensor], list[gs.Node]] | None:
    scaled = _inner(term, "Mul", pinned)
    if scaled is None:
        return None
    factor, squared = _constant_first(scaled)
    square = _inner(squared, "Pow", pinned) or _inner(squared, "Mul", pinned)
    if square is None or not _is_square(square):
        return None
    sine = _inner(square.inputs[0], "Sin", pinned, readers=square.inputs.count(square.inputs[0]))
    angle = None if sine is None else _inner(sine.inputs[0], "Mul", pinned)
    if sine is None or angle is None:
        return None
    frequency, argument = _constant_first(angle)
    if argument is not x or not _are_vectors(frequency, factor, x):
        return None
    return [x, frequency, factor], [angle, sine, square, scaled]


def _is(node: gs.Node, op: str) -> bool:
    return bool(node.op == op and not node.domain)


def _inner(tensor: gs.Tensor, op: str, pinned: set[str], readers: int = 1) -> gs.Node | None:
    """The node of ONNX's operator `op` that computes `tensor` for `readers` inputs alone."""
    node = producer(tensor)
    alone = len(tensor.outputs) == readers and tensor.name not in pinned
    return node if node is not None and _is(node, op) and alone else None


def _constant_first(node: gs.Node) -> tuple[gs.Tensor, gs.Tensor]:
    a, b = node.inputs
    return (a, b) if isinstance(a, gs.Constant) else (b, a)


def _is_square(node: gs.Node) -> bool:
    a, b = node.inputs
    return a is b if node.op == "Mul" else scalar(b) == 2


def _are_vectors(frequency: gs.Tensor, factor: gs.Tensor, x: gs.Tensor) -> bool:
    """True for two constants with a value for each channel, or one, of moderate size and slope."""
    for constant in (frequency, factor):
        if not isinstance(constant, gs.Constant) or x.shape is None:
            return False
        shape = tuple(constant.shape)
        if len(shape) > len(x.shape) or max(shape, default=1) != np.prod(shape):
            return False
    if max(frequency.shape, default=1) != max(factor.shape, default=1):
        return False
    with np.errstate(over="ignore"):
        growth = np.abs(frequency.values.reshape(-1) * factor.values.reshape(-1))
    steep = np.any(growth > _MOST_GROWTH) or np.any(np.abs(frequency.values) > _MOST_FREQUENCY)
    return not steep
