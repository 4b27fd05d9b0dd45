"""Normalizations of rows that exporters decompose, written as one node of the domain
`onnxbolt.internal`:

    LayerNormalization: d = x - mean(x), y = d / sqrt(mean(d * d) + epsilon) * gamma + beta
    RMSNormalization:   y = x / sqrt(mean(x * x) + epsilon) * gamma

gamma, beta and epsilon may be missing. ONNX Runtime's SimplifiedLayerNormalization is another name
of RMSNormalization. Squares may be Pow or Mul, the division may be Div, Reciprocal and Mul, or a
Pow by -0.5, and d may be computed twice. Casts to fp32 and back may stand anywhere between; x and y
are of one type, and all tensors between are of that type or fp32. Such a node is there before the
precision stage, where a Pow would keep all that follows in fp32.

A node that no kernel takes is restored (restore.py); in another type than before it becomes what
`written` makes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize.recognition import replace
from onnxbolt.dtypes import DType
from onnxbolt.graph.edit import (
    Node,
    add_constant,
    is_float,
    pinned,
    producer,
    reduced_axes,
    scalar,
    sole_use,
)
from onnxbolt.graph.element_types import onnx_dtype
from onnxbolt.graph.names import fresh

LAYER, RMS = "LayerNormalization", "RMSNormalization"
SIMPLIFIED = "SimplifiedLayerNormalization"  # ONNX Runtime's own, in ONNX's domain
LAYER_OPSET, AXES_OPSET = 17, 18  # that have LayerNormalization, and a mean's axes as an input
FP32 = np.dtype(np.float32)
LAST = -1  # the axis of a row
_EPSILON = 1e-5  # SimplifiedLayerNormalization's default


@dataclass
class Region:
    """A normalization of `x` over an axis as far as it is read: `result` is its last tensor,
    `nodes` compute that."""

    op: str
    x: gs.Tensor
    result: gs.Tensor
    epsilon: float
    nodes: list[gs.Node]
    factors: list[gs.Constant] = field(default_factory=list)  # gamma, or gamma and beta
    axis: int = LAST


def run(graph: gs.Graph) -> int:
    """Recognize all normalizations; returns how many."""
    count = 0
    for node in list(graph.nodes):
        found = None
        if node.op in ("Div", "Mul") and node.outputs:
            found = recognized(graph, node)
        elif node.op == SIMPLIFIED and not node.domain:
            found = _simplified(graph, node)
        if found is not None:
            inputs = [found.x, *(vector(graph, factor) for factor in found.factors)]
            root = found.result.inputs[0]
            replace(graph, root, found.op, inputs, found.nodes, {"epsilon": found.epsilon})
            count += 1
    return count


def recognized(graph: gs.Graph, node: gs.Node, axis: int = LAST) -> Region | None:
    """The longest normalization over an axis whose division is `node` and that only its result
    leaves."""
    for quotient in _quotients(node):
        core = _normalized(node, *quotient, axis)
        if core is None:
            continue
        for begun in _beginnings(core):
            ends = [end for end in _ends(graph, begun) if _is_whole(graph, end)]
            if ends:
                return ends[-1]
    return None


def _simplified(graph: gs.Graph, node: gs.Node) -> Region | None:
    """The normalization that SimplifiedLayerNormalization is, if it is over the last axis."""
    (x, gamma), y = node.inputs, node.outputs[0]
    region = Region(RMS, x, y, float(node.attrs.get("epsilon", _EPSILON)), [node], [gamma])
    alone = not any(tensor.name and tensor.outputs for tensor in node.outputs[1:])
    last = x.shape is not None and node.attrs.get("axis", -1) in (-1, len(x.shape) - 1)
    fits = alone and last and _varies_along(LAST, gamma, x) and _is_whole(graph, region)
    return region if fits else None


def _quotients(node: gs.Node) -> Iterator[tuple[gs.Tensor, gs.Tensor, list[gs.Node]]]:
    """Numerator, the tensor whose square root it is divided by, and the nodes besides `node`."""
    if node.domain or len(node.inputs) != 2:
        return
    orders = [node.inputs] if node.op == "Div" else [node.inputs, node.inputs[::-1]]
    for numerator, other in orders:
        if (found := _root(other, inverse=node.op == "Mul")) is not None:
            yield numerator, *found


def _root(tensor: gs.Tensor, inverse: bool) -> tuple[gs.Tensor, list[gs.Node]] | None:
    """v and the nodes if `tensor` is the square root of v, or its inverse."""
    source, nodes = _without_casts(tensor)
    node = producer(source)
    if node is None or node.domain:
        return None
    power = scalar(node.inputs[1]) if node.op == "Pow" else None
    if power == (-0.5 if inverse else 0.5) or (node.op == "Sqrt" and not inverse):
        return node.inputs[0], [*nodes, node]
    if not inverse:
        return None
    divides = node.op == "Div" and scalar(node.inputs[0]) == 1
    if not divides and node.op != "Reciprocal":
        return None
    found = _root(node.inputs[-1], inverse=False)
    return None if found is None else (found[0], [*nodes, node, *found[1]])


def _normalized(
    node: gs.Node, numerator: gs.Tensor, variance: gs.Tensor, nodes: Sequence[gs.Node], axis: int
) -> Region | None:
    """The normalization without factors, if `variance` is the mean square of the numerator,
    perhaps plus a constant: torch's exporter drops one of 1e-8."""
    shifted = _shifted(variance) or (variance, 0.0, [])
    mean = _mean(shifted[0], axis)
    square = None if mean is None else _square(mean[0])
    if mean is None or square is None:
        return None
    result, covered = node.outputs[0], [node, *nodes, *shifted[2], *mean[1], *square[1]]
    left, right = _deviation(numerator, axis), _deviation(square[0], axis)
    if left is not None and right is not None:
        both = _meet(left[0], right[0])
        if both is not None:
            covered = [*covered, *left[1], *right[1], *both[1]]
            return Region(LAYER, both[0], result, shifted[1], covered, axis=axis)
    both = _meet(numerator, square[0])
    if both is None:
        return None
    return Region(RMS, both[0], result, shifted[1], [*covered, *both[1]], axis=axis)


