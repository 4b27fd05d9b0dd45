"""Write out every attribute of Conv, and the pads of pooling operators.

Afterwards kernel_shape, strides, dilations, group and pads are present and `auto_pad` is gone:

    VALID = pads of 0
    SAME  = pads of max((ceil(in / stride) - 1) * stride + (kernel - 1) * dilation + 1 - in, 0)
            in total, the odd one at the end (SAME_UPPER) or at the begin (SAME_LOWER)

(ONNX, Conv). With stride 1 the total does not depend on the input. MaxPool and AveragePool are
padded alike. SAME implies the number of windows, so ceil_mode goes with it; ONNX does not say what
VALID means beside ceil_mode, so both stay. SAME stays beside dilations, which ONNX Runtime leaves
out of a pooling's pads, unlike ONNX.
"""

from __future__ import annotations

from typing import Any

import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import auto_pad

_POOLING = ("MaxPool", "AveragePool")


def run(graph: gs.Graph) -> int:
    """Complete the attributes of all Convs, and pads of pooling; returns how many changed."""
    count = 0
    for node in graph.nodes:
        if node.op in ("Conv", *_POOLING) and not node.domain:
            attrs = _attributes(node) if node.op == "Conv" else _pooling(node)
            if attrs is not None and attrs != node.attrs:
                node.attrs, node.origin = attrs, None
                count += 1
    return count


def sampling(node: gs.Node) -> dict[str, Any] | None:
    """The complete attributes of a Conv or ConvTranspose besides its pads; None where the kernel's
    size is unknown."""
    shape = node.inputs[1].shape
    kernel = node.attrs.get("kernel_shape", None if shape is None else list(shape[2:]))
    if not kernel or not all(isinstance(size, int) for size in kernel):
        return None
    ones = [1] * len(kernel)
    return {
        "dilations": node.attrs.get("dilations", ones),
        "group": node.attrs.get("group", 1),
        "kernel_shape": list(kernel),
        "strides": node.attrs.get("strides", ones),
    }


def _attributes(node: gs.Node) -> dict[str, Any] | None:
    """The complete attributes; None where the kernel's or a needed input size is unknown."""
    attrs, mode = sampling(node), auto_pad(node)
    if attrs is None:
        return None
    pads = (
        node.attrs.get("pads", [0] * 2 * len(attrs["kernel_shape"]))
        if mode == "NOTSET"
        else _automatic(mode, attrs, node.inputs[0].shape)
    )
    return None if pads is None else attrs | {"pads": pads}


def _pooling(node: gs.Node) -> dict[str, Any] | None:
    """The attributes with explicit pads instead of `auto_pad`; None if `auto_pad` is not set or
    stays, or if a needed input size is unknown."""
    mode, kernel = auto_pad(node), node.attrs["kernel_shape"]
    if mode == "NOTSET" or (mode == "VALID" and node.attrs.get("ceil_mode", 0)):
        return None
    ones = [1] * len(kernel)
    steps = {name: node.attrs.get(name, ones) for name in ("strides", "dilations")} | {
        "kernel_shape": kernel
    }
    if mode != "VALID" and list(steps["dilations"]) != ones:
        return None
    pads = _automatic(mode, steps, node.inputs[0].shape)
    return (
        None
        if pads is None
        else {k: v for k, v in node.attrs.items() if k not in ("auto_pad", "ceil_mode")}
        | {"pads": pads}
    )


def _automatic(
    mode: str, attrs: dict[str, Any], shape: list[int | str | None] | None
) -> list[int] | None:
    if mode == "VALID":
        return [0] * 2 * len(attrs["kernel_shape"])
    totals = []
    sizes = [None] * len(attrs["kernel_shape"]) if shape is None else shape[2:]
    for size, kernel, stride, dilation in zip(
        sizes, attrs["kernel_shape"], attrs["strides"], attrs["dilations"], strict=True
    ):
        reach = (kernel - 1) * dilation + 1
        if stride == 1:
            totals.append(reach - 1)
        elif isinstance(size, int):
            totals.append(max((-(-size // stride) - 1) * stride + reach - size, 0))
        else:
            return None
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return small + large if mode == "SAME_UPPER" else large + small
