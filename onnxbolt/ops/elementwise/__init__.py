"""An epilogue by itself: elementwise nodes that no product stands in front of, in NHWC; without
steps a copy."""

from __future__ import annotations

from onnxbolt.candidates import Candidate
from onnxbolt.ops.base import FusedOp, Operation, Signature, Stored, Tensors
from onnxbolt.ops.body import Body, epilogue
from onnxbolt.ops.products import operands


class Elementwise(FusedOp):
    """x [.., C] to y [.., C]."""

    name, op_type = "elementwise", "FusedElementwise"
    channels_last = True
    takes_epilogue = True

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attribute `epilogue_params`."""
        anchor = candidate.anchor
        x = tensors.get(anchor.x, stored.reads)
        return Operation(
            Signature(self, anchor.dtype, 0, candidate.epilogue),
            [x, *operands(candidate, (stored.writes,), tensors)],
            candidate.parameters,
        )

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """The steps."""
        names = self.inputs(signature)
        return epilogue(body, signature.steps, opset, body.load("x"), names)
