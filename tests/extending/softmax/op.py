"""A fused op: softmax over the last axis of x times a constant."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx_graphsurgeon as gs
from onnx import AttributeProto

from onnxbolt.candidates import Anchor, Candidate, Link, Refusal
from onnxbolt.dtypes import DType
from onnxbolt.ops.base import FusedOp, Operation, Signature, Sizes, Stored, Tensors
from onnxbolt.ops.body import AttributeType, Body
from onnxbolt.patterns.types import AnchorPattern
from tests.extending.softmax.problem import ScaledSoftmaxProblem


class ScaledSoftmax(FusedOp):
    """x [.., C] to y [.., C]; the anchor's constant is the scale."""

    name, op_type = "scaled_softmax", "ScaledSoftmax"
    problem_type = ScaledSoftmaxProblem

    def anchors(self) -> Sequence[AnchorPattern]:
        """The multiplication."""
        return (AnchorPattern(("Mul",), self._match),)

    def _match(self, node: gs.Node) -> tuple[Anchor, tuple[Link, ...]] | Refusal | None:
        scales = [t for t in node.inputs if isinstance(t, gs.Constant) and math.prod(t.shape) == 1]
        others = [t for t in node.inputs if not isinstance(t, gs.Constant)]
        readers = node.outputs[0].outputs
        if len(scales) != 1 or len(others) != 1 or [reader.op for reader in readers] != ["Softmax"]:
            return None
        (x,), (softmax,), dtype = others, readers, DType.of(scales[0].dtype)
        if dtype is None or not x.shape or not isinstance(x.shape[-1], int) or not x.shape[-1]:
            reason = "no kernel for its element type, or for rows of unknown length"
            return Refusal(node.name, node.op, reason, x.name)
        if softmax.attrs.get("axis", -1) not in (-1, len(x.shape) - 1):
            return Refusal(softmax.name, softmax.op, "it is not over the last axis", x.name)
        return Anchor(self, node, x, None, dtype, (scales[0],), (softmax,)), ()

    def channels(self, anchor: Anchor) -> int:
        """Columns of x."""
        return int(anchor.x.shape[-1])

    def problem(
        self, candidate: Candidate, sizes: Sizes, stored: Stored | None
    ) -> ScaledSoftmaxProblem:
        """Rows are all axes of x but the last one."""
        *rows, columns = sizes(candidate.anchor.x)
        dtype = candidate.anchor.dtype
        return ScaledSoftmaxProblem(math.prod(rows), columns, dtype, dtype)

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attribute `scale`."""
        anchor = candidate.anchor
        (scale,) = anchor.constants
        assert scale is not None  # the pattern has found it
        return Operation(
            Signature(self, anchor.dtype),
            [tensors.get(anchor.x, stored.reads)],
            {"scale": float(scale.values.item())},
        )

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """The scale."""
        return {"scale": AttributeProto.FLOAT}

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """Mul and Softmax, as in the source."""
        scale = body.convert(body.given("scale", AttributeProto.FLOAT), DType.F32, body.dtype)
        return body("Softmax", [body("Mul", [body.load("x"), scale])], axis=-1)
