"""Resizing of images in NHWC (ONNX Resize)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_graphsurgeon as gs
from onnx import AttributeProto

from onnxbolt.forms import FIRST_TO_LAST, LAST_TO_FIRST
from onnxbolt.ops.base import FusedOp, Replacement, Signature
from onnxbolt.ops.body import AttributeType, Body, epilogue
from onnxbolt.ops.resize.pattern import sampling_of, scales_of, sizes_of
from onnxbolt.sampling import Sampling

_CUBIC = {"cubic_coeff_a": AttributeProto.FLOAT, "exclude_outside": AttributeProto.INT}
_DEFAULTS = {"cubic_coeff_a": -0.75, "exclude_outside": 0}  # ONNX's defaults
_FACTORS = {"scales": AttributeProto.FLOATS, "sizes": AttributeProto.INTS}


class Resize(FusedOp):
    """x [N, H, W, C] to y [N, P, Q, C]; variants are `Sampling`s."""

    name, op_type = "resize", "Resize_nhwc"
    channels_last = True
    operators = ("Resize",)

    def replacement(self, node: gs.Node) -> Replacement | None:
        """The result of `sampling_of`, with the factors of height and width."""
        sampling = sampling_of(node)
        if sampling is None:
            return None
        factors = scales_of(node) if sampling.by == "scales" else sizes_of(node)
        attributes: dict[str, object] = {"sampling": sampling.numbers, sampling.by: factors}
        if sampling.mode == "cubic":
            attributes |= {name: node.attrs.get(name, value) for name, value in _DEFAULTS.items()}
        return Replacement(attributes, sampling)

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
