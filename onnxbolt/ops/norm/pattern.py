"""Which nodes are a normalization of rows.

    LayerNormalization(x, gamma, beta)
    LayerNormalization(Add(x, residual), gamma, beta)

and the same of RMSNormalization, without beta. gamma and beta are constants. The sum may have
further readers: then it is the node's second output. Canonicalization has written decomposed
normalizations as one node (canonicalize/norm_form.py), and ONNX Runtime's SkipLayerNormalization as
such a sum (canonicalize/contrib_norm_form.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import onnx_graphsurgeon as gs

from onnxbolt import domains, families
from onnxbolt.candidates import Anchor, Link, Refusal
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import STORE, STORE_VALUES, Step
from onnxbolt.ops.base import FusedOp
from onnxbolt.ops.quantize.pattern import codes_behind
from onnxbolt.patterns.types import AnchorPattern, Match

# nodes of ONNX's domain that only normalize; ONNX Runtime has its second one there, too
_PLAIN = {
    True: ("LayerNormalization",),
    False: ("RMSNormalization", "SimplifiedLayerNormalization"),
}
_SKIP = {True: "SkipLayerNormalization", False: "SkipSimplifiedLayerNormalization"}
_EPSILON = 1e-5  # the operators' default
_DOMAINS = ("", domains.INTERNAL)
_STATISTICS = "its mean or variance is read as well"


@dataclass(frozen=True)
class Sum:
    """x plus a residual if there is one, the node that computes the sum, and the sum if it has
    other readers."""

    node: gs.Node
    x: gs.Tensor
    residual: gs.Tensor | None
    stored: gs.Tensor | None = None


def anchors(op: FusedOp, centered: bool) -> tuple[AnchorPattern, ...]:
    """The nodes that `op` begins at."""
    return (
        *of_plain(partial(normalization, op), centered),
        AnchorPattern(("Add",), partial(_addition, op, centered)),
        AnchorPattern((_SKIP[centered],), _kept, domains.CONTRIB),
    )


def normalizes(node: gs.Node) -> bool:
    """True for nodes that only normalize."""
    return (node.domain or "") in _DOMAINS and any(node.op in ops for ops in _PLAIN.values())


def of_plain(match: Callable[[gs.Node], Match], centered: bool) -> tuple[AnchorPattern, ...]:
    """Patterns that begin at nodes that only normalize."""
    return tuple(AnchorPattern(_PLAIN[centered], match, domain) for domain in _DOMAINS)


def epsilon(node: gs.Node) -> float:
    """The number that a normalization adds to the variance."""
    return float(node.attrs.get("epsilon", _EPSILON))


def normalization(op: FusedOp, node: gs.Node, heads: int = 1) -> Match:
    """The normalization that a node is which only normalizes; gamma and beta may have values of
    their own for each of `heads` heads."""
    return _matched(op, node, node.inputs[0], node.inputs[1:], None, heads)


def _addition(op: FusedOp, centered: bool, node: gs.Node) -> Match:
    """None where the sum is not normalized."""
    x, residual = node.inputs
    variables = all(isinstance(tensor, gs.Variable) for tensor in (x, residual))
    if not variables or x.shape is None or x.shape != residual.shape:
        return None
    return of_sum(op, centered, Sum(node, x, residual))


def of_sum(op: FusedOp, centered: bool, added: Sum) -> Match:
    """The normalization of a sum by nodes that only normalize; None where there is none."""
    total, operators = added.node.outputs[0], _PLAIN[centered]
    norms = [n for n in total.outputs if n.op in operators and (n.domain or "") in _DOMAINS]
    if not norms or norms[0].inputs[0] is not total:
        return None
    stored = total if len(total.outputs) > 1 else None
    return _matched(op, norms[0], added.x, norms[0].inputs[1:], replace(added, stored=stored))


def _kept(node: gs.Node) -> Refusal:
    """Why canonicalization has not divided it."""
    x = node.inputs[0]
    reason = _STATISTICS if DType.of(x.dtype) else f"no kernel for its element type: {x.dtype}"
    return Refusal(node.name, node.op, reason, x.name)


def _matched(
    op: FusedOp,
    node: gs.Node,
    x: gs.Tensor,
    factors: list[gs.Tensor],
    before: Sum | None,
    heads: int = 1,
) -> Match:
    """The anchor with the links that the class of `op` names; `factors` are gamma and beta."""
    given = [tensor for tensor in factors if tensor.name]
    if reason := _reason(node, x, given, heads):
        return Refusal(node.name, node.op, reason, x.name)
    dtype = DType.of(x.dtype)
    assert dtype is not None  # _reason has looked
    links = []
    if before is not None:
        total = before.node.outputs[0]
        if before.residual is not None:
            links.append(Link(Step("Add"), before.residual, (before.node,), total))
        if before.stored is not None:
            links.append(Link(Step(STORE), None, (), before.stored))
    names = ("Scale", "Bias")
    links += [
        Link(Step(name), operand, (node,), node.outputs[0])
        for name, operand in zip(names, given, strict=False)
    ]
    first = node if before is None else before.node
    others = () if first is node else (node,)
    anchor = Anchor(op, first, x, None, dtype, (), others)
    if op.makes_codes:
        links += _codes(op, node.outputs[0], stores=any(link.step.row.stores for link in links))
    return anchor, tuple(links)


def _codes(op: FusedOp, y: gs.Tensor, stores: bool) -> tuple[Link, ...]:
    """The link of the codes that are made of y, behind one that stores y if others read it as well;
    none where there are no such codes, or no kernel. `stores`: the kernel has a second output."""
    end, dtype = codes_behind(y), DType.of(y.dtype)
    code = None if end is None else end.step.row.cast
    if end is None or code is None or not families.takes_codes(op.name, code):
        return ()
    if len(y.outputs) == 1:
        return (end,)
    problem = op.problem_type
    if stores or dtype is None or problem is None or not families.moves_values(problem):
        return ()
    return Link(Step(STORE_VALUES[dtype]), None, (), y), end


def _reason(node: gs.Node, x: gs.Tensor, factors: list[gs.Tensor], heads: int) -> str:
    """Why no kernel serves; "" where one does."""
    if DType.of(x.dtype) is None:
        return f"no kernel for its element type: {x.dtype}"
    if not x.shape or not isinstance(x.shape[-1], int) or not x.shape[-1]:
        return "the length of its rows is not known"
    if node.attrs.get("axis", -1) not in (-1, len(x.shape) - 1):
        return "it is not over the last axis alone"
    constant = all(isinstance(tensor, gs.Constant) for tensor in factors)
    sizes = (x.shape[-1], heads * x.shape[-1])
    if not constant or any(math.prod(tensor.shape) not in sizes for tensor in factors):
        return "its scale or bias is no constant with a value for each column"
    if any(tensor.name and tensor.outputs for tensor in node.outputs[1:]):
        return _STATISTICS
    return ""
