"""Small models in fp32 with what quantized networks have: residuals, pooling, Concat, Resize,
depthwise convolutions, squeeze-and-excitation and linear layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from tests.support import Net

OPSET = 17


def cnn() -> onnx.ModelProto:
    """A residual block behind a stem with max pooling, a branch at half the size that is resized
    and concatenated, and a classifier."""
    net = Net({"x": (1, 3, 16, 16)}, opset=OPSET, seed=1)
    stem = net.node("Relu", net.conv("x", 3, 8, 3, pads=[1, 1, 1, 1], strides=[2, 2]))
    pooled = net.node("MaxPool", stem, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1])
    inner = net.node("Relu", net.conv(pooled, 8, 8, 3, pads=[1, 1, 1, 1]))
    block = net.node("Relu", net.node("Add", net.conv(inner, 8, 8, 3, pads=[1] * 4), pooled))
    low = net.node("Relu", net.conv(block, 8, 16, 3, pads=[1] * 4, strides=[2, 2]))
    scales = net.const([1, 1, 2, 2])
    high = net.node("Resize", low, "", scales, mode="nearest", nearest_mode="floor")
    both = net.node("Concat", high, block, axis=1)
    mixed = net.node("Relu", net.conv(both, 24, 16))
    mean = net.node("Flatten", net.node("GlobalAveragePool", mixed), axis=1)
    weight, bias = net.normal(10, 16, scale=0.25), net.normal(10)
    return net.model(net.node("Gemm", mean, weight, bias, transB=1))


def mobile() -> onnx.ModelProto:
    """An inverted residual: expansion, depthwise convolution, squeeze-and-excitation,
    projection."""
    net = Net({"x": (1, 8, 12, 12)}, opset=OPSET, seed=2)
    wide = net.node("HardSwish", net.conv("x", 8, 16))
    deep = net.node("HardSwish", net.conv(wide, 16, 16, 3, group=16, pads=[1, 1, 1, 1]))
    squeezed = net.node("Relu", net.conv(net.node("GlobalAveragePool", deep), 16, 8))
    gate = net.node("HardSigmoid", net.conv(squeezed, 8, 16), alpha=1 / 6, beta=0.5)
    narrow = net.conv(net.node("Mul", deep, gate), 16, 8)
    return net.model(net.node("Add", narrow, "x"))


def mlp() -> onnx.ModelProto:
    """Three linear layers of tokens, two of them with an activation."""
    net = Net({"x": (4, 6, 16)}, opset=OPSET, seed=3)
    first = net.node("Relu", net.linear("x", 16, 32))
    second = net.node("Sigmoid", net.linear(first, 32, 32))
    rows = net.node("Reshape", second, net.const([24, 32], np.int64))
    return net.model(net.linear(rows, 32, 8))


SUBJECTS: dict[str, Callable[[], onnx.ModelProto]] = {"cnn": cnn, "mobile": mobile, "mlp": mlp}
