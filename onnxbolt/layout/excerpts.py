"""Excerpts: outputs of Split and Slice that kernels read directly from the larger NHWC tensor,
without a copy (places.py)."""

from __future__ import annotations

import itertools

import onnx_graphsurgeon as gs

from onnxbolt.dtypes import DType
from onnxbolt.forms import CHANNELS_LAST
from onnxbolt.graph.edit import constant_integers
from onnxbolt.layout.places import Excerpt


def cut_axes(node: gs.Node) -> list[int] | None:
    """The axes of NCHW that a Split or a Slice cuts; None if a parameter is no constant, or an
    output has no name or an unknown shape."""
    rank = len(node.inputs[0].shape or ())
    known = all(isinstance(tensor, gs.Constant) or not tensor.name for tensor in node.inputs[1:])
    if (
        not rank
        or not known
        or any(not tensor.name or tensor.shape is None for tensor in node.outputs)
    ):
        return None
    if node.op == "Split":
        return [int(node.attrs.get("axis", 0)) % rank]
    axes = constant_integers(node, 3) or range(len(constant_integers(node, 1) or ()))
    return [int(axis) % rank for axis in axes]


def excerpts(node: gs.Node) -> list[Excerpt]:
    """The channels of each output of a Split or a Slice; empty if it cuts another axis, or if
    channels do not begin and end at whole accesses of 16 bytes."""
    x, dtype = node.inputs[0], DType.of(node.inputs[0].dtype)
    if dtype is None or cut_axes(node) != [1]:
        return []
    widths = [tensor.shape[1] for tensor in node.outputs]
    begin = _first_channel(node) if node.op == "Slice" else 0
    if begin is None or not all(isinstance(width, int) and width > 0 for width in widths):
        return []
    places = list(itertools.accumulate([begin, *widths]))
    # the number of all channels is the distance from one pixel to the next
    aligned = all(place % dtype.alignment == 0 for place in (*places, x.shape[1]))
    return (
        [Excerpt(x, CHANNELS_LAST, *pair) for pair in itertools.pairwise(places)] if aligned else []
    )


def _first_channel(node: gs.Node) -> int | None:
    """The first channel of a Slice; None if its step is not 1."""
    start, count = int((constant_integers(node, 1) or [0])[0]), int(node.inputs[0].shape[1])
    if (constant_integers(node, 4) or [1]) != [1]:
        return None
    return max(start + count, 0) if start < 0 else start
