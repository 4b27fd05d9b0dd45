"""Write out every attribute of ConvTranspose, and ConvTranspose without strides as Conv.

Afterwards kernel_shape, strides, dilations, group, output_padding and pads are present, and
`auto_pad` and `output_shape` are gone. Along each axis the pads are, in total,

    stride * (in - 1) + output_padding + (kernel - 1) * dilation + 1 - out

(ONNX, ConvTranspose), with out = stride * in for SAME. The odd one is at the end for SAME_UPPER, at
the begin otherwise. Outputs that are larger than all that the input reaches stay: ONNX does not say
where the zeros are.

Without strides, each output meets the filter the other way round:

    ConvTranspose(x, w, pads) = Conv(x, w', (kernel - 1) * dilation - pads)

with w' [K, C/group, ..]: w [C, K/group, ..] reversed along its spatial axes. `output_padding` are
further pads at the end. Pads that would be negative cut the output; such nodes stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize.conv_form import sampling
from onnxbolt.graph.edit import add_constant, auto_pad, derived, is_float


def run(graph: gs.Graph) -> int:
    """Complete the attributes of all ConvTransposes, and rewrite those without strides; returns how
    many changed."""
    count = 0
    for node in graph.nodes:
        if node.op != "ConvTranspose" or node.domain:
            continue
        attrs = _attributes(node)
        if attrs is not None and attrs != node.attrs:
            node.attrs, node.origin = attrs, None
            count += 1
        if attrs is not None and _as_conv(graph, node):
            count += 1
    return count


def _attributes(node: gs.Node) -> dict[str, Any] | None:
    """The complete attributes; None where the kernel's or a needed input size is unknown."""
    if (attrs := sampling(node)) is None:
        return None
    zeros = [0] * len(attrs["kernel_shape"])
    attrs["output_padding"] = node.attrs.get("output_padding", zeros)
    pads = _pads(node, attrs)
    return None if pads is None else attrs | {"pads": pads}


def _pads(node: gs.Node, attrs: dict[str, Any]) -> list[int] | None:
    """The pads that the node's attributes say or imply; None where they depend on an unknown
    size, or would be negative."""
    mode, rank = auto_pad(node), len(attrs["kernel_shape"])
    sizes: Sequence[int | str | None] = (node.inputs[0].shape or [])[2:] or [None] * rank
    wanted = node.attrs.get("output_shape")
    if not wanted and mode in ("NOTSET", "VALID"):
        zeros = [0] * 2 * rank
        return list(node.attrs.get("pads", zeros)) if mode == "NOTSET" else zeros
    totals = []
    for i, size in enumerate(sizes):
        stride, extra = attrs["strides"][i], attrs["output_padding"][i]
        reach = (attrs["kernel_shape"][i] - 1) * attrs["dilations"][i] + 1
        if not wanted:  # out = stride * in, whatever that is
            totals.append(extra + reach - stride)
        elif isinstance(size, int):  # some models give all axes of the output
            totals.append(stride * (size - 1) + extra + reach - wanted[i - rank])
        else:
            return None
    if min(totals) < 0:
        return None
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return small + large if mode == "SAME_UPPER" else large + small


def _as_conv(graph: gs.Graph, node: gs.Node) -> bool:
    """Make the node a Conv if it has no strides, and its weight is constant."""
    weight, attrs = node.inputs[1], node.attrs
    rank = len(attrs["kernel_shape"])
    if not isinstance(weight, gs.Constant) or not is_float(weight) or 0 in weight.shape:
        return False
    if any(stride != 1 for stride in attrs["strides"]):
        return False
    reach = [
        (size - 1) * dilation
        for size, dilation in zip(attrs["kernel_shape"], attrs["dilations"], strict=True)
    ]
    begin = [span - pad for span, pad in zip(reach, attrs["pads"][:rank], strict=True)]
    end = [
        span - pad + extra
        for span, pad, extra in zip(
            reach, attrs["pads"][rank:], attrs["output_padding"], strict=True
        )
    ]
    groups = int(attrs["group"])
    if min(begin + end) < 0 or groups < 1 or weight.shape[0] % groups:
        return False
    c, k = weight.shape[0] // groups, weight.shape[1]
    shape = (groups * k, c, *weight.shape[2:])

    def turned(values: np.ndarray) -> np.ndarray:
        apart = values.reshape(groups, c, k, *values.shape[2:]).swapaxes(1, 2).reshape(shape)
        return np.ascontiguousarray(np.flip(apart, tuple(range(2, 2 + rank))))

    values = derived(weight, turned, weight.dtype, shape)
    node.inputs[1] = add_constant(graph, f"{weight.name}.turned", values)
    node.attrs = {
        "dilations": attrs["dilations"],
        "group": groups,
        "kernel_shape": attrs["kernel_shape"],
        "pads": begin + end,
        "strides": attrs["strides"],
    }
    node.op, node.origin = "Conv", None
    return True