def _shifted(tensor: gs.Tensor) -> tuple[gs.Tensor, float, list[gs.Node]] | None:
    """v, c and the nodes if `tensor` is v + c with a positive constant c."""
    source, nodes = _without_casts(tensor)
    node = producer(source)
    if node is None or node.domain or node.op != "Add":
        return None
    for kept, other in (node.inputs, node.inputs[::-1]):
        value = scalar(other)
        if value is not None and value > 0 and not isinstance(kept, gs.Constant):
            return kept, value, [*nodes, node]
    return None


def _mean(tensor: gs.Tensor, axis: int) -> tuple[gs.Tensor, list[gs.Node]] | None:
    """x and the nodes if `tensor` is the mean of x over an axis, which stays."""
    source, nodes = _without_casts(tensor)
    node = producer(source)
    if node is None or node.domain or node.op != "ReduceMean" or not node.attrs.get("keepdims", 1):
        return None
    x, axes = node.inputs[0], reduced_axes(node)
    rank = None if x.shape is None else len(x.shape)
    same = axes == [axis] or (rank is not None and axes in ([axis % rank], [axis % rank - rank]))
    return (x, [*nodes, node]) if same else None


def _square(tensor: gs.Tensor) -> tuple[gs.Tensor, list[gs.Node]] | None:
    """x and the nodes if `tensor` is x * x."""
    source, nodes = _without_casts(tensor)
    node = producer(source)
    if node is None or node.domain or node.op not in ("Mul", "Pow"):
        return None
    x, other = node.inputs
    squares = other is x if node.op == "Mul" else scalar(other) == 2
    return (x, [*nodes, node]) if squares else None


def _deviation(tensor: gs.Tensor, axis: int) -> tuple[gs.Tensor, list[gs.Node]] | None:
    """x and the nodes if `tensor` is x minus its mean."""
    source, nodes = _without_casts(tensor)
    node = producer(source)
    if node is None or node.domain or node.op != "Sub":
        return None
    x, subtracted = node.inputs
    mean = _mean(subtracted, axis)
    both = None if mean is None else _meet(x, mean[0])
    if mean is None or both is None:
        return None
    return both[0], [*nodes, node, *mean[1], *both[1]]


def _casts(tensor: gs.Tensor) -> Iterator[tuple[gs.Tensor, list[gs.Node]]]:
    """The tensor, and those that it is cast from, each with the Casts between."""
    nodes: list[gs.Node] = []
    while True:
        yield tensor, list(nodes)
        node = producer(tensor)
        if node is None or node.domain or node.op != "Cast" or not is_float(node.inputs[0]):
            return
        nodes.append(node)
        tensor = node.inputs[0]


def _without_casts(tensor: gs.Tensor) -> tuple[gs.Tensor, list[gs.Node]]:
    """The first of the tensors that it is cast from, and the Casts."""
    return list(_casts(tensor))[-1]


def _meet(a: gs.Tensor, b: gs.Tensor) -> tuple[gs.Tensor, list[gs.Node]] | None:
    """The last tensor that both are, or are cast from, and the Casts."""
    for (one, nodes), (other, others) in itertools.product(_casts(a), _casts(b)):
        if one is other:
            return one, [*nodes, *others]
    return None


def _beginnings(core: Region) -> Iterator[Region]:
    """The normalization of what its x is cast from, and that of x."""
    for x, casts in reversed(list(_casts(core.x))):
        yield dataclasses.replace(core, x=x, nodes=[*core.nodes, *casts])


