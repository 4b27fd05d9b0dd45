"""The nodes at which attention begins."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from onnxbolt.canonicalize import attention_form
from onnxbolt.domains import CONTRIB, INTERNAL
from onnxbolt.ops.attention import decomposed, operators, periodic, rotary, windows
from onnxbolt.ops.base import FusedOp
from onnxbolt.patterns.types import AnchorPattern

_CONTAINERS = (
    "Attention",
    "DecoderMaskedMultiHeadAttention",
    "GroupQueryAttention",
    "MultiHeadAttention",
    "PackedAttention",
    "PackedMultiHeadAttention",
    "QAttention",
)


def anchors(op: FusedOp) -> tuple[AnchorPattern, ...]:
    """The softmax of several nodes, and the operators that are attention by themselves, with
    windows of images around them, and masks that repeat; rotary embeddings, which are refused."""
    attentions = (
        replace(form, match=periodic.past(windows.past(form.match))) for form in _forms(op)
    )
    return (*attentions, *rotary.anchors())


def _forms(op: FusedOp) -> tuple[AnchorPattern, ...]:
    return (
        AnchorPattern(("Softmax",), partial(decomposed.match, op)),
        AnchorPattern(("Attention",), partial(operators.standard, op)),
        AnchorPattern((attention_form.OP,), partial(operators.divided, op), INTERNAL),
        AnchorPattern(_CONTAINERS, partial(operators.contained, op), CONTRIB),
    )
