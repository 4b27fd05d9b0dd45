"""Which nodes are scaled dot-product attention:

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

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Refusal
from onnxbolt.dtypes import DType
from onnxbolt.graph.edit import constant_values, producer, scalar, unrounded_values
from onnxbolt.ops.attention import views
from onnxbolt.ops.attention.views import Followed, View
from onnxbolt.ops.base import FusedOp
from onnxbolt.patterns.types import AnchorPattern, Match

_ABSORBS = -1e30  # a score plus such a value, or a lower one, is this value
_EXCLUDES = -6.5e4  # a key with such a score, or a lower one, has no weight: fp16 ends at -65504


class Masking(enum.Enum):
    """How a mask changes scores."""

    NONE = ""
    ADDED = "added"  # it is added to them
    KEPT = "kept"  # a boolean: false excludes a key
    DROPPED = "dropped"  # a boolean: true excludes a key


class Masked(enum.Enum):
    """The answer for a query whose keys are all excluded."""

    ZERO = "zero"  # zeros
    NAN = "nan"  # NaN, as softmax answers for -inf
    PLAIN = "plain"  # the mean of all values: an excluded score is a large finite number


@dataclass(frozen=True, eq=False)
class Mask:
    """A mask that broadcasts to the scores [batch, heads, queries, keys]."""

    kind: Masking = Masking.NONE
    tensor: gs.Tensor | None = None


@dataclass(frozen=True, eq=False)
class ScaledDotProduct:
    """softmax(scale q k^T, masked) v; the output is [batch, queries, heads, size] in memory,
    `joined`: with heads and size as one axis."""

    q: View
    k: View
    v: View
    heads: int
    scale: float
    mask: Mask
    masked: Masked
    output: gs.Tensor
    joined: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionAnchor(Anchor):
    """The softmax, and all that belongs to its attention."""

    attention: ScaledDotProduct

    @property
    def further(self) -> tuple[gs.Tensor, ...]:
        """Keys, values and mask."""
        found = self.attention
        mask = () if found.mask.tensor is None else (found.mask.tensor,)
        return (found.k.tensor, found.v.tensor, *mask)


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


@dataclass(frozen=True, eq=False)
class _Output:
    tensor: gs.Tensor
    nodes: tuple[gs.Node, ...]
    joined: bool


def anchors(op: FusedOp) -> tuple[AnchorPattern, ...]:
    """The nodes that `op` begins at."""
    return (AnchorPattern(("Softmax",), partial(_match, op)),)


def _match(op: FusedOp, softmax: gs.Node) -> Match:
    """None where the softmax does not stand between two products."""
    scores, after = _scores(softmax), _probabilities(softmax)
    if scores is None or after is None:
        return None
    found = _attention(op, softmax, scores, after)
    return (found, ()) if isinstance(found, AttentionAnchor) else found


def _attention(
    op: FusedOp,
    softmax: gs.Node,
    scores: _Scores | str,
    after: _Probabilities | str,
) -> AttentionAnchor | Refusal:
    def because(reason: str, tensor: str = "") -> Refusal:
        return Refusal(softmax.name, softmax.op, reason, tensor)

    if isinstance(scores, str):
        return because(scores)
    if isinstance(after, str):
        return because(after)
    product = scores.product
    if any(t.shape is None or len(t.shape) != 4 for t in (*product.inputs, *after.product.inputs)):
        return because("its products are not over batch and heads: their rank is not 4")
    if softmax.attrs.get("axis", -1) not in (-1, 3):
        return because("its softmax is not over the keys")
    q = views.follow(product.inputs[0], _scaled)
    k = views.follow(product.inputs[1], _scaled, (0, 1, 3, 2))
    v = views.follow(after.product.inputs[1], lambda node: None)
    if q is None or k is None or v is None:
        return because("its queries, keys or values do not lie with a head's elements side by side")
    heads = _heads(q.view, k.view, v.view)
    if not isinstance(heads, int):
        return because(heads)
    dtype = DType.of(q.view.tensor.dtype)
    if dtype is None or any(f.view.tensor.dtype != q.view.tensor.dtype for f in (k, v)):
        return because(f"no kernel for its element type: {q.view.tensor.dtype}")
    output = _output(after.product, heads, v.view.size)
    if output is None:
        return because("its result is not brought to [batch, queries, heads, size]")
    scale = scores.scale * math.prod(map(_factor, (*q.nodes, *k.nodes)))
    if not scale > 0:
        return because("its scale is not positive")
    attention = ScaledDotProduct(
        q.view, k.view, v.view, heads, scale, scores.mask, _masked(scores, after),
        output.tensor, output.joined,
    )  # fmt: skip
    middle = (*scores.nodes, *after.nodes, *output.nodes)
    nodes = (*_own((q, k, v), {softmax, *middle}), *middle)
    return AttentionAnchor(
        op, softmax, q.view.tensor, None, dtype, others=nodes, attention=attention
    )


# --- from the first product to the softmax --------------------------------------------------------


def _scores(softmax: gs.Node) -> _Scores | str | None:
    """None where no product of two variables leads to the softmax; a str is a refusal's reason."""
    nodes, scale, masked = list[gs.Node](), 1.0, _MaskedScores(softmax.inputs[0], Mask(), 0.0)
    tensor = softmax.inputs[0]
    while (node := producer(tensor)) is not None and not node.domain:
        nodes.insert(0, node)
        if node.op == "MatMul":
            reason = _read_elsewhere(nodes, "scores")
            return reason or _Scores(node, tuple(nodes), scale, masked.mask, masked.lowest)
        if (found := _masked_scores(node)) is not None:
            if masked.tensor is not softmax.inputs[0]:
                return "it has several masks"
            if scale != 1:
                return "its mask is scaled"
            tensor, masked = found.tensor, found
        elif (before := _before(node)) is not None:
            tensor, scale = before, scale * _factor(node)
        else:
            return None
    return None


