"""Channels moved to pixels and back in NHWC (ONNX DepthToSpace, SpaceToDepth)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import onnx_graphsurgeon as gs
from onnx import AttributeProto

from onnxbolt.candidates import Anchor, Candidate
from onnxbolt.forms import CHANNELS_LAST, FIRST_TO_LAST, LAST_TO_FIRST, Form
from onnxbolt.ops.base import FusedOp, Operation, Replacement, Signature, Stored, Tensors
from onnxbolt.ops.body import AttributeType, Body, epilogue
from onnxbolt.ops.products import operands

BY_CHANNEL = "CRD"  # the mode in which the pixels of a channel lie behind one another


class PixelShuffle(FusedOp):
    """x [N, H, W, C] to y [N, P, Q, K], and an epilogue; variants are ONNX's modes."""

    operator: ClassVar[str]  # ONNX's operator
    has_mode: ClassVar[bool] = False
    channels_last = True
    takes_epilogue = True
    takes_cast = True
    skips_padding = True

    def replacement(self, node: gs.Node) -> Replacement | None:
        """The size of a block, and the order of its channels."""
        mode, block = str(node.attrs.get("mode", "DCR")), int(node.attrs.get("blocksize", 0))
        y = node.outputs[0].shape
        if block < 1 or y is None or not isinstance(y[1], int):
            return None
        return Replacement({"blocksize": block, "by_channel": int(mode == BY_CHANNEL)}, mode)

    def channels(self, anchor: Anchor) -> int:
        """Those of the result."""
        return int(anchor.output.shape[1])

    def forms_of(self, node: gs.Node, form: Form) -> tuple[Form, Form]:
        """x without padding, or with padding behind its channels, which stays unread."""
        count = int(node.inputs[0].shape[1])
        ordered = form.channels is None or form.channels[:count] == tuple(range(count))
        return form if ordered else CHANNELS_LAST, CHANNELS_LAST

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attributes `blocksize`, `by_channel` and `epilogue_params`."""
        found = super().operation(candidate, stored, tensors)
        further = operands(candidate, (stored.writes,), tensors)
        return Operation(found.signature, [*found.inputs, *further], found.attributes)

    def words(self, signature: Signature) -> Sequence[str]:
        """The mode, where there are two."""
        return [str(signature.variant).lower()] if self.has_mode else []

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """That of ONNX."""
        return {"blocksize": AttributeProto.INT}

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """The operator on NCHW, then the epilogue."""
        x = body("Transpose", [body.load("x")], perm=LAST_TO_FIRST[4])
        modes = {"mode": str(signature.variant)} if self.has_mode else {}
        result = body(self.operator, [x], **modes)
        body.refer(self.attributes(signature))
        result = body("Transpose", [result], perm=FIRST_TO_LAST[4])
        return epilogue(body, signature.steps, opset, result, self.inputs(signature))


class DepthToSpace(PixelShuffle):
    """A block of pixels of each pixel's channels."""

    name, op_type, operator = "depth_to_space", "DepthToSpace_nhwc", "DepthToSpace"
    operators = ("DepthToSpace",)
    has_mode = True


class SpaceToDepth(PixelShuffle):
    """The channels of one pixel of each block of pixels."""

    name, op_type, operator = "space_to_depth", "SpaceToDepth_nhwc", "SpaceToDepth"
    operators = ("SpaceToDepth",)
