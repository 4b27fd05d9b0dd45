"""Normalization over an image's pixels and groups of its channels, in NHWC, with an epilogue: ONNX
GroupNormalization, InstanceNormalization and LayerNormalization of whole images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import AttributeProto

from onnxbolt.candidates import Anchor, Candidate
from onnxbolt.dtypes import DType
from onnxbolt.forms import CHANNELS_LAST, FIRST_TO_LAST, PLAIN, Form
from onnxbolt.ops.base import FusedOp, Operation, Signature, Sizes, Stored, Surroundings, Tensors
from onnxbolt.ops.body import AttributeType, Body, epilogue
from onnxbolt.ops.group_norm import pattern
from onnxbolt.ops.group_norm.pattern import GroupNormAnchor
from onnxbolt.ops.products import operands
from onnxbolt.patterns.types import AnchorPattern
from onnxbolt.problems import GroupNormProblem


@dataclass(frozen=True)
class Variant:
    """The vectors of each image that a node reads: one that is added to x, and two by which the
    normalized values are scaled and shifted."""

    before: bool = False
    modulated: bool = False

    @property
    def inputs(self) -> list[str]:
        """Names of these inputs in the function body."""
        return ["before"] * self.before + ["scale", "shift"] * self.modulated


class GroupNorm(FusedOp):
    """x [N, *spatial, C], gamma and beta [C], vectors of each image [N, C, 1, ..] to
    y [N, *spatial, C]."""

    name, op_type = "group_norm", "GroupNorm"
    problem_type = GroupNormProblem
    takes_epilogue = True
    channels_last = True

    def anchors(self) -> Sequence[AnchorPattern]:
        """The addition of a vector of each image, or the normalization."""
        return pattern.anchors(self)

    def keeps_channels(self, anchor: Anchor) -> bool:
        """True: it scales and shifts each by itself."""
        return True

    def forms(self, candidate: Candidate, around: Surroundings) -> tuple[Form, Form]:
        """Channels last, without padding, which would belong to a group."""
        return CHANNELS_LAST, CHANNELS_LAST

    def problem(
        self, candidate: Candidate, sizes: Sizes, stored: Stored | None
    ) -> GroupNormProblem:
        """Pixels are all axes behind the channels."""
        anchor = _anchor(candidate)
        n, c, *spatial = sizes(anchor.x)
        return GroupNormProblem(
            n,
            math.prod(spatial),
            c,
            int(anchor.normalization.attrs["groups"]),
            anchor.dtype,
            candidate.out,
            candidate.chain,
            anchor.before is not None,
            bool(anchor.modulation),
        )

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attributes `groups`, `epsilon` and `epilogue_params`."""
        anchor = _anchor(candidate)
        variant = Variant(anchor.before is not None, bool(anchor.modulation))
        rank, attrs = len(anchor.x.shape), anchor.normalization.attrs
        factors = [
            tensors.constant(constant.name, constant.values.astype(DType.F32.numpy))
            for constant in anchor.constants
            if constant is not None
        ]
        return Operation(
            Signature(self, anchor.dtype, rank, candidate.epilogue, variant=variant),
            [
                tensors.get(anchor.x, stored.reads),
                *factors,
                *(tensors.get(vector, PLAIN) for vector in anchor.further),
                *operands(candidate, (stored.writes,), tensors),
            ],
            {
                **candidate.parameters,
                "groups": int(attrs["groups"]),
                "epsilon": float(attrs["epsilon"]),
            },
        )

    def letters(self, signature: Signature) -> str:
        """gamma and beta, and the vectors of each image."""
        return "ff" + "i" * len(_variant(signature).inputs)

    def inputs(self, signature: Signature) -> list[str]:
        """As `letters`, then the epilogue's."""
        return ["gamma", "beta", *_variant(signature).inputs, *super().inputs(signature)]

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """Groups and epsilon."""
        return {"groups": AttributeProto.INT, "epsilon": AttributeProto.FLOAT}

    def words(self, signature: Signature) -> Sequence[str]:
        """The variant's."""
        variant = _variant(signature)
        return ["Shifted"] * variant.before + ["Modulated"] * variant.modulated

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """The statistics in fp32, as the kernels have them."""
        images = {name: _image(body, signature, name) for name in _variant(signature).inputs}
        result = body.convert("x", signature.dtype, DType.F32)
        if "before" in images:
            result = body("Add", [result, images["before"]])
        result = _normalized(body, result, opset)
        result = body("Add", [body("Mul", [result, "gamma"]), "beta"])
        if "scale" in images:
            scaled = body("Add", [body("Mul", [result, images["scale"]]), result])
            result = body("Add", [scaled, images["shift"]])
        result = body.convert(result, DType.F32, body.dtype)
        names = super().inputs(signature)
        return epilogue(body, signature.steps, opset, result, names)


def _anchor(candidate: Candidate) -> GroupNormAnchor:
    assert isinstance(candidate.anchor, GroupNormAnchor)  # the pattern makes no others
    return candidate.anchor


def _variant(signature: Signature) -> Variant:
    assert isinstance(signature.variant, Variant)  # `operation` makes no others
    return signature.variant


def _image(body: Body, signature: Signature, name: str) -> str:
    """A vector of each image, as NHWC in fp32."""
    last = body("Transpose", [name], perm=FIRST_TO_LAST[signature.rank])
    return body.convert(last, signature.dtype, DType.F32)


def _normalized(body: Body, x: str, opset: int) -> str:
    """x [N, *spatial, C] without its mean over pixels and a group's channels, over its deviation;
    as [N, pixels, groups, channels of a group] on the way."""
    shape = body("Shape", [x])
    groups = body("Reshape", [body.given("groups", AttributeProto.INT), body.ints(1)])
    each = body("Div", [body.size(x, -1), groups])
    result = body.reshape(x, 0, body.size(x, 1, -1), groups, each)
    result = body("Sub", [result, _mean(body, result, opset)])
    squares = _mean(body, body("Mul", [result, result]), opset)
    shifted = body("Add", [squares, body.given("epsilon", AttributeProto.FLOAT)])
    result = body("Div", [result, body("Sqrt", [shifted])])
    return body("Reshape", [result, shape])


def _mean(body: Body, x: str, opset: int) -> str:
    """The mean over pixels and a group's channels, which stay as axes."""
    if opset >= 18:
        return body("ReduceMean", [x, body.ints(1, 3)], keepdims=1)
    return body("ReduceMean", [x], axes=[1, 3], keepdims=1)
