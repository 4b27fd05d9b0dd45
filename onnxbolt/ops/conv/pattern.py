"""Conv with a constant weight, 1-D to 3-D: which are fused, and why others are not."""

from __future__ import annotations

from functools import partial

import onnx_graphsurgeon as gs

from onnxbolt import grouped
from onnxbolt.candidates import Anchor, Link, Refusal
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import BIAS, PRODUCT, Step
from onnxbolt.forms import FIRST_TO_LAST
from onnxbolt.graph.edit import auto_pad
from onnxbolt.graph.overridable import remedy_for
from onnxbolt.graph.volumes import axes_of, is_of_images
from onnxbolt.ops.base import FusedOp
from onnxbolt.patterns.types import AnchorPattern, StepPattern


def anchors(op: FusedOp) -> tuple[AnchorPattern, ...]:
    """The nodes that `op` begins at."""
    return (AnchorPattern(("Conv",), partial(_match, op)),)


def continuations(op: FusedOp) -> tuple[StepPattern, ...]:
    """Further products behind `op`."""
    return (StepPattern(("Conv",), partial(_layer, op)),)


def _match(op: FusedOp, node: gs.Node) -> tuple[Anchor, tuple[Link, ...]] | Refusal:
    refuse = _refusal(node)
    if refuse:
        return refuse
    x, weight = node.inputs[0], node.inputs[1]
    dtype = DType.of(weight.dtype)
    assert dtype is not None  # _refusal has looked
    anchor = Anchor(op, node, x, weight, dtype)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    links = (
        (Link(Step(BIAS), bias, (node,), node.outputs[0]),)
        if bias is not None and bias.name
        else ()
    )
    return anchor, links


def _refusal(node: gs.Node) -> Refusal | None:
    def because(reason: str, tensor: str = "", remedy: str = "") -> Refusal:
        return Refusal(node.name, node.op, reason, tensor, remedy)

    x, weight = node.inputs[0], node.inputs[1]
    if not isinstance(weight, gs.Constant):
        return because("its weight is computed at run time", weight.name, remedy_for(weight))
    rank = len(weight.shape)
    if rank not in FIRST_TO_LAST:
        return because(f"a {rank - 2}-D convolution stays with ONNX Runtime", weight.name)
    dtype = DType.of(weight.dtype)
    if dtype is None or x.dtype != weight.dtype:
        return because(f"no kernel for its element type: {x.dtype}", x.name)
    groups = int(node.attrs.get("group", 1))
    dense_or_depthwise = groups == 1 or tuple(weight.shape[:2]) == (groups, 1)
    if not dense_or_depthwise and not grouped.serves(
        groups, weight.shape[1] * groups, weight.shape[0], dtype
    ):
        return because(
            "grouped convolutions of such widths stay with ONNX Runtime",
            weight.name,
            f"groups whose channels are multiples of {dtype.alignment}, or can be merged"
            " into such groups",
        )
    if auto_pad(node) != "NOTSET":
        return because(
            "auto_pad with an unknown input size",
            x.name,
            "give the model a static height and width",
        )
    if len(node.inputs) > 2 and node.inputs[2].name and not isinstance(node.inputs[2], gs.Constant):
        return because(
            "its bias is computed at run time", node.inputs[2].name, remedy_for(node.inputs[2])
        )
    if x.shape is None or not isinstance(x.shape[1], int):
        return because("the input's rank or channels are unknown", x.name)
    if 0 in x.shape or 0 in weight.shape:
        return because("an empty tensor: there is nothing to compute", x.name)
    if is_of_images(axes_of(node)):
        return None
    if weight.shape[0] % dtype.alignment:
        return because(
            "a convolution of volumes whose pixels are no multiples of 16 bytes",
            weight.name,
            f"output channels in multiples of {dtype.alignment}",
        )
    if groups > 1 and tuple(weight.shape[:2]) == (groups, 1):
        return because("a depthwise convolution of volumes stays with ONNX Runtime", weight.name)
    return None


def _layer(
    op: FusedOp, node: gs.Node, tensor: gs.Tensor, anchor: Anchor
) -> tuple[Link, ...] | None:
    """A 1x1 convolution behind a convolution's epilogue: a further product of each pixel."""
    if (
        anchor.op is not op
        or node.inputs[0] is not tensor
        or not isinstance(node.inputs[1], gs.Constant)
    ):
        return None
    weight, attributes = node.inputs[1], node.attrs
    pointwise = (
        tuple(weight.shape[2:]) == (1, 1)
        and len(anchor.weight.shape) == 4
        and attributes.get("group", 1) == 1
    )
    every_pixel = all(stride == 1 for stride in attributes.get("strides", ())) and not any(
        attributes.get("pads", ())
    )
    found = _match(op, node)
    if (
        anchor.groups > 1
        or not (pointwise and every_pixel)
        or isinstance(found, Refusal)
        or found[0].dtype is not anchor.dtype
    ):
        return None
    return Link(Step(PRODUCT), weight, (node,), node.outputs[0]), *found[1]
