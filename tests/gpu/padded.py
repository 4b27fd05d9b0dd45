"""Models whose padding differs on all four sides, one for each way in which a convolution or a
pooling takes padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx

from onnxbolt.families import Family, named
from tests.support import Net

PADS = [0, 2, 1, 3]  # top, left, bottom, right
SHAPE = (2, 64, 19, 23)


def _pooled(net: Net, y: str) -> onnx.ModelProto:
    return net.model(net.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]))


def _conv(stride: int = 1, group: int = 1, first: int = 64) -> onnx.ModelProto:
    """`first` channels of the input; with few of them a model's first convolution, with groups a
    layer in front."""
    net = Net({"x": (SHAPE[0], first, *SHAPE[2:])})
    y = "x" if group == 1 else net.node("Relu", net.conv("x", first, first))
    return _pooled(
        net,
        net.node("Relu", net.conv(y, first, 64, 3, pads=PADS, strides=[stride] * 2, group=group)),
    )


def _nchw_output() -> onnx.ModelProto:
    """The convolution writes the output as ONNX has it."""
    net = Net({"x": SHAPE})
    return net.model(net.node("Relu", net.conv("x", 64, 64, 3, pads=PADS)))


def _chain(first: int = 64, stride: int = 1) -> onnx.ModelProto:
    net = Net({"x": (SHAPE[0], first, *SHAPE[2:])})
    y = net.node("Relu", net.conv("x", first, 64, 3, pads=PADS, strides=[stride] * 2))
    return _pooled(net, net.node("Relu", net.conv(y, 64, 64)))


def _pool(op: str, **attributes: Any) -> onnx.ModelProto:
    net = Net({"x": SHAPE})
    y = net.node("Relu", net.conv("x", 64, 64))
    return net.model(
        net.conv(net.node(op, y, kernel_shape=[4, 4], pads=PADS, **attributes), 64, 64)
    )


CASES: dict[str, tuple[Family[Any], Callable[[], onnx.ModelProto]]] = {
    "conv_2x": (named("conv_2x"), _conv),
    "conv_sm90": (named("conv_sm90"), _conv),
    "conv_sm90 with strides": (named("conv_sm90"), lambda: _conv(2)),
    "conv_sm90 to NCHW": (named("conv_sm90"), _nchw_output),
    "halo": (named("halo_sm90"), _conv),
    "halo with strides": (named("halo_sm90"), lambda: _conv(2)),
    "first": (named("stem_sm90"), lambda: _conv(2, first=3)),
    "depthwise": (named("depthwise"), lambda: _conv(group=64)),
    "chain of conv_sm90": (named("b2b_conv_sm90"), _chain),
    "chain of conv_2x": (named("b2b_conv_2x"), _chain),
    "chain of halo": (named("b2b_halo_sm90"), _chain),
    "chain of first": (named("b2b_stem_sm90"), lambda: _chain(3, 2)),
    "max pool": (named("pool"), lambda: _pool("MaxPool")),
    "average pool": (named("pool"), lambda: _pool("AveragePool", count_include_pad=1)),
}
