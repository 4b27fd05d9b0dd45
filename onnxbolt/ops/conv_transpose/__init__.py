"""Transposed convolution of one to three dimensions by a constant weight, with an epilogue (ONNX
ConvTranspose)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import onnx_graphsurgeon as gs
from onnx import AttributeProto

from onnxbolt.candidates import Anchor, Candidate
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import BIAS, Step
from onnxbolt.forms import (
    CHANNELS_LAST,
    FIRST_TO_LAST,
    LAST_TO_FIRST,
    Form,
    in_accesses,
    padded_channels,
)
from onnxbolt.ops.base import Operation, Signature, Sizes, Stored, Surroundings, Tensors
from onnxbolt.ops.body import Arranged, AttributeType, Body, epilogue
from onnxbolt.ops.conv_transpose import few_channels, pattern
from onnxbolt.ops.conv_transpose.geometry import axes_of, lies_in_rows
from onnxbolt.ops.conv_transpose.packing import packed_weight, repeated
from onnxbolt.ops.conv_transpose.problem import problem_of
from onnxbolt.ops.products import ProductOp, operands
from onnxbolt.patterns.types import AnchorPattern
from onnxbolt.problems import ConvTransposeProblem, Problem

_ATTRIBUTES = {
    "strides": AttributeProto.INTS,
    "pads": AttributeProto.INTS,
    "output_padding": AttributeProto.INTS,
    "group": AttributeProto.INT,
}
_ZEROS = {"zeros": AttributeProto.INTS}
_END = 2**62  # behind every axis


class ConvTranspose(ProductOp):
    """x [N, *spatial, C], weight [groups x phases x K/groups, *taps, C/groups] to y
    [N, *spatial, K] (docs/node-format.md)."""

    name, op_type = "conv_transpose", "FusedConvTranspose"
    kinds = ("conv_transpose", "conv_transpose1d", "conv_transpose3d")
    problem_type = ConvTransposeProblem
    weight_axes = (1, 0)  # [C, K/groups, *filter]
    channels_last = True

    def prepare(self, graph: gs.Graph) -> Sequence[str]:
        """Those of few channels become a Conv and a DepthToSpace."""
        return few_channels.rewrite(graph)

    def kind_of(self, signature: Signature) -> str:
        """Those of one dimension, and of three, are kinds of their own."""
        kinds = {3: "conv_transpose1d", 5: "conv_transpose3d"}
        return kinds.get(signature.rank, "conv_transpose")

    def anchors(self) -> Sequence[AnchorPattern]:
        """ConvTranspose."""
        return pattern.anchors(self)

    def groups(self, node: gs.Node) -> int:
        """The node's attribute."""
        return int(node.attrs.get("group", 1))

    def channels(self, anchor: Anchor) -> int:
        """Those of all groups."""
        return anchor.groups * int(anchor.weight.shape[1])

    def forms(self, candidate: Candidate, around: Surroundings) -> tuple[Form, Form]:
        """Channels last, padded to whole accesses."""
        anchor, alignment = candidate.anchor, candidate.anchor.dtype.alignment
        if anchor.grouped:  # padding would move channels to other groups
            return CHANNELS_LAST, CHANNELS_LAST
        padded = around.padded
        writes = Form(True, padded_channels(candidate.widths[-1], alignment) if padded else None)
        if around.x.last and lies_in_rows(anchor.node):  # kernels of convolutions read any channels
            return around.x, writes
        return in_accesses(around.x, int(anchor.weight.shape[0]), alignment), writes

    def problem(self, candidate: Candidate, sizes: Sizes, stored: Stored | None) -> Problem:
        """The convolution that makes all phases, where they lie in rows."""
        found = problem_of(candidate, sizes(candidate.anchor.x), stored)
        return found.convolution if lies_in_rows(candidate.anchor.node) else found

    def writes_slices(self, anchor: Anchor) -> bool:
        """False where all phases are stored as one row: its pixels have no gaps between them."""
        return not lies_in_rows(anchor.node)

    def node_inputs(
        self, candidate: Candidate, reads: Form, writes: Form, tensors: Tensors
    ) -> list[gs.Tensor]:
        """The weight of all phases, and vectors for each of them."""
        anchor = candidate.anchor
        weight = packed_weight(anchor, reads, writes, tensors)
        return [weight, *operands(candidate, (writes,), tensors, partial(repeated, anchor))]

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attributes `epilogue_params`, those of ONNX for the filter with its zeros, and `zeros`,
        the number of these behind it."""
        anchor, axes = candidate.anchor, axes_of(candidate.anchor.node)
        attributes = candidate.parameters | {
            "strides": [axis.stride for axis in axes],
            "pads": [*(axis.begin for axis in axes), *(axis.end for axis in axes)],
            "output_padding": [axis.padding for axis in axes],
            "group": anchor.kernel_groups,
            "zeros": [axis.behind for axis in axes],
        }
        x = tensors.get(anchor.x, stored.reads)
        inputs = [x, *self.node_inputs(candidate, stored.reads, stored.writes, tensors)]
        signature = Signature(self, anchor.dtype, len(anchor.x.shape), candidate.epilogue)
        return Operation(signature, inputs, attributes)

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """Those of ONNX, and `zeros`."""
        return _ATTRIBUTES | _ZEROS

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """ConvTranspose in channels-first, of the weight and vectors as ONNX has them."""
        first, last = LAST_TO_FIRST[signature.rank], FIRST_TO_LAST[signature.rank]
        steps, (_, *names) = list(signature.steps), self.inputs(signature)
        weight = _as_in_onnx(body, body.load("weight"), signature.rank - 2)
        inputs = [body("Transpose", [body.load("x")], perm=first), weight]

        def of_channels(vector: str) -> str:
            """One value for each channel, of those for each phase."""
            sizes = [_group(body), _phases(body), body.ints(-1)]
            apart = body("Reshape", [vector, body("Concat", sizes, axis=0)])
            return body(
                "Reshape", [body("Gather", [apart, body.integer(0)], axis=1), body.ints(-1)]
            )

        if steps and steps[0].name == BIAS:
            inputs.append(of_channels(body.convert(names.pop(0), DType.F32, body.dtype)))
            steps.pop(0)
        result = body("ConvTranspose", inputs)
        body.refer(_ATTRIBUTES)

        def operand(name: str, step: Step) -> str:
            if step.row.operand == "tensor":
                return body("Transpose", [name], perm=first)
            shape = body.ints(-1, *[1] * (signature.rank - 2))
            return body("Reshape", [of_channels(name), shape])

        arranged = Arranged(operand, stored=lambda name: body("Transpose", [name], perm=last))
        result = epilogue(body, steps, opset, result, names, arranged)
        return body("Transpose", [result], perm=last)


def _group(body: Body) -> str:
    """The attribute as a vector of one number."""
    return body("Reshape", [body.given("group", AttributeProto.INT), body.ints(1)])


def _phases(body: Body) -> str:
    """The product of the strides as a vector of one number: of two, the first times the last."""
    strides = body.given("strides")
    return body("ReduceProd", [strides], keepdims=1)


def _as_in_onnx(body: Body, weight: str, rank: int) -> str:
    """[groups x phases x K/groups, *taps, C/groups] as [C, K/groups, *filter]."""
    shape = body("Shape", [weight])
    taps = body("Slice", [shape, body.ints(1), body.ints(-1)])
    width = body("Slice", [shape, body.ints(-1), body.ints(_END)])
    group, strides = _group(body), body.given("strides")
    apart = body("Concat", [group, strides, body.ints(-1), taps, width], axis=0)
    weight = body("Reshape", [weight, apart])
    # the convolution meets the last tap first
    axes = range(2 + rank, 2 + 2 * rank)
    bounds = [body.ints(*[value] * rank) for value in (-1, -_END)]
    weight = body("Slice", [weight, *bounds, body.ints(*axes), body.ints(*[-1] * rank)])
    by_axis = [axis for i in range(rank) for axis in (2 + rank + i, 1 + i)]
    weight = body("Transpose", [weight], perm=[0, 2 + 2 * rank, 1 + rank, *by_axis])
    sizes = [body("Mul", [group, width]), body.ints(-1), body("Mul", [taps, strides])]
    return body("Reshape", [weight, body("Concat", sizes, axis=0)])
