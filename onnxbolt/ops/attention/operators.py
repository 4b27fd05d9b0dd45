"""Operators that are attention by themselves: ONNX's, and ONNX Runtime's MultiHeadAttention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.candidates import Refusal
from onnxbolt.ops.attention import views
from onnxbolt.ops.attention.found import Mask, Masked, Masking, Parts, assembled
from onnxbolt.ops.attention.scales import scaled
from onnxbolt.ops.attention.views import Followed
from onnxbolt.ops.base import FusedOp
from onnxbolt.patterns.types import Match


def standard(op: FusedOp, node: gs.Node) -> Match:
    """Attention of opset 23 and 24. Its rows without keys are zeros."""
    attrs = node.attrs
    if attrs.get("is_causal", 0):
        return Refusal(node.name, node.op, "its mask is causal")
    if attrs.get("softcap", 0.0):
        return Refusal(node.name, node.op, "its scores are capped")
    heads = attrs.get("q_num_heads", 0), attrs.get("kv_num_heads", 0)
    mask = Mask()
    if (given := _input(node, 3)) is not None:
        mask = Mask(Masking.KEPT if given.dtype == np.bool_ else Masking.ADDED, given)
    return _matched(op, node, heads, mask, past=(4, 5, 6))


def multi_head(op: FusedOp, node: gs.Node) -> Match:
    """MultiHeadAttention without bias and mask."""
    if any(_input(node, index) is not None for index in (3, 4, 5)) or _input(node, 2) is None:
        return Refusal(node.name, node.op, "it has a bias or a mask, or its projections are packed")
    heads = node.attrs.get("num_heads", 0)
    if node.attrs.get("unidirectional", 0):
        return Refusal(node.name, node.op, "its mask is causal")
    return _matched(op, node, (heads, heads), Mask(), past=(6, 7, 8, 9))


def _matched(
    op: FusedOp, node: gs.Node, heads: tuple[int, int], mask: Mask, past: Sequence[int]
) -> Match:
    if any(_input(node, index) is not None for index in past):
        return Refusal(node.name, node.op, "it has past keys")
    if any(output.name and output.outputs for output in node.outputs[1:]):
        return Refusal(node.name, node.op, "its keys, values or scores are read elsewhere, too")
    q, k, v = node.inputs[:3]
    operands = (
        views.follow(q, scaled, heads=heads[0]),
        views.follow(k, scaled, heads=heads[1]),
        views.follow(v, heads=heads[1]),
    )
    if mask.tensor is not None and not _as_long(mask.tensor, operands[1]):
        return Refusal(node.name, node.op, "its mask may be shorter than its keys")
    size = operands[0].view.size if operands[0] is not None else 1
    scale = node.attrs.get("scale", 0.0) or size**-0.5
    masked = Masked.PLAIN if mask.kind is Masking.NONE else Masked.ZERO
    found = assembled(op, node, Parts(operands, scale, mask, masked, (node,), node))
    return found if isinstance(found, Refusal) else (found, ())


def _as_long(mask: gs.Tensor, keys: Followed | None) -> bool:
    """True if the mask is known to have every key: opset 24 excludes keys beyond its end."""
    return bool(mask.shape) and keys is not None and views.sizes(mask)[-1] == keys.view.positions


def _input(node: gs.Node, index: int) -> gs.Tensor | None:
    """An optional input, if the node has it."""
    found = node.inputs[index] if index < len(node.inputs) else None
    return found if found is not None and found.name else None
