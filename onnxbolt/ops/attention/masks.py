"""Masks of scores: added, or put by Where."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import constant_values, producer, scalar
from onnxbolt.ops.attention.found import Mask, Masking
from onnxbolt.ops.attention.scales import before

_ABSORBS = -1e30  # a score plus such a value, or a lower one, is this value
_EXCLUDES = -6.5e4  # a key with such a score, or a lower one, has no weight: fp16 ends at -65504


@dataclass(frozen=True, eq=False)
class MaskedScores:
    """Scores before a mask, and the mask."""

    tensor: gs.Tensor  # the scores
    mask: Mask
    lowest: float  # the least value that the mask adds or puts; NaN: unknown


def masked_scores(node: gs.Node) -> MaskedScores | None:
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
    return MaskedScores(chosen.other, chosen.mask, chosen.value)


def _added(scores: gs.Tensor, mask: gs.Tensor) -> MaskedScores:
    """A mask that is added, as a boolean one if it is made of one."""
    values, node = constant_values(mask), producer(mask)
    if values is not None:
        if not np.any(values) and _keeps_shape(scores, mask):
            return MaskedScores(scores, Mask(), 0.0)
        return MaskedScores(scores, Mask(Masking.ADDED, mask), float(values.min()))
    chosen = _chosen(node) if node is not None else None
    if chosen is None or chosen.value > _ABSORBS or scalar(chosen.other) != 0:
        return MaskedScores(scores, Mask(Masking.ADDED, mask), math.nan)
    boolean = replace(chosen.mask, made_by=(node,))
    return MaskedScores(scores, boolean, chosen.value)


def _keeps_shape(scores: gs.Tensor, mask: gs.Tensor) -> bool:
    """True if adding the mask makes no more scores."""
    pairs = zip(reversed(mask.shape), reversed(scores.shape or ()), strict=False)
    return all(size in (1, known) for size, known in pairs)


@dataclass(frozen=True, eq=False)
class _Chosen:
    """A Where: the boolean, the number that it puts, and the tensor that it puts it into."""

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
    source = before(node)
    if source is None and node.op == "Add":
        return any(map(_leads_to_product, node.inputs))
    return source is not None and _leads_to_product(source)
