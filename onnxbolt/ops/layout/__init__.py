"""Layout conversions: NCHW to NHWC and back, with padding of the channels (a Transpose of ONNX)."""

from __future__ import annotations

from onnx import NodeProto

from onnxbolt.forms import FIRST_TO_LAST, LAST_TO_FIRST
from onnxbolt.ops.base import FusedOp, Signature
from onnxbolt.ops.body import Body, epilogue


class ToNhwc(FusedOp):
    """x [N, C, *spatial] to y [N, *spatial, C + padding]; a Cast may be the only step behind it."""

    name, op_type = "to_nhwc", "NchwToNhwc"

    def in_both_layouts(self, node: NodeProto) -> tuple[str, str] | None:
        """x and y."""
        return node.input[0], node.output[0]

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """Transpose, and zeros behind the channels."""
        perm = FIRST_TO_LAST[signature.rank]
        result = body("Transpose", [body.load("x")], perm=perm)
        if signature.padding:
            pads = [0] * (2 * signature.rank - 1)
            result = body("Pad", [result, body.ints(*pads, signature.padding)])
        return epilogue(body, signature.steps, opset, result)


class ToNchw(FusedOp):
    """x [N, *spatial, C + padding] to y [N, C, *spatial]; a Cast may be the only step behind it."""

    name, op_type = "to_nchw", "NhwcToNchw"

    def in_both_layouts(self, node: NodeProto) -> tuple[str, str] | None:
        """y and x."""
        return node.output[0], node.input[0]

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """Transpose, and the channels without the padding behind them."""
        perm = LAST_TO_FIRST[signature.rank]
        result = body("Transpose", [body.load("x")], perm=perm)
        if signature.padding:
            ends = body.ints(0), body.ints(-signature.padding), body.ints(1)
            result = body("Slice", [result, *ends])
        return epilogue(body, signature.steps, opset, result)
