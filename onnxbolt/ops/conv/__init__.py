"""Convolution of one to three dimensions by a constant weight, with an epilogue and 1x1
convolutions behind it (ONNX Conv)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_graphsurgeon as gs
from onnx import AttributeProto, NodeProto

from onnxbolt import families
from onnxbolt.candidates import Anchor, Candidate, Link
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import BIAS, CASTS, MEAN, PRODUCT, STORE, Step
from onnxbolt.forms import FIRST_TO_LAST, LAST_TO_FIRST, PLAIN, Form
from onnxbolt.graph.edit import conv_attributes, producer
from onnxbolt.ops.base import Described, Operation, Signature, Sizes, Stored, Surroundings, Tensors
from onnxbolt.ops.body import Arranged, AttributeType, Body, epilogue
from onnxbolt.ops.conv import layout, pattern
from onnxbolt.ops.conv.problem import problem_of
from onnxbolt.ops.products import ProductOp
from onnxbolt.patterns.types import AnchorPattern, StepPattern
from onnxbolt.problems import ConvProblem, Problem, StemCodesProblem

ATTRIBUTES = {
    "strides": AttributeProto.INTS,
    "pads": AttributeProto.INTS,
    "dilations": AttributeProto.INTS,
    "group": AttributeProto.INT,
}


class Conv(ProductOp):
    """x [N, *spatial, C], weight [K, *filter, C/groups] to y [N, *spatial, K]; x or y may be NCHW,
    and y both (docs/node-format.md)."""

    name, op_type = "conv", "FusedConv"
    kinds = ("conv", "conv1d", "conv3d", "conv_chain")
    problem_type = ConvProblem
    weight_axes = (0, 1)  # [K, C/groups, *filter]
    channels_last = True
    takes_mean = True

    def kind_of(self, signature: Signature) -> str:
        """Those of one dimension, of three, and several in one kernel, are kinds of their own."""
        if any(step.name == PRODUCT for step in signature.steps):
            return "conv_chain"
        return {3: "conv1d", 5: "conv3d"}.get(signature.rank, "conv")

    def anchors(self) -> Sequence[AnchorPattern]:
        """Conv."""
        return pattern.anchors(self)

    def continuations(self) -> Sequence[StepPattern]:
        """A 1x1 convolution of every pixel."""
        return pattern.continuations(self)

    def groups(self, node: gs.Node) -> int:
        """The node's attribute."""
        return int(node.attrs.get("group", 1))

    def keeps_channels(self, anchor: Anchor) -> bool:
        """True for a depthwise convolution."""
        return anchor.depthwise

    def pointwise(self, anchor: Anchor) -> bool:
        """True for a 1x1 convolution of every pixel."""
        attributes = anchor.node.attrs
        moves = any(stride != 1 for stride in attributes.get("strides", ())) or any(
            attributes.get("pads", ())
        )
        return anchor.groups == 1 and tuple(anchor.weight.shape[2:]) == (1, 1) and not moves

    def forms(self, candidate: Candidate, around: Surroundings) -> tuple[Form, Form]:
        """Channels last; x as ONNX has it for a stem convolution, y as the plan says."""
        return layout.forms(candidate, around)

    def writes_nchw(self, anchor: Anchor) -> bool:
        """False for volumes, whose slices may be the images of a kernel."""
        return len(anchor.weight.shape) < 5

    def ends_with_codes(
        self, anchor: Anchor, before: Sequence[Link], dtype: DType, archs: Sequence[int]
    ) -> bool:
        """True for a stem convolution of the graph's input, which is NCHW; its kernels read no
        tensors besides."""
        source = producer(anchor.x)
        if source is not None and source.op == "Cast":
            source = producer(source.inputs[0])
        if source is not None or any(link.step.row.operand == "tensor" for link in before):
            return False
        steps = tuple(link.step.name for link in before)
        stem = layout.stem_of(anchor, [anchor.channels], steps)
        return families.stem_makes_codes(stem, dtype, archs)

    def problem(self, candidate: Candidate, sizes: Sizes, stored: Stored | None) -> Problem:
        """The convolution, of height 1 if it has one dimension; of images where it is one."""
        values = problem_of(candidate, sizes(candidate.anchor.x), stored)
        return StemCodesProblem.of(values, candidate.out) if candidate.out.is_code else values

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attributes `epilogue_params`, those of ONNX, and `padding` if y is in both forms."""
        anchor, reads, writes = candidate.anchor, stored.reads, stored.writes
        x, read_as_nchw = tensors.get(anchor.x, reads), None
        if reads == PLAIN:
            source = tensors.before_cast(x)
            # kernels read fp32 and the weight's type
            x = source if DType.of(source.dtype) in (DType.F32, anchor.dtype) else x
            read_as_nchw = DType.of(x.dtype)
        steps = tuple(s.of_type if s.row.given else s for s in candidate.epilogue)
        attributes = candidate.parameters | conv_attributes(anchor.node)
        if anchor.depthwise and writes.channels is not None:
            attributes["group"] = len(writes.channels)
        if anchor.grouped:
            attributes["group"] = anchor.kernel_groups
        inputs = [x, *self.node_inputs(candidate, reads, writes, tensors)]
        padding = 0
        if stored.both is not None:
            padding = (writes.channels or ()).count(-1)
            steps += _stored_too(stored.both, anchor.dtype)
            attributes["padding"] = padding
        signature = Signature(
            self,
            anchor.dtype,
            len(anchor.x.shape),
            steps,
            padding,
            read_as_nchw,
            to_nchw=stored.both is not None or not writes.last,
        )
        return Operation(signature, inputs, attributes)

    def positions(self, node: Described) -> list[Any]:
        """Pixels of the output, or of the image that it is the mean of."""
        y = node.output
        if MEAN in node.chain:
            return [y[0], *_image(node)]
        return [y[0], *y[2:]] if node.to_nchw else list(y[:-1])

    def in_both_layouts(self, node: NodeProto) -> tuple[str, str] | None:
        """Both outputs, if the last step but a Cast is a Store, and so no further product's
        input."""
        _, written, behind = node.op_type.partition(f"_{STORE}_")
        if len(node.output) < 2 or not written or PRODUCT in behind or "to_nchw" not in behind:
            return None
        return node.output[0], node.output[1]

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """Those of ONNX, and the numbers of codes at the end."""
        codes = any(step.row.given for step in signature.steps)
        return {**ATTRIBUTES, "epilogue_params": AttributeProto.FLOATS} if codes else ATTRIBUTES

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """Conv in channels-first throughout: ONNX Runtime fuses the bias and ReLU there, and the
        Transposes of neighbouring bodies cancel."""
        first, last = LAST_TO_FIRST[signature.rank], FIRST_TO_LAST[signature.rank]
        if signature.nchw_input is None:
            x = body("Transpose", [body.load("x")], perm=first)
        else:  # rounded as the kernel does
            x = body.load(body.convert("x", signature.nchw_input, signature.dtype))
        inputs = [x, body("Transpose", [body.load("weight")], perm=first)]
        steps, (_, *operands) = list(signature.steps), self.inputs(signature)
        if steps and steps[0].name == BIAS:
            bias = operands.pop(0)
            inputs.append(body.convert(bias, DType.F32, body.dtype))
            steps.pop(0)
        result = body("Conv", inputs)
        body.refer(ATTRIBUTES)

        def operand(name: str, step: Step) -> str:
            if step.row.operand in ("tensor", "weight"):
                return body("Transpose", [name], perm=first)
            return body("Reshape", [name, body.ints(-1, *[1] * (signature.rank - 2))])

        arranged = Arranged(
            operand,
            stored=lambda name: body("Transpose", [name], perm=last),
            product=lambda name, weight: body("Conv", [name, weight]),  # 1x1, [K, 1, 1, C]
        )
        codes = [steps.pop()] if steps and steps[-1].row.given else []
        result = epilogue(body, steps, opset, result, operands, arranged)
        if codes:  # they are made of fp32
            result = epilogue(body, codes, opset, body.widen(result))
        if not signature.to_nchw:
            return body("Transpose", [result], perm=last)
        if signature.padding:
            ends = body.ints(0), body.ints(-signature.padding), body.ints(1)
            return body("Slice", [result, *ends])
        # y is not what is stored
        return body("Identity", [result]) if steps[-1:] == [Step(STORE)] else result


def _image(node: Described) -> list[int]:
    """Height and width of what a convolution makes of x [N, H, W, C], of which the output is the
    mean; x has a fixed size."""
    x, weight = node.inputs[:2]
    strides, pads, dilations = (node.attributes[name] for name in ("strides", "pads", "dilations"))
    spans = [
        x[1 + i] + pads[i] + pads[i + 2] - dilations[i] * (weight[1 + i] - 1) - 1 for i in (0, 1)
    ]
    return [span // stride + 1 for span, stride in zip(spans, strides, strict=True)]


def _stored_too(plain: gs.Tensor, dtype: DType) -> tuple[Step, ...]:
    """The steps behind which `plain` is the result of a kernel that writes both forms."""
    made = DType.of(plain.dtype)
    assert made is not None  # the plan has looked
    return (Step(STORE),) if made is dtype else (Step(STORE), Step(CASTS[made]))
