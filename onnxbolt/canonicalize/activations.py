"""Recognize activations, written out or not, as one node of the domain `onnxbolt.internal`.

The node's op is the step of epilogues.py, its expansion what it stands for. With factors in any
order and association:

    GeluErf    0.5 x (1 + erf(x / sqrt 2));  Gelu
    GeluTanh   0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), or with x taken out of the bracket;
               Gelu, approximate=tanh
    Silu       x sigmoid(x);  Swish with alpha = 1
    HardSwish  x clip(x + 3, 0, 6) / 6;  x HardSigmoid(x, alpha=1/6, beta=1/2);  HardSwish
    Softplus   log(1 + exp(x));  the standard Softplus stays as it is
    Mish       x tanh(softplus(x));  Mish

A form is recognized where no inner tensor has another reader and all constants are scalars.
`restore` (restore.py) writes out again the ones that were not fused.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize.algebra import applied, close, plus, product, product_of
from onnxbolt.canonicalize.restore import Recognition, restore
from onnxbolt.dtypes import DType
from onnxbolt.graph.edit import Node, remove, scalar
from onnxbolt.graph.exporter import INTERNAL_DOMAIN, node_proto

__all__ = ["restore", "run"]

Match = tuple[str, gs.Tensor, list[gs.Node]]  # step name, x, inner nodes


def run(graph: gs.Graph) -> int:
    """Recognize all activations; returns how many."""
    count = 0
    for node in list(graph.nodes):
        for recognize in _RULES.get(node.op, ()):
            match = recognize(graph, node) if node.outputs and not node.domain else None
            if match is not None and _fits(match, node):
                _replace(graph, node, *match)
                count += 1
                break
    return count


def _fits(match: Match, node: gs.Node) -> bool:
    """Types that kernels have; constants that cannot widen the result."""
    _, x, inner = match
    ranks = [len(t.shape) for n in (node, *inner) for t in n.inputs if isinstance(t, gs.Constant)]
    rank = 0 if x.shape is None else len(x.shape)
    return (
        DType.of(x.dtype) is not None
        and not isinstance(x, gs.Constant)
        and max(ranks, default=0) <= rank
    )


def _replace(graph: gs.Graph, root: gs.Node, op: str, x: gs.Tensor, inner: list[gs.Node]) -> None:
    covered = {id(node) for node in (root, *inner)}
    nodes = [node for node in graph.nodes if id(node) in covered]
    at = next(i for i, node in enumerate(graph.nodes) if node is root)
    y = root.outputs[0]
    expansion: list[onnx.NodeProto] = []
    constants: dict[str, gs.Constant] = {}
    for node in nodes:
        constants.update({t.name: t for t in node.inputs if isinstance(t, gs.Constant)})
        if node.domain == INTERNAL_DOMAIN:
            constants.update(node.recognition.constants)
        expansion += node.expansion if node.domain == INTERNAL_DOMAIN else [_copy(node)]
    made = Node(
        op,
        root.name or y.name,
        {},
        [x],
        [],
        INTERNAL_DOMAIN,
        tuple(name for node in nodes for name in node.provenance),
    )
    made.expansion, made.position = tuple(expansion), getattr(root, "position", None)
    made.recognition = Recognition(x.name, y.name, x.dtype, constants)
    graph.nodes.insert(at, made)
    remove(graph, nodes)
    made.outputs = [y]


def _copy(node: gs.Node) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node_proto(node))
    return copy


def _gelu(graph: gs.Graph, node: gs.Node) -> Match | None:
    """0.5 x (1 + f(..)), both forms."""
    outer = product(graph, node)
    if len(outer.factors) != 2 or not close(outer.coefficient, 0.5, node.outputs[0]):
        return None
    for x, bracket in (outer.factors, outer.factors[::-1]):
        one = plus(graph, bracket, 1.0)
        if one is None:
            continue
        for op, argument in (("Erf", _erf_argument), ("Tanh", _tanh_argument)):
            curve = applied(graph, one[0], op)
            inner = None if curve is None else argument(graph, curve.inputs[0], x)
            if inner is not None:
                return (
                    {"Erf": "GeluErf", "Tanh": "GeluTanh"}[op],
                    x,
                    [*outer.nodes, one[1], curve, *inner],
                )
    return None


def _erf_argument(graph: gs.Graph, tensor: gs.Tensor, x: gs.Tensor) -> list[gs.Node] | None:
    argument = product_of(graph, tensor)
    return (
        argument.nodes
        if argument.others(x) == [] and close(argument.coefficient, math.sqrt(0.5), x)
        else None
    )


def _tanh_argument(graph: gs.Graph, tensor: gs.Tensor, x: gs.Tensor) -> list[gs.Node] | None:
    argument = product_of(graph, tensor)
    if not close(argument.coefficient, math.sqrt(2 / math.pi), x):
        return None
    for power, rest in ((0, argument.others(x, 0)), (1, argument.others(x, 1))):
        if rest is not None and len(rest) == 1:
            inner = _cubic(graph, rest[0], x) if power == 0 else _squared(graph, rest[0], x)
            if inner is not None:
                return [*argument.nodes, *inner]
    return None


def _cubic(graph: gs.Graph, tensor: gs.Tensor, x: gs.Tensor) -> list[gs.Node] | None:
    """x + 0.044715 x^3"""
    node = applied(graph, tensor, "Add")
    if node is None or not any(t is x for t in node.inputs):
        return None
    term = product_of(graph, node.inputs[1 if node.inputs[0] is x else 0])
    return (
        [node, *term.nodes]
        if term.others(x, 3) == [] and close(term.coefficient, 0.044715, x)
        else None
    )


def _squared(graph: gs.Graph, tensor: gs.Tensor, x: gs.Tensor) -> list[gs.Node] | None:
    """1 + 0.044715 x^2"""
    one = plus(graph, tensor, 1.0)
    term = None if one is None else product_of(graph, one[0])
    if (
        one is None
        or term is None
        or term.others(x, 2) != []
        or not close(term.coefficient, 0.044715, x)
    ):
        return None
    return [one[1], *term.nodes]


def _gated(graph: gs.Graph, node: gs.Node) -> Match | None:
    """x gate(x): Silu, HardSwish, Mish."""
    outer = product(graph, node)
    if len(outer.factors) != 2:
        return None
    for x, gate in (outer.factors, outer.factors[::-1]):
        for name, coefficient, rule in _GATES:
            inner = rule(graph, gate, x) if close(outer.coefficient, coefficient, x) else None
            if inner is not None:
                return name, x, [*outer.nodes, *inner]
    return None


def _sigmoid(graph: gs.Graph, gate: gs.Tensor, x: gs.Tensor) -> list[gs.Node] | None:
    node = applied(graph, gate, "Sigmoid")
    return [node] if node is not None and node.inputs[0] is x else None


def _hard_sigmoid(graph: gs.Graph, gate: gs.Tensor, x: gs.Tensor) -> list[gs.Node] | None:
    node = applied(graph, gate, "HardSigmoid")
    if node is None or node.inputs[0] is not x:
        return None
    return (
        [node]
        if close(node.attrs.get("alpha", 0.2), 1 / 6, x)
        and close(node.attrs.get("beta", 0.5), 0.5, x)
        else None
    )


def _clip6(graph: gs.Graph, gate: gs.Tensor, x: gs.Tensor) -> list[gs.Node] | None:
    node = applied(graph, gate, "Clip")
    if (
        node is None
        or len(node.inputs) < 3
        or (scalar(node.inputs[1]), scalar(node.inputs[2])) != (0.0, 6.0)
    ):
        return None
    three = plus(graph, node.inputs[0], 3.0)
    return [node, three[1]] if three is not None and three[0] is x else None


def _tanh_softplus(graph: gs.Graph, gate: gs.Tensor, x: gs.Tensor) -> list[gs.Node] | None:
    tanh = applied(graph, gate, "Tanh")
    softplus = None if tanh is None else applied(graph, tanh.inputs[0], "Softplus")
    return [tanh, softplus] if softplus is not None and softplus.inputs[0] is x else None


_GATES = (
    ("Silu", 1.0, _sigmoid),
    ("HardSwish", 1.0, _hard_sigmoid),
    ("HardSwish", 1 / 6, _clip6),
    ("Mish", 1.0, _tanh_softplus),
)


def _softplus(graph: gs.Graph, node: gs.Node) -> Match | None:
    one = plus(graph, node.inputs[0], 1.0)
    exp = None if one is None else applied(graph, one[0], "Exp")
    return (
        ("Softplus", exp.inputs[0], [one[1], exp]) if one is not None and exp is not None else None
    )


def _standard(graph: gs.Graph, node: gs.Node) -> Match | None:
    """One standard operator that the epilogue table knows by another name."""
    if node.op == "Gelu":
        return (
            "GeluTanh" if node.attrs.get("approximate", "none") == "tanh" else "GeluErf",
            node.inputs[0],
            [],
        )
    if node.op == "Swish":
        return ("Silu", node.inputs[0], []) if node.attrs.get("alpha", 1.0) == 1 else None
    return node.op, node.inputs[0], []


_RULES: dict[str, tuple[Callable[[gs.Graph, gs.Node], Match | None], ...]] = {
    "Mul": (_gelu, _gated),
    "Div": (_gelu, _gated),
    "Log": (_softplus,),
    "Gelu": (_standard,),
    "Swish": (_standard,),
    "HardSwish": (_standard,),
    "Mish": (_standard,),
}
