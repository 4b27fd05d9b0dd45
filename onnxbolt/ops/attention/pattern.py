"""The nodes at which attention begins."""

from __future__ import annotations

from functools import partial

from onnxbolt.ops.attention import decomposed, operators
from onnxbolt.ops.base import FusedOp
from onnxbolt.patterns.types import AnchorPattern


def anchors(op: FusedOp) -> tuple[AnchorPattern, ...]:
    """The softmax of several nodes, and the operators that are attention by themselves."""
    return (
        AnchorPattern(("Softmax",), partial(decomposed.match, op)),
        AnchorPattern(("Attention",), partial(operators.standard, op)),
        AnchorPattern(("MultiHeadAttention",), partial(operators.multi_head, op), "com.microsoft"),
    )
