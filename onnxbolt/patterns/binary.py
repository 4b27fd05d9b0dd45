"""Add, Sub, Mul, Div and PRelu with a channel vector, a scalar, or a tensor of the output's shape.

x + c, x - c, x * c, x / c with a constant c become the steps Bias and Scale with a float32 vector;
a tensor of the same shape becomes Add (residual) or Mul (gate).
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Link
from onnxbolt.epilogues import Step
from onnxbolt.patterns.types import StepPattern


def channel_vector(constant: gs.Constant, tensor: gs.Tensor, anchor: Anchor) -> np.ndarray | None:
    """`constant` as float32 [channels] where it broadcasts over `tensor` along the output
    channels alone, else None."""
    channels, rank = anchor.channels, len(tensor.shape)
    axis = anchor.channel_axis(rank)
    shape = (1,) * (rank - len(constant.shape)) + tuple(constant.shape)
    if (
        len(shape) > rank
        or any(dim != 1 for i, dim in enumerate(shape) if i != axis)
        or shape[axis] not in (1, channels)
    ):
        return None
    return np.ascontiguousarray(
        np.broadcast_to(constant.values.astype(np.float32).reshape(-1), (channels,))
    )


def _match(node: gs.Node, tensor: gs.Tensor, anchor: Anchor) -> Link | str | None:
    if tensor.shape is None or len(node.inputs) != 2 or node.inputs[0] is node.inputs[1]:
        return None
    left = node.inputs[0] is tensor
    other = node.inputs[1] if left else node.inputs[0]
    if isinstance(other, gs.Constant):
        return _constant(node, tensor, anchor, other, left)
    if node.op not in ("Add", "Mul"):
        return None
    if other.shape is None or list(other.shape) != list(tensor.shape) or None in tensor.shape:
        return (
            f"its other operand's shape is not known to be the result's: {other.name} {other.shape}"
            f" and {tensor.shape}"
        )
    if other.dtype != tensor.dtype:
        return f"its other operand has another element type: {other.name} {other.dtype}"
    return Link(Step(node.op), other, (node,), node.outputs[0])


def _constant(
    node: gs.Node, tensor: gs.Tensor, anchor: Anchor, constant: gs.Constant, left: bool
) -> Link | str | None:
    vector = channel_vector(constant, tensor, anchor)
    if vector is None:
        return f"its constant is no channel vector: {constant.name} {list(constant.shape)}"
    if node.op == "PRelu":
        return _link("PRelu", vector, constant, node) if left else None
    if node.op in ("Sub", "Div") and not left:
        return None  # c - x and c / x
    if node.op == "Div" and not np.all(vector):
        return f"its constant divisor holds a zero: {constant.name}"
    if node.op == "Div" and not np.all(np.isfinite(_reciprocal(vector))):
        return f"its constant divisor has no finite reciprocal: {constant.name}"
    step, negate, invert = {
        "Add": ("Bias", 0, 0),
        "Sub": ("Bias", 1, 0),
        "Mul": ("Scale", 0, 0),
        "Div": ("Scale", 0, 1),
    }[node.op]
    vector = -vector if negate else _reciprocal(vector) if invert else vector
    return _link(step, vector.astype(np.float32), constant, node)


def _reciprocal(vector: np.ndarray) -> np.ndarray:
    """1 / vector, infinite where the divisor is denormal."""
    with np.errstate(over="ignore"):
        return 1 / vector


def _link(step: str, vector: np.ndarray, constant: gs.Constant, node: gs.Node) -> Link:
    # a detached constant: rewriting stores it under a name of its own
    return Link(Step(step), gs.Constant(constant.name, vector), (node,), node.outputs[0])


STEPS = (StepPattern(("Add", "Sub", "Mul", "Div", "PRelu"), _match),)
