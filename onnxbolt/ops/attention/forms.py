"""The forms of attention in ONNX: around a softmax, or an operator by itself."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from onnxbolt.ops.attention import decomposed, operators
from onnxbolt.ops.attention.products import Attempt
from onnxbolt.ops.base import FusedOp
from onnxbolt.patterns.types import Match


def is_softmax(node: gs.Node) -> bool:
    """True for a softmax whose probabilities weigh values."""
    return node.op == "Softmax" and not node.domain and decomposed.is_weighing(node)


def is_operator(node: gs.Node) -> bool:
    """True for ONNX's operator."""
    return node.op == "Attention" and not node.domain


def match(op: FusedOp, node: gs.Node) -> Match:
    """The attention that begins at a softmax or an operator."""
    return operators.standard(op, node) if is_operator(node) else decomposed.match(op, node)


def attempts(node: gs.Node) -> Iterator[Attempt]:
    """The ways to read it."""
    return operators.attempts(node) if is_operator(node) else decomposed.attempts(node)
