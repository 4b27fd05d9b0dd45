"""Nodes that multiply by a number, or cast from one floating-point type to another."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.dtypes import DType
from onnxbolt.graph.edit import scalar, unrounded_values


def before(node: gs.Node) -> gs.Tensor | None:
    """The tensor that a node scales, or casts from one floating-point type to another."""
    if node.op == "Cast" and not node.domain:
        source: gs.Tensor = node.inputs[0]
        return source if DType.of(source.dtype) and DType.of(node.outputs[0].dtype) else None
    return scaled(node)


def widened(node: gs.Node) -> gs.Tensor | None:
    """The tensor of 16 bits that a node casts to 32."""
    source = before(node) if node.op == "Cast" else None
    return source if source is not None and node.outputs[0].dtype == np.float32 else None


def exact(node: gs.Node) -> gs.Tensor | None:
    """The tensor that a node scales, or casts from 16 bits to 32. A Cast to 16 bits ends the way
    back: what is before it has a type that other operands may not have."""
    return widened(node) or scaled(node)


def scaled(node: gs.Node) -> gs.Tensor | None:
    """The tensor that a node multiplies by, or divides by, a constant number other than 0."""
    if node.op not in ("Mul", "Div") or node.domain:
        return None
    numbers = [t for t in node.inputs if scalar(t) is not None]
    others: list[gs.Tensor] = [t for t in node.inputs if scalar(t) is None]
    if (
        len(numbers) != 1
        or len(others) != 1
        or not scalar(numbers[0])
        or (node.op == "Div" and others[0] is node.inputs[1])
    ):
        return None
    return others[0] if len(numbers[0].shape) <= len(others[0].shape or ()) else None


def factor(node: gs.Node) -> float:
    """The number that a node multiplies by: 1 for nodes that do not."""
    if scaled(node) is None:
        return 1.0
    (number,) = (t for t in node.inputs if scalar(t) is not None)
    values = unrounded_values(number)
    assert values is not None  # scalar has looked
    value = float(values.reshape(()))
    return value if node.op == "Mul" else 1 / value
