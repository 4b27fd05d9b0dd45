"""The matrix products and convolutions of a model, wherever they are, and the FLOPs of each: two
for a multiply-add.

Operators of ONNX and of ONNX Runtime (docs/ContribOperators.md there) are in one table. A dimension
that is not known counts as 1; the body of a loop counts once, and so does each branch of an If.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs
from onnx import GraphProto, ModelProto, NodeProto

from onnxbolt.domains import CONTRIB
from onnxbolt.graph.bodies import place_of
from onnxbolt.graph.exporter import used_variables
from onnxbolt.graph.importer import import_model, tensor_type
from onnxbolt.graph.scopes import subgraphs
from onnxbolt.graph.shapes import Shape, infer, infer_at, infer_inner


@dataclass(frozen=True)
class Product:
    """A node that multiplies matrices or convolves. `body` is the place of the subgraph that it is
    in, empty for the main graph; `left` says why that subgraph is not optimized, if it is not."""

    node: str
    op: str
    domain: str
    flops: int
    weighted: bool  # one factor is constant
    body: str = ""
    left: str = ""


@dataclass(frozen=True)
class Call:
    """A node with the shapes of its inputs and of its first output, as far as they are known."""

    node: NodeProto
    inputs: tuple[Shape, ...]
    output: Shape

    def attribute(self, name: str, default: int = 0) -> int:
        return next(
            (attribute.i for attribute in self.node.attribute if attribute.name == name), default
        )

    def size(self, index: int, axis: int) -> int:
        """A dimension of an input; 1 if it is unknown or missing."""
        shape = self.inputs[index] if index < len(self.inputs) else []
        return _size(shape[axis:][:1]) if -len(shape) <= axis < len(shape) else 1


Rule = Callable[[Call], int]


@dataclass(frozen=True)
class Sized:
    """An imported model with the shapes of its tensors, by name, as far as they are known."""

    graph: gs.Graph
    shapes: Mapping[str, Shape]
    point: Mapping[str, Sequence[int | str | None]]

    @classmethod
    def of(cls, model: ModelProto, point: Mapping[str, Sequence[int | str | None]]) -> Sized:
        """`point` has the shapes of graph inputs with symbolic dimensions, by name."""
        graph = import_model(model)
        infer(graph)
        # bodies may read inputs that no node reads
        known = used_variables(graph) | {tensor.name: tensor for tensor in graph.inputs}
        shapes = {name: tensor.shape or [] for name, tensor in known.items()} | (
            infer_at(graph, [point])[0] if point else {}
        )
        shapes |= {name: list(constant.shape) for name, constant in graph.constants.items()}
        return cls(graph, shapes, point)

    def products(self) -> list[Product]:
        """All products but those with constant factors only, those of a body with the place of the
        outermost one."""
        origins = [node.origin for node in self.graph.nodes]
        bodies = any(subgraphs_of(node) for node in origins)
        inner = (
            {
                node.output[0]: node
                for node in infer_inner(self.graph, self.point).graph.node
                if node.output
            }
            if bodies
            else {}
        )
        return list(_found(origins, self.shapes, set(self.graph.constants), inner))


def products(model: ModelProto, point: Mapping[str, Sequence[int | str | None]]) -> list[Product]:
    """The products of a model, with inputs of the shapes in `point`."""
    return Sized.of(model, point).products()


def subgraphs_of(node: NodeProto) -> list[GraphProto]:
    return [graph for attribute in node.attribute for graph in subgraphs(attribute)]


def _found(
    nodes: Iterable[NodeProto],
    shapes: Mapping[str, Shape],
    constant: set[str],
    inner: Mapping[str, NodeProto],
    body: str = "",
) -> Iterator[Product]:
    for node in nodes:
        reads = [name for name in node.input if name]
        if reads and constant.issuperset(reads):  # constant folding computes it
            constant.update(node.output)
        elif (rule := _rule(node)) is not None:
            call = Call(
                node,
                tuple(shapes.get(name, []) for name in node.input),
                shapes.get(node.output[0], []),
            )
            name = node.name or node.output[0]
            yield Product(
                name, node.op_type, _domain(node), rule(call), not constant.isdisjoint(reads), body
            )
        for attribute in (inner.get(node.output[0], node) if node.output else node).attribute:
            for graph in subgraphs(attribute):
                known = constant | {tensor.name for tensor in graph.initializer}
                around = {**shapes, **_declared(graph)}
                yield from _found(graph.node, around, known, {}, body or place_of(node, attribute))


def _rule(node: NodeProto) -> Rule | None:
    """The rule for a node; None for one that is no product, such as an Einsum of one tensor."""
    if node.op_type == "Einsum" and len(node.input) == 1:
        return None
    return _RULES.get(_domain(node), {}).get(node.op_type)


def _domain(node: NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else node.domain


def _declared(graph: GraphProto) -> dict[str, Shape]:
    found: dict[str, Shape] = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        found[value.name] = tensor_type(value.type)[1] or []
    return found


def _size(shape: Shape) -> int:
    return math.prod(size for size in shape if isinstance(size, int))


# --- FLOPs by operator: twice the multiply-adds ---------------------------------------------------


def _conv(weight: int) -> Rule:
    """Each element of the output takes one filter [C / groups, ..]."""
    return lambda call: 2 * _size(call.output) * _size(call.inputs[weight][1:])


def _transposed_conv(call: Call) -> int:
    """Each element of the input is multiplied by a filter [K / groups, ..]."""
    return 2 * _size(call.inputs[0]) * _size(call.inputs[1][1:])


def _matmul(b: int, transposed: str = "") -> Rule:
    """Each element of the output takes one column of factor `b`, or one row if the attribute
    `transposed` is set."""

    def rule(call: Call) -> int:
        depth = call.size(
            b, -1 if (transposed and call.attribute(transposed)) or len(call.inputs[b]) == 1 else -2
        )
        return 2 * _size(call.output) * depth

    return rule


def _einsum(call: Call) -> int:
    """One multiply-add for each combination of indices."""
    equation = next(
        (attribute.s.decode() for attribute in call.node.attribute if attribute.name == "equation"),
        "",
    )
    terms = equation.partition("->")[0].replace(" ", "").replace("...", "").split(",")
    sizes = {
        letter: size
        for term, shape in zip(terms, call.inputs, strict=False)
        for letter, size in zip(reversed(term), reversed(shape), strict=False)
    }
    return 2 * _size(list(sizes.values()))


def _attention(call: Call) -> int:
    """Q K' and its product with V, for Q [.., S, _] and K [.., L, _]; masked elements count, as
    well."""
    return 2 * call.size(1, -2) * (_size(call.inputs[0]) + _size(call.output))


def _attention_with_weights(call: Call) -> int:
    """x [B, S, C] and one weight [C, Q + K + V] for the three projections, then as `_attention`."""
    return 2 * _size(call.inputs[0]) * call.size(1, -1) + 4 * call.size(0, -2) * _size(call.output)


def _recurrent(call: Call) -> int:
    """x [S, B, I] with W [D, G H, I] and the state with R [D, G H, H], in each step."""
    return 2 * call.size(0, 0) * call.size(0, 1) * (_size(call.inputs[1]) + _size(call.inputs[2]))


def _blocks(call: Call) -> int:
    """A quantized weight of `N` rows and `K` columns in blocks."""
    return 2 * _size(call.output) * call.attribute("K", 1)


_RULES: dict[str, dict[str, Rule]] = {  # by domain and op type
    "": {
        "Attention": _attention,
        "Conv": _conv(1),
        "ConvInteger": _conv(1),
        "ConvTranspose": _transposed_conv,
        "DeformConv": _conv(1),
        "Einsum": _einsum,
        "GRU": _recurrent,
        "Gemm": _matmul(1, "transB"),
        "LSTM": _recurrent,
        "MatMul": _matmul(1),
        "MatMulInteger": _matmul(1),
        "QLinearConv": _conv(3),
        "QLinearMatMul": _matmul(3),
        "RNN": _recurrent,
    },
    CONTRIB: {
        "Attention": _attention_with_weights,
        "DynamicQuantizeMatMul": _matmul(1),
        "FusedConv": _conv(1),
        "FusedGemm": _matmul(1, "transB"),
        "FusedMatMul": _matmul(1, "transB"),
        "FusedMatMulActivation": _matmul(1, "transB"),
        "GroupQueryAttention": _attention,
        "MatMulBnb4": _blocks,
        "MatMulIntegerToFloat": _matmul(1),
        "MatMulNBits": _blocks,
        "MultiHeadAttention": _attention,
        "QAttention": _attention_with_weights,
        "QGemm": _matmul(3, "transB"),
        "QLinearConv": _conv(3),
        "TransposeMatMul": _matmul(1, "transB"),
    },
}
