"""Resizing of images in NHWC (ONNX Resize)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_graphsurgeon as gs
from onnx import AttributeProto

from onnxbolt.candidates import Candidate
from onnxbolt.forms import FIRST_TO_LAST, LAST_TO_FIRST
from onnxbolt.ops.base import FusedOp, Operation, Replacement, Signature, Stored, Tensors
from onnxbolt.ops.body import AttributeType, Body, epilogue
from onnxbolt.ops.products import operands
from onnxbolt.ops.resize.pattern import given_sizes, like, sampling_of, scales_of, sizes_of
from onnxbolt.sampling import Sampling

_CUBIC = {"cubic_coeff_a": AttributeProto.FLOAT, "exclude_outside": AttributeProto.INT}
_DEFAULTS = {"cubic_coeff_a": -0.75, "exclude_outside": 0}  # ONNX's defaults
_GIVEN = {"like": "image", "given": "given_sizes"}  # inputs that say what becomes of them
_FACTORS = {"scales": AttributeProto.FLOATS, "sizes": AttributeProto.INTS}


class Resize(FusedOp):
    """x [N, H, W, C] to y [N, P, Q, C], and an epilogue, whose tensors may broadcast along height
    and width; variants are `Sampling`s."""

    name, op_type = "resize", "Resize_nhwc"
    channels_last = True
    takes_epilogue = True
    operators = ("Resize",)

    def replacement(self, node: gs.Node) -> Replacement | None:
        """The result of `sampling_of`, with the factors of height and width."""
        sampling = sampling_of(node)
        if sampling is None:
            return None
        attributes: dict[str, object] = {"sampling": sampling.numbers}
        if sampling.by in _FACTORS:
            factors = scales_of(node) if sampling.by == "scales" else sizes_of(node)
            attributes[sampling.by] = factors
        if sampling.mode == "cubic":
            attributes |= {name: node.attrs.get(name, value) for name, value in _DEFAULTS.items()}
        sizes = given_sizes(node) if sampling.by == "given" else None
        return Replacement(attributes, sampling, () if sizes is None else (sizes,))

    def selects(self, node: gs.Node) -> bool:
        """True for the nearest pixel."""
        sampling = sampling_of(node)
        return sampling is not None and sampling.mode == "nearest"

    def accepts(self, operand: gs.Tensor, tensor: gs.Tensor) -> bool:
        """True if both have the same images and channels; the library compares the rest."""
        ours, theirs = tensor.shape, operand.shape
        return (
            theirs is not None
            and len(theirs) == len(ours) == 4
            and None not in ours[:2]
            and list(theirs[:2]) == list(ours[:2])
        )

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """The sizes are read from a tensor that has them where one is at hand: the host need not
        compute them then."""
        node = candidate.anchor.node
        found = super().operation(candidate, stored, tensors)
        x, *given = found.inputs
        signature = found.signature
        if given and (image := like(node, tensors.written_last)) is not None:
            given = [image]
            variant = dataclasses.replace(_sampling(signature), by="like")
            signature = dataclasses.replace(signature, variant=variant)
        return Operation(
            signature,
            [x, *given, *operands(candidate, (stored.writes,), tensors)],
            found.attributes,
        )

    def inputs(self, signature: Signature) -> list[str]:
        """The input that gives the sizes, and the operands of the epilogue."""
        own = [_GIVEN[by]] if (by := _sampling(signature).by) in _GIVEN else []
        return [*own, *super().inputs(signature)]

    def letters(self, signature: Signature) -> str:
        """An image, or a list of sizes."""
        return {"like": "t", "given": "s"}.get(_sampling(signature).by, "")

    def words(self, signature: Signature) -> Sequence[str]:
        """How it samples."""
        return _sampling(signature).words

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """The factors of height and width, and those of cubic weights."""
        sampling = _sampling(signature)
        given = {sampling.by: _FACTORS[sampling.by]} if sampling.by in _FACTORS else {}
        return {**given, **_others(sampling)}

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """Resize of NCHW; the node says what becomes of height and width, images and channels
        stay."""
        sampling = _sampling(signature)
        images = body("Transpose", [body.load("x")], perm=LAST_TO_FIRST[4])
        cubic = sampling.mode == "cubic"
        x = _by_channel(body, images) if cubic else images
        if sampling.by == "scales":
            ones = body("Constant", [], value_floats=[1.0, 1.0])
            scales = body("Concat", [ones, body.given("scales", AttributeProto.FLOATS)], axis=0)
            inputs = [x, "", scales]
        else:
            kept = body("Slice", [body("Shape", [x]), body.ints(0), body.ints(2)])
            inputs = [x, "", "", body("Concat", [kept, _sizes(body, sampling)], axis=0)]
        result = body(
            "Resize",
            inputs,
            mode=sampling.mode,
            coordinate_transformation_mode=sampling.coordinates,
            nearest_mode=sampling.rounding,
        )
        body.refer(_others(sampling))
        if cubic:
            sizes = [body.size(t, a) for t, a in ((images, 0), (images, 1), (result, 2))]
            result = body.reshape(result, *sizes, body.size(result, 3))
        result = body("Transpose", [result], perm=FIRST_TO_LAST[4])
        names = super().inputs(signature)
        return epilogue(body, signature.steps, opset, result, names)


def _by_channel(body: Body, images: str) -> str:
    """[N C, 1, H, W]: images of one channel. ONNX Runtime moves Transposes through a Resize, and
    its cubic kernel for NHWC enlarges alone; it moves none through a Reshape."""
    channels = body.size(images, 0, 2)
    return body.reshape(images, channels, 1, body.size(images, 2), body.size(images, 3))


def _sizes(body: Body, sampling: Sampling) -> str:
    """Height and width of the result."""
    if sampling.by == "sizes":
        return body.given("sizes")
    if sampling.by == "given":
        return body("Slice", [_GIVEN["given"], body.ints(2), body.ints(4)])
    return body("Slice", [body("Shape", [_GIVEN["like"]]), body.ints(1), body.ints(3)])


def _sampling(signature: Signature) -> Sampling:
    assert isinstance(signature.variant, Sampling)  # each of its signatures has one
    return signature.variant


def _others(sampling: Sampling) -> Mapping[str, AttributeType]:
    return _CUBIC if sampling.mode == "cubic" else {}
