"""Attention as all forms of it are recognized, and what each has to be for a kernel."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Refusal
from onnxbolt.dtypes import DType
from onnxbolt.graph.windows import Windows
from onnxbolt.ops.attention import results
from onnxbolt.ops.attention.scales import factor
from onnxbolt.ops.attention.views import ROWS, Arrange, Followed, View
from onnxbolt.ops.base import FusedOp
from onnxbolt.problems import MAX_HEAD

# a refusal's reason: Gemma 2's attn_logit_softcapping, and softcap of ONNX's operator
CAPPED = "its scores are capped by Tanh, which no attention kernel computes"


class Masking(enum.Enum):
    """How a mask changes scores."""

    NONE = ""
    ADDED = "added"  # it is added to them
    KEPT = "kept"  # a boolean: false excludes a key
    DROPPED = "dropped"  # a boolean: true excludes a key


class Masked(enum.Enum):
    """The answer for a query whose keys are all excluded."""

    PLAIN = "plain"  # the mean of all values: an excluded score is a large finite number
    ZERO = "zero"  # zeros
    NAN = "nan"  # NaN, as softmax answers for -inf


@dataclass(frozen=True)
class Band:
    """The keys that a query reads: query i reads key j only if first <= j - i - shift <= last, and
    None is no bound. A causal band has last = 0. `shift` is keys - queries if the band is
    `at_end`, which aligns the last query with the last key, else 0."""

    first: int | None = None
    last: int | None = None
    at_end: bool = False

    def __bool__(self) -> bool:
        """True if it excludes keys."""
        return self.first is not None or self.last is not None


ALL = Band()


@dataclass(frozen=True, eq=False)
class Mask:
    """A mask that broadcasts to the scores [batch, heads, queries, keys], and a band; a key that
    either excludes is excluded. One with a `period` has so many batches, and then begins again."""

    kind: Masking = Masking.NONE
    tensor: gs.Tensor | None = None
    band: Band = ALL
    period: int = 0


@dataclass(frozen=True, eq=False)
class ScaledDotProduct:
    """softmax(scale q k^T, masked) v; the output is [batch, queries, heads, size] in memory,
    `joined`: with heads and size as one axis. `key_heads` divides `heads`: head h reads the keys
    and values of head h / (heads / key_heads)."""

    q: View
    k: View
    v: View
    heads: int
    key_heads: int
    scale: float
    mask: Mask
    masked: Masked
    output: gs.Tensor
    joined: bool
    # q, k, v and the output are images, whose windows are the batches
    windows: Windows | None = None


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

    @property
    def strided(self) -> tuple[View, ...]:
        """Queries, keys and values that lie in rows."""
        found = self.attention
        return tuple(view for view in (found.q, found.k, found.v) if view.order == ROWS)


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of an attention as they were found; None for what was not."""

    operands: tuple[Followed | None, Followed | None, Followed | None]  # q, k and v
    scale: float  # without that of nodes between operands and their tensors
    mask: Mask
    masked: Masked
    nodes: tuple[gs.Node, ...]  # from the first product to the second
    y: gs.Tensor
    arrange: Arrange  # how y becomes [batch, heads, queries, size]
    grouped: bool = False  # neighbouring heads of queries may share those of keys and values


def assembled(op: FusedOp, node: gs.Node, parts: Parts) -> AttentionAnchor | Refusal:
    """The anchor of `op` at `node`, or why no kernel computes these parts."""
    followed = [operand for operand in parts.operands if operand is not None]
    if len(followed) < len(parts.operands):
        reason = "its queries, keys or values do not lie with a head's elements side by side"
        return Refusal(node.name, node.op, reason)
    q, k, v = (operand.view for operand in followed)
    heads, dtype = _heads(q, k, v, parts.grouped), DType.of(q.tensor.dtype)
    if isinstance(heads, str):
        return Refusal(node.name, node.op, heads)
    if dtype is None or any(view.tensor.dtype != q.tensor.dtype for view in (k, v)):
        reason = f"no kernel for its element type: {q.tensor.dtype}"
        return Refusal(node.name, node.op, reason, q.tensor.name)
    if max(q.size, v.size) > MAX_HEAD:
        reason = f"no kernel has heads of more than {MAX_HEAD} elements"
        return Refusal(node.name, node.op, reason, q.tensor.name)
    if not _fits(parts.mask, q, k, heads[0]):
        return Refusal(node.name, node.op, "its mask has other batches or heads than its scores")
    output = results.output(parts.y, parts.arrange, q, heads[0])
    if output is None:
        reason = "its result is not brought to [batch, queries, heads, size]"
        return Refusal(node.name, node.op, reason)
    if output.tensor.dtype != q.tensor.dtype:
        reason = "its result has another element type than its operands"
        return Refusal(node.name, node.op, reason, output.tensor.name)
    scale = parts.scale * math.prod(factor(n) for operand in followed[:2] for n in operand.nodes)
    if not scale > 0:
        return Refusal(node.name, node.op, "its scale is not positive")
    found = ScaledDotProduct(
        q, k, v, *heads, scale, parts.mask, parts.masked, output.tensor, output.joined
    )
    middle = (*parts.nodes, *output.nodes)
    others = (*_own(followed, {node, *middle}), *middle)
    return AttentionAnchor(op, node, q.tensor, None, dtype, others=others, attention=found)


def _heads(q: View, k: View, v: View, grouped: bool) -> tuple[int, int] | str:
    """The number of heads, and that of keys and values; a str is a refusal's reason."""
    if k.heads != v.heads or k.copies != v.copies or q.copies != 1:
        known = {view.heads for view in (q, k, v) if isinstance(view.heads, int)}
        if len(known) != 1 or {q.copies, k.copies, v.copies} != {1}:
            return "its queries, keys and values differ in heads"
        (only,) = known
        return (only, only)
    heads = q.heads if isinstance(q.heads, int) else k.heads
    if not isinstance(heads, int):
        return "its number of heads is unknown"
    key_heads = k.heads if isinstance(k.heads, int) else heads // k.copies
    shared = heads % (key_heads * k.copies) == 0 if grouped else key_heads == 1
    if key_heads * k.copies != heads and not shared:
        return "its queries, keys and values differ in heads"
    return (heads, key_heads)


def _fits(mask: Mask, q: View, k: View, heads: int) -> bool:
    """False if a mask has a known number of batches or heads that the scores have not."""
    shape = () if mask.tensor is None else tuple(mask.tensor.shape)
    batches = {1, q.batch, k.batch} if not mask.period else {shape[0]}
    known = all(isinstance(size, int) for size in (q.batch, k.batch))
    if len(shape) == 4 and known and isinstance(shape[0], int) and shape[0] not in batches:
        return False
    return len(shape) < 3 or not isinstance(shape[-3], int) or shape[-3] in (1, heads)


def _own(operands: Sequence[Followed], taken: set[gs.Node]) -> tuple[gs.Node, ...]:
    """The nodes of the views that nobody else reads, and that make no tensor that is viewed."""
    read = {operand.view.tensor.name for operand in operands}
    nodes = dict.fromkeys(
        node
        for operand in operands
        for node in operand.nodes
        if read.isdisjoint(tensor.name for tensor in node.outputs)
    )
    while True:
        inside = {*nodes, *taken}
        kept = dict.fromkeys(
            node for node in nodes if all(r in inside for t in node.outputs for r in t.outputs)
        )
        if len(kept) == len(nodes):
            return tuple(nodes)
        nodes = kept