@dataclass(frozen=True, eq=False)
class _MaskedScores:
    tensor: gs.Tensor  # the scores
    mask: Mask
    lowest: float  # as _Scores has it


def _masked_scores(node: gs.Node) -> _MaskedScores | None:
    """Add(scores, mask) or Where(mask, .., ..); None for other nodes."""
    if node.op == "Add":
        scores = [t for t in node.inputs if _leads_to_product(t)]
        if len(scores) != 1:
            return None
        (other,) = (t for t in node.inputs if t is not scores[0])
        return _added(scores[0], other)
    chosen = _chosen(node)
    if chosen is None or chosen.value > _EXCLUDES or not _leads_to_product(chosen.other):
        return None
    return _MaskedScores(chosen.other, chosen.mask, chosen.value)


def _added(scores: gs.Tensor, mask: gs.Tensor) -> _MaskedScores:
    """A mask that is added, as a boolean one if it is made of one."""
    values, node = constant_values(mask), producer(mask)
    if values is not None:
        if not np.any(values):
            return _MaskedScores(scores, Mask(), 0.0)
        return _MaskedScores(scores, Mask(Masking.ADDED, mask), float(values.min()))
    chosen = _chosen(node) if node is not None else None
    if chosen is None or chosen.value > _ABSORBS or scalar(chosen.other) != 0:
        return _MaskedScores(scores, Mask(Masking.ADDED, mask), math.nan)
    return _MaskedScores(scores, chosen.mask, chosen.value)


@dataclass(frozen=True, eq=False)
class _Chosen:
    """Where: the boolean, the value that it puts, and what it puts it into."""

    mask: Mask
    value: float
    other: gs.Tensor


def _chosen(node: gs.Node) -> _Chosen | None:
    if node.op != "Where" or node.domain:
        return None
    condition, yes, no = node.inputs
    found = [(scalar(yes), no, Masking.DROPPED), (scalar(no), yes, Masking.KEPT)]
    known = [(v, t, kind) for v, t, kind in found if v is not None and v < 0]
    if len(known) != 1:
        return None
    ((value, other, kind),) = known
    return _Chosen(Mask(kind, condition), value, other)


