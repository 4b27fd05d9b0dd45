"""The nodes at which attention begins."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from onnxbolt.domains import CONTRIB
from onnxbolt.ops.attention import decomposed, operators, periodic, windows
from onnxbolt.ops.base import FusedOp
from onnxbolt.patterns.types import AnchorPattern

_CONTAINERS = (
    "Attention",
    "DecoderMaskedMultiHeadAttention",
    "GroupQueryAttention",
    "PackedAttention",
    "PackedMultiHeadAttention",
)


def anchors(op: FusedOp) -> tuple[AnchorPattern, ...]:
    """The softmax of several nodes, and the operators that are attention by themselves, with
    windows of images around them, and masks that repeat."""
    return tuple(
        replace(form, match=periodic.past(windows.past(form.match))) for form in _forms(op)
    )


def _forms(op: FusedOp) -> tuple[AnchorPattern, ...]:
    return (
        AnchorPattern(("Softmax",), partial(decomposed.match, op)),
        AnchorPattern(("Attention",), partial(operators.standard, op)),
        AnchorPattern(("MultiHeadAttention",), partial(operators.multi_head, op), CONTRIB),
        AnchorPattern(_CONTAINERS, partial(operators.contained, op), CONTRIB),
    )
