"""Resizing of images in NHWC (ONNX Resize)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import AttributeProto

from onnxbolt.forms import FIRST_TO_LAST, LAST_TO_FIRST
from onnxbolt.ops.base import FusedOp, Signature
from onnxbolt.ops.body import AttributeType, Body, epilogue
from onnxbolt.sampling import Sampling

_CUBIC = {"cubic_coeff_a": AttributeProto.FLOAT, "exclude_outside": AttributeProto.INT}
_FACTORS = {"scales": AttributeProto.FLOATS, "sizes": AttributeProto.INTS}


class Resize(FusedOp):
    """x [N, H, W, C] to y [N, P, Q, C]; variants are `Sampling`s."""

    name, op_type = "resize", "Resize_nhwc"
    channels_last = True

    def words(self, signature: Signature) -> Sequence[str]:
        """How it samples."""
        return _sampling(signature).words

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """The factors of height and width, and those of cubic weights."""
        sampling = _sampling(signature)
        return {sampling.by: _FACTORS[sampling.by], **_others(sampling)}

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """Resize of NCHW; the node says what becomes of height and width, images and channels
        stay."""
        sampling = _sampling(signature)
        x = body("Transpose", [body.load("x")], perm=LAST_TO_FIRST[4])
        if sampling.by == "scales":
            ones = body("Constant", [], value_floats=[1.0, 1.0])
            scales = body("Concat", [ones, body.given("scales", AttributeProto.FLOATS)], axis=0)
            inputs = [x, "", scales]
        else:
            kept = body("Slice", [body("Shape", [x]), body.ints(0), body.ints(2)])
            inputs = [x, "", "", body("Concat", [kept, body.given("sizes")], axis=0)]
        result = body(
            "Resize",
            inputs,
            mode=sampling.mode,
            coordinate_transformation_mode=sampling.coordinates,
            nearest_mode=sampling.rounding,
        )
        body.refer(_others(sampling))
        result = body("Transpose", [result], perm=FIRST_TO_LAST[4])
        return epilogue(body, signature.steps, opset, result)


def _sampling(signature: Signature) -> Sampling:
    assert isinstance(signature.variant, Sampling)  # each of its signatures has one
    return signature.variant


def _others(sampling: Sampling) -> Mapping[str, AttributeType]:
    return _CUBIC if sampling.mode == "cubic" else {}
