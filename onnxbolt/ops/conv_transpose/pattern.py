"""ConvTranspose with a constant weight, 1-D to 3-D: which are fused, and why others are not."""

from __future__ import annotations

from functools import partial

import onnx_graphsurgeon as gs

from onnxbolt import grouped
from onnxbolt.candidates import Anchor, Link, Refusal
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import BIAS, Step
from onnxbolt.forms import FIRST_TO_LAST
from onnxbolt.graph.edit import auto_pad
from onnxbolt.graph.overridable import remedy_for
from onnxbolt.ops.base import FusedOp
from onnxbolt.ops.conv_transpose.geometry import axes_of, lies_in_rows
from onnxbolt.patterns.types import AnchorPattern

_COMPLETE = frozenset({"dilations", "group", "kernel_shape", "output_padding", "pads", "strides"})


class TransposedAnchor(Anchor):
    """A ConvTranspose; its weight is [C, K/groups, *spatial]."""

    @property
    def depthwise(self) -> bool:
        """False: no kernel has a phase for each channel by itself."""
        return False

    @property
    def grouped(self) -> bool:
        """True for groups, also of one channel."""
        return self.groups > 1

    @property
    def kernel_groups(self) -> int:
        """The number of groups in kernels, which merge neighbouring groups."""
        return grouped.together(self.groups, int(self.weight.shape[0]), self.channels)


def anchors(op: FusedOp) -> tuple[AnchorPattern, ...]:
    """The nodes that `op` begins at."""
    return (AnchorPattern(("ConvTranspose",), partial(_match, op)),)


def _match(op: FusedOp, node: gs.Node) -> tuple[Anchor, tuple[Link, ...]] | Refusal:
    refuse = _refusal(node)
    if refuse:
        return refuse
    weight = node.inputs[1]
    dtype = DType.of(weight.dtype)
    assert dtype is not None  # _refusal has looked
    bias = node.inputs[2] if len(node.inputs) > 2 and node.inputs[2].name else None
    links = () if bias is None else (Link(Step(BIAS), bias, (node,), node.outputs[0]),)
    return TransposedAnchor(op, node, node.inputs[0], weight, dtype), links


def _refusal(node: gs.Node) -> Refusal | None:
    def because(reason: str, tensor: str = "", remedy: str = "") -> Refusal:
        return Refusal(node.name, node.op, reason, tensor, remedy)

    x, weight = node.inputs[0], node.inputs[1]
    if not isinstance(weight, gs.Constant):
        return because("its weight is computed at run time", weight.name, remedy_for(weight))
    rank = len(weight.shape)
    if rank not in FIRST_TO_LAST:
        return because(
            f"a {rank - 2}-D transposed convolution stays with ONNX Runtime", weight.name
        )
    dtype = DType.of(weight.dtype)
    if dtype is None or x.dtype != weight.dtype:
        return because(f"no kernel for its element type: {x.dtype}", x.name)
    if x.shape is None or not isinstance(x.shape[1], int):
        return because("the input's rank or channels are unknown", x.name)
    if 0 in x.shape or 0 in weight.shape:
        return because("an empty tensor: there is nothing to compute", x.name)
    if not set(node.attrs) <= _COMPLETE or auto_pad(node) != "NOTSET":
        return because(
            "pads that follow from an unknown input size, or zeros beyond what the input reaches",
            x.name,
            "give the model a static height and width, or explicit pads",
        )
    bias = node.inputs[2] if len(node.inputs) > 2 and node.inputs[2].name else None
    if bias is not None and not isinstance(bias, gs.Constant):
        return because("its bias is computed at run time", bias.name, remedy_for(bias))
    groups, k = int(node.attrs["group"]), int(weight.shape[1])
    if groups > 1 and not _serves(groups, weight.shape[0], k * groups, dtype):
        return because(
            "grouped transposed convolutions of such widths stay with ONNX Runtime",
            weight.name,
            f"groups whose channels are multiples of {dtype.alignment}, or can be merged"
            " into such groups",
        )
    if groups == 1 and k % dtype.alignment and not lies_in_rows(node):
        return because(
            "pixels of less than 16 bytes, or a part of them, cannot be stored apart",
            weight.name,
            f"output channels in multiples of {dtype.alignment}",
        )
    if any(max(axis.begin, axis.end) >= axis.taps * axis.stride for axis in axes_of(node)):
        return because("pads that are wider than the filter", x.name)
    if rank == 5 and not axes_of(node)[0].apart:
        return because(
            "slices of a transposed convolution of volumes that several of the input's slices make",
            weight.name,
            "a filter whose depth is the stride there, without pads",
        )
    return None


def _serves(groups: int, c: int, k: int, dtype: DType) -> bool:
    count = grouped.together(groups, c, k)
    return c % groups == 0 and not (c // count % dtype.alignment or k // count % dtype.alignment)
