"""Operators that are attention by themselves: ONNX's, and what canonicalization makes of ONNX
Runtime's (canonicalize/attention_form.py)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.candidates import Refusal
from onnxbolt.graph.edit import optional
from onnxbolt.ops.attention import masks, views
from onnxbolt.ops.attention.found import CAPPED, Band, Mask, Masked, Parts, assembled
from onnxbolt.ops.attention.lengths import Size, sizes
from onnxbolt.ops.attention.masks import Operand
from onnxbolt.ops.attention.positions import Frame
from onnxbolt.ops.attention.products import Attempt, Operands
from onnxbolt.ops.attention.scales import exact, widened
from onnxbolt.ops.attention.views import Followed
from onnxbolt.ops.base import FusedOp
from onnxbolt.patterns.types import Match

# ONNX Runtime takes this number for -inf where it is added
_LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True, eq=False)
class _Given:
    """The meaning of an operator's attributes and inputs."""

    heads: tuple[int, int]  # the numbers of queries' and of keys' heads; 0: their tensors tell
    mask: gs.Tensor | None  # it is added, or a boolean that keeps keys
    band: Band
    past: Sequence[int]  # inputs for earlier keys, and what belongs to them
    zeros: bool  # the answer for a query without keys is zeros


def standard(op: FusedOp, node: gs.Node) -> Match:
    """Attention of opset 23 and 24. Its rows without keys are zeros, and its causal mask aligns the
    first query with the first key (ONNX, Attention)."""
    attrs = node.attrs
    if attrs.get("softcap", 0.0):
        return Refusal(node.name, node.op, CAPPED)
    heads = int(attrs.get("q_num_heads", 0)), int(attrs.get("kv_num_heads", 0))
    band = Band(last=0) if attrs.get("is_causal", 0) else Band()
    return _matched(op, node, _Given(heads, optional(node.inputs, 3), band, (4, 5, 6), zeros=True))


def attempts(node: gs.Node) -> Iterator[Attempt]:
    """The way to read attention of opset 23 and 24 whose result is [batch, heads, queries, size]:
    one, or none."""
    y = node.outputs[0]
    if len(y.shape or ()) == 4:
        q, k, v = node.inputs[:3]
        own = views.by_heads()
        yield Attempt(Operands(q, k, v, (own, own, own), own), y, 0)


def divided(op: FusedOp, node: gs.Node) -> Match:
    """Attention without the projections and masks of an operator of ONNX Runtime."""
    attrs, window = node.attrs, int(node.attrs.get("window", 0))
    heads = int(attrs["q_num_heads"]), int(attrs["kv_num_heads"])
    band = Band(1 - window if window else None, 0 if attrs["is_causal"] else None)
    zeros = bool(attrs.get("zeros", 0))
    return _matched(op, node, _Given(heads, optional(node.inputs, 3), band, (), zeros))


def contained(op: FusedOp, node: gs.Node) -> Refusal:
    """ONNX Runtime's operators that hold more than attention: their projections, or past keys."""
    more = f"{node.op} of ONNX Runtime holds projections or past keys beside attention"
    return Refusal(
        node.name,
        node.op,
        getattr(node, "refused", more),
        remedy="give onnxbolt the model that the exporter wrote, before ONNX Runtime's optimizer",
    )


def _matched(op: FusedOp, node: gs.Node, given: _Given) -> Match:
    if any(optional(node.inputs, index) is not None for index in given.past):
        return Refusal(node.name, node.op, "it has past keys")
    if any(output.name and output.outputs for output in node.outputs[1:]):
        return Refusal(node.name, node.op, "its keys, values or scores are read elsewhere, too")
    q, k, v = node.inputs[:3]
    rows = [views.by_rows(heads) for heads in given.heads]
    operands = (
        views.follow(q, rows[0], exact),
        views.follow(k, rows[1], exact),
        views.follow(v, rows[1], widened),
    )
    found = _masks(node, given, operands)
    if isinstance(found, str):
        return Refusal(node.name, node.op, found)
    size = operands[0].view.size if operands[0] is not None else 1
    scale = float(node.attrs.get("scale", 0.0)) or size**-0.5
    y = node.outputs[0]
    parts = Parts(operands, scale, *found, (node,), y, rows[0], grouped=True)
    anchor = assembled(op, node, parts)
    return anchor if isinstance(anchor, Refusal) else (anchor, ())


def _masks(
    node: gs.Node, given: _Given, operands: tuple[Followed | None, Followed | None, Followed | None]
) -> tuple[Mask, Masked] | str:
    """The mask with the band, and the answer for a query without keys; a str is a refusal's
    reason."""
    q, k, _ = operands
    queries, keys = ("" if each is None else each.view.positions for each in (q, k))
    frame = Frame(queries, keys)
    given_masks = list[tuple[Operand, float, Frame]]()
    if given.mask is not None:
        if not node.domain and not _as_long(given.mask, keys):
            return "its mask may be shorter than its keys"
        puts = -math.inf if given.mask.dtype == np.bool_ else None
        given_masks = [(Operand(node, node.outputs[0], given.mask, puts), 1.0, frame)]
    found = masks.joined(given_masks, given.band)
    if isinstance(found, str):
        return found
    masked = found.masked(frame, given.zeros)
    lowest = given.zeros and found.lowest == _LOWEST
    return found.mask, Masked.ZERO if lowest else masked


def _as_long(mask: gs.Tensor, keys: Size) -> bool:
    """True if the mask is known to have every key: opset 24 excludes keys beyond its end."""
    return bool(mask.shape) and sizes(mask)[-1] == keys
