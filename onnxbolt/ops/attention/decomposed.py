"""Scaled dot-product attention of several nodes:

    MatMul(P(Softmax(mask(scale MatMul(q, k^T)))), v)

q, k and v are [batch, heads, positions, size], as Reshape, Transpose, Split and Slice make them of
what the projections wrote (views.py). The exporters' forms, as the zoo has them behind
canonicalization:

| model | scale | k^T | mask | P |
|---|---|---|---|---|
| TorchScript: BERT, DETR | sqrt on both sides | perm 0 2 3 1 | Add(Where(bool, 0, -inf)) | IsNaN |
| TorchScript: ViT | sqrt on both sides | perm 0 1 3 2 | | |
| dynamo: BERT, DETR | sqrt on both sides | 3-D and back | Add(Where(bool, 0, -3.4e38)) | IsNaN |
| dynamo: ViT, SegFormer | sqrt on both sides | 3-D and back | | |
| dynamo: DETR, constant q | on k's side | 3-D and back | as above | IsNaN |

IsNaN stands for Where(IsNaN(p), 0, p). A mask of -3.4e38 keeps Add and Softmax in fp32, between
Casts. A scale may also be one Mul or Div, on one side or behind the product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Refusal
from onnxbolt.graph.edit import producer, scalar
from onnxbolt.ops.attention import views
from onnxbolt.ops.attention.found import Mask, Masked, Masking, Parts, assembled
from onnxbolt.ops.attention.masks import MaskedScores, masked_scores
from onnxbolt.ops.attention.scales import before, factor, scaled
from onnxbolt.ops.base import FusedOp
from onnxbolt.patterns.types import Match


@dataclass(frozen=True, eq=False)
class _Scores:
    """The way from the product of queries and keys to the softmax."""

    product: gs.Node
    nodes: tuple[gs.Node, ...]
    scale: float
    mask: Mask
    lowest: float  # the least value that the mask adds or puts; NaN where that is not known


@dataclass(frozen=True, eq=False)
class _Probabilities:
    """The way from the softmax to the product with the values."""

    product: gs.Node
    nodes: tuple[gs.Node, ...]
    guarded: bool  # NaN becomes 0


def match(op: FusedOp, softmax: gs.Node) -> Match:
    """None where the softmax does not stand between two products."""
    scores, after = _scores(softmax), _probabilities(softmax)
    if scores is None or after is None:
        return None
    for reason in (scores, after):
        if isinstance(reason, str):
            return Refusal(softmax.name, softmax.op, reason)
    assert isinstance(scores, _Scores) and isinstance(after, _Probabilities)  # noqa: PT018
    factors = (*scores.product.inputs, *after.product.inputs)
    if any(t.shape is None or len(t.shape) != 4 for t in factors):
        reason = "its products are not over batch and heads: their rank is not 4"
        return Refusal(softmax.name, softmax.op, reason)
    if softmax.attrs.get("axis", -1) not in (-1, 3):
        return Refusal(softmax.name, softmax.op, "its softmax is not over the keys")
    q, k = scores.product.inputs
    operands = (
        views.follow(q, scaled),
        views.follow(k, scaled, (0, 1, 3, 2)),
        views.follow(after.product.inputs[1]),
    )
    parts = Parts(
        operands,
        scores.scale,
        scores.mask,
        _masked(scores, after),
        (*scores.nodes, softmax, *after.nodes),
        after.product,
    )
    found = assembled(op, softmax, parts)
    return found if isinstance(found, Refusal) else (found, ())


# --- from the first product to the softmax --------------------------------------------------------


def _scores(softmax: gs.Node) -> _Scores | str | None:
    """None where no product of two variables leads to the softmax; a str is a refusal's reason."""
    nodes, scale, masked = list[gs.Node](), 1.0, MaskedScores(softmax.inputs[0], Mask(), 0.0)
    tensor = softmax.inputs[0]
    while (node := producer(tensor)) is not None and not node.domain:
        nodes.insert(0, node)
        if node.op == "MatMul":
            reason = _read_elsewhere(nodes, "scores")
            return reason or _Scores(node, tuple(nodes), scale, masked.mask, masked.lowest)
        if (found := masked_scores(node)) is not None:
            if masked.tensor is not softmax.inputs[0]:
                return "it has several masks"
            if scale != 1:
                return "its mask is scaled"
            tensor, masked = found.tensor, found
        elif (source := before(node)) is not None:
            tensor, scale = source, scale * factor(node)
        else:
            return None
    return None


def _read_elsewhere(nodes: Iterable[gs.Node], what: str) -> str:
    """A refusal's reason if one of the nodes has several readers."""
    several = any(len(node.outputs[0].outputs) != 1 for node in nodes)
    return f"its {what} are read elsewhere, too" if several else ""


# --- from the softmax to the second product -------------------------------------------------------


def _probabilities(softmax: gs.Node) -> _Probabilities | str | None:
    """None where no product reads the probabilities; a str is a refusal's reason."""
    nodes, guarded, tensor = list[gs.Node](), False, softmax.outputs[0]
    step: tuple[gs.Node, ...]
    while True:
        readers = list(dict.fromkeys(tensor.outputs))
        product = next((node for node in readers if node.op == "MatMul"), None)
        if product is not None:
            if len(readers) > 1:
                return "its probabilities are read elsewhere, too"
            ours = product.inputs[0] is tensor and product.inputs[1] is not tensor
            return _Probabilities(product, (*nodes, product), guarded) if ours else None
        if (guard := _guard(tensor, readers)) is not None:
            guarded, step = True, guard
        elif len(readers) == 1 and readers[0].op == "Cast" and before(readers[0]) is tensor:
            step = (readers[0],)
        else:
            return None
        nodes += step
        tensor = step[-1].outputs[0]


def _guard(tensor: gs.Tensor, readers: Sequence[gs.Node]) -> tuple[gs.Node, gs.Node] | None:
    """IsNaN and Where, which make 0 of NaN."""
    if sorted(node.op for node in readers) != ["IsNaN", "Where"]:
        return None
    isnan, where = sorted(readers, key=lambda node: str(node.op))
    condition, yes, no = where.inputs
    ours = condition is isnan.outputs[0] and scalar(yes) == 0 and no is tensor
    return (isnan, where) if ours and len(condition.outputs) == 1 else None


def _masked(scores: _Scores, after: _Probabilities) -> Masked:
    """A finite mask leaves a row of equal scores, of which softmax makes no NaN."""
    boolean = scores.mask.kind in (Masking.KEPT, Masking.DROPPED)
    if after.guarded and not (boolean and math.isfinite(scores.lowest)):
        return Masked.ZERO
    return Masked.PLAIN if math.isfinite(scores.lowest) else Masked.NAN
