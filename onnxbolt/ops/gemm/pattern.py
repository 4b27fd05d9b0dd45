"""MatMul of activations [.., K] by a constant [K, N]: which are fused, and why others are not."""

from __future__ import annotations

from functools import partial

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Link, Refusal
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import PRODUCT, Step
from onnxbolt.graph.overridable import is_input, remedy_for
from onnxbolt.ops.base import FusedOp
from onnxbolt.patterns.types import AnchorPattern, StepPattern


def anchors(op: FusedOp) -> tuple[AnchorPattern, ...]:
    """The nodes that `op` begins at."""
    return AnchorPattern(("MatMul",), partial(_match, op)), AnchorPattern(("Gemm",), _general)


def continuations(op: FusedOp) -> tuple[StepPattern, ...]:
    """Further products behind `op`."""
    return (StepPattern(("MatMul",), partial(_layer, op)),)


def _match(op: FusedOp, node: gs.Node) -> tuple[Anchor, tuple[Link, ...]] | Refusal:
    def because(reason: str, tensor: str = "", remedy: str = "") -> Refusal:
        return Refusal(node.name, node.op, reason, tensor, remedy)

    x, weight = node.inputs[0], node.inputs[1]
    if not isinstance(weight, gs.Constant):
        return because("both operands are computed at run time", weight.name, _remedy(weight))
    if isinstance(x, gs.Constant) or len(weight.shape) != 2:
        return because("the constant operand is not a right-hand [K, N] matrix", weight.name)
    dtype = DType.of(weight.dtype)
    if dtype is None or x.dtype != weight.dtype:
        return because(f"no kernel for its element type: {x.dtype}", x.name)
    if x.shape is None or len(x.shape) < 2:
        return because("the left operand's rank is unknown or below 2", x.name)
    if 0 in weight.shape or 0 in x.shape:
        return because("an empty tensor: there is nothing to compute", x.name)
    return Anchor(op, node, x, weight, dtype), ()


def _remedy(weight: gs.Tensor) -> str:
    """For an operand that no layer computes; products of two activations are as they should be."""
    return remedy_for(weight) if is_input(weight) else ""


def _general(node: gs.Node) -> Refusal:
    weight = node.inputs[1]
    return Refusal(
        node.name,
        node.op,
        "its second operand is computed at run time",
        weight.name,
        _remedy(weight),
    )


def _layer(op: FusedOp, node: gs.Node, tensor: gs.Tensor, anchor: Anchor) -> Link | None:
    """A further product behind a GEMM's epilogue."""
    found = _match(op, node) if anchor.op is op and node.inputs[0] is tensor else None
    if not isinstance(found, tuple) or found[0].dtype is not anchor.dtype:
        return None
    return Link(Step(PRODUCT), found[0].weight, (node,), node.outputs[0])