def _ends(graph: gs.Graph, region: Region) -> Iterator[Region]:
    """The normalization, and with each of the Casts, with gamma and with beta behind it."""
    yield region
    while (node := sole_use(graph, region.result)) is not None and not node.domain:
        factors = list(region.factors)
        expected = ("Mul", "Add")[len(factors)] if len(factors) < _most(region.op) else ""
        if node.op == expected:
            x, factor = node.inputs if node.inputs[0] is region.result else node.inputs[::-1]
            if x is not region.result or not _varies_along(region.axis, factor, region.x):
                return
            factors.append(factor)
        elif node.op != "Cast":
            return
        nodes, result = [*region.nodes, node], node.outputs[0]
        region = dataclasses.replace(region, result=result, nodes=nodes, factors=factors)
        yield region


def _most(op: str) -> int:
    """The most factors of a normalization: gamma and beta, or gamma."""
    return 2 if op == LAYER else 1


def _varies_along(axis: int, constant: gs.Tensor, x: gs.Tensor) -> bool:
    """True for a constant with a value for each entry of an axis, which does not widen x."""
    if not isinstance(constant, gs.Constant) or not x.shape or len(constant.shape) > len(x.shape):
        return False
    shape = [1] * (len(x.shape) - len(constant.shape)) + list(constant.shape)
    along = shape.pop(axis)
    return is_float(constant) and along == x.shape[axis] and all(size == 1 for size in shape)


def _is_whole(graph: gs.Graph, region: Region) -> bool:
    """True if x and y have one type that kernels have, and no tensor between is read by others."""
    nodes, x = set(region.nodes), region.x
    inner = [t for node in nodes for t in node.outputs if t is not region.result]
    types = {x.dtype, FP32}
    return (
        DType.of(x.dtype) is not None
        and not isinstance(x, gs.Constant)
        and bool(x.shape)
        and isinstance(x.shape[region.axis], int)
        and region.result.dtype == x.dtype
        and len(region.result.shape or x.shape) == len(x.shape)  # constants may have more axes
        and all(t.dtype in types and not pinned(graph, t) for t in inner)
        and all(nodes.issuperset(t.outputs) for t in inner)
    )


def vector(graph: gs.Graph, factor: gs.Constant) -> gs.Constant:
    """The constant as a vector."""
    if len(factor.shape) == 1:
        return factor
    return add_constant(graph, f"{factor.name}_row", factor.values.reshape(-1))


def written(
    graph: gs.Graph, node: gs.Node, inputs: Sequence[gs.Tensor], y: gs.Tensor
) -> list[Node]:
    """Operators that compute a normalization in the type of its inputs: LayerNormalization where
    the opset has it, else the statistics in fp32 and the factors in that type."""
    plain = all(len(factor.shape) == 1 for factor in inputs[1:])
    if node.op == LAYER and len(inputs) > 1 and plain and graph.opset >= LAYER_OPSET:
        attrs = {"axis": -1, "epsilon": node.attrs["epsilon"]}
        return [Node(LAYER, node.name, attrs, inputs, [y], "", node.provenance)]
    made = _Written(graph, node)
    x, *factors = inputs
    result = made.normalized(made.add("Cast", [x], FP32, to=onnx_dtype(FP32)))
    result = made.add("Cast", [result], x.dtype, to=onnx_dtype(x.dtype))
    for op, factor in zip(("Mul", "Add"), factors, strict=False):
        result = made.add(op, [result, factor], x.dtype)
    made.nodes[-1].outputs = [y]
    return made.nodes


class _Written:
    """The nodes that a normalization becomes."""

    def __init__(self, graph: gs.Graph, node: gs.Node) -> None:
        self.graph, self.node = graph, node
        self.nodes: list[Node] = []

    def normalized(self, x: gs.Tensor) -> gs.Tensor:
        """x in fp32 without its mean if that is to be, over the root of the mean square."""
        epsilon = np.float32(self.node.attrs["epsilon"])
        if self.node.op == LAYER:
            x = self.add("Sub", [x, self._mean(x)], FP32)
        mean = self._mean(self.add("Mul", [x, x], FP32))
        constant = add_constant(self.graph, f"{self.node.name}/epsilon", np.array(epsilon))
        root = self.add("Sqrt", [self.add("Add", [mean, constant], FP32)], FP32)
        return self.add("Div", [x, root], FP32)

    def _mean(self, x: gs.Tensor) -> gs.Tensor:
        axes = np.array([-1])
        if self.graph.opset < AXES_OPSET:
            mean = self.add("ReduceMean", [x], FP32, axes=axes.tolist(), keepdims=1)
        else:
            last = add_constant(self.graph, f"{self.node.name}/axes", axes)
            mean = self.add("ReduceMean", [x, last], FP32, keepdims=1)
        mean.shape = None if x.shape is None else [*x.shape[:-1], 1]
        return mean

    def add(
        self, op: str, inputs: Sequence[gs.Tensor], dtype: np.dtype, **attributes: object
    ) -> gs.Variable:
        """The output of a new node, of the first input's shape."""
        name = fresh(self.graph, f"{self.node.name}/{op}")
        result = gs.Variable(fresh(self.graph, f"{name}_output"), dtype, inputs[0].shape)
        made = Node(op, name, attributes, inputs, [result], "", self.node.provenance)
        self.nodes.append(made)
        return result