def _leads_to_product(tensor: gs.Tensor) -> bool:
    """True if the tensor is a product of two variables, cast, scaled or masked once more."""
    node = producer(tensor)
    if node is None or node.domain:
        return False
    if node.op == "MatMul":
        return len(node.inputs[0].shape or ()) > 2 and len(node.inputs[1].shape or ()) > 2
    before = _before(node)
    if before is None and node.op == "Add":
        return any(map(_leads_to_product, node.inputs))
    return before is not None and _leads_to_product(before)


def _before(node: gs.Node) -> gs.Tensor | None:
    """The tensor that a node scales, or casts from one floating-point type to another."""
    if node.op == "Cast" and not node.domain:
        source: gs.Tensor = node.inputs[0]
        return source if DType.of(source.dtype) and DType.of(node.outputs[0].dtype) else None
    return _scaled(node)


def _scaled(node: gs.Node) -> gs.Tensor | None:
    """The tensor that a node multiplies by, or divides by, a constant number."""
    if node.op not in ("Mul", "Div") or node.domain:
        return None
    numbers = [t for t in node.inputs if scalar(t) is not None]
    others: list[gs.Tensor] = [t for t in node.inputs if scalar(t) is None]
    if len(numbers) != 1 or len(others) != 1 or (node.op == "Div" and others[0] is node.inputs[1]):
        return None
    return others[0] if len(numbers[0].shape) <= len(others[0].shape or ()) else None


def _factor(node: gs.Node) -> float:
    """The number that a node multiplies by: 1 for nodes that do not."""
    if _scaled(node) is None:
        return 1.0
    (number,) = (t for t in node.inputs if scalar(t) is not None)
    values = unrounded_values(number)
    assert values is not None  # scalar has looked
    value = float(values.reshape(()))
    return value if node.op == "Mul" else 1 / value


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
        elif len(readers) == 1 and readers[0].op == "Cast" and _before(readers[0]) is tensor:
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


# --- the result, and the nodes --------------------------------------------------------------------


def _output(product: gs.Node, heads: int, size: int) -> _Output | None:
    """The transposed result, with heads and size joined if a Reshape does that alone."""
    (transpose, *others) = product.outputs[0].outputs or [None]
    if transpose is None or others or transpose.op != "Transpose":
        return None
    result = transpose.outputs[0]
    if list(transpose.attrs.get("perm", ())) != [0, 2, 1, 3]:
        return None
    apart = _Output(result, (transpose,), joined=False)
    if len(result.outputs) != 1 or result.outputs[0].op != "Reshape":
        return apart
    reshape = result.outputs[0]
    layout, joined = views.of(result), reshape.outputs[0]
    found = views.through(reshape, layout, joined) if layout is not None else None
    if layout is None or found is None or len(found.axes) != 3:
        return apart
    if found.axes[:2] != layout.axes[:2] or joined.shape[2] != heads * size:
        return apart
    return _Output(joined, (transpose, reshape), joined=True)


def _heads(q: View, k: View, v: View) -> int | str:
    """Their number; a str is a refusal's reason."""
    known = {view.heads for view in (q, k, v) if isinstance(view.heads, int)}
    if len(known) == 1:
        return known.pop()
    if known:
        return "its queries, keys and values differ in heads"
    return "its number of heads is unknown"


def _own(operands: Sequence[Followed], taken: set[gs.Node]) -> tuple[gs.Node, ...]:
    """The nodes of the views that nobody else reads."""
    nodes = dict.fromkeys(node for operand in operands for node in operand.nodes)
    while True:
        inside = {*nodes, *taken}
        kept = dict.fromkeys(
            node for node in nodes if all(r in inside for t in node.outputs for r in t.outputs)
        )
        if len(kept) == len(nodes):
            return tuple(nodes)
        nodes = kept
