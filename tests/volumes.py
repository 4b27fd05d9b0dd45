"""A network of volumes, built by hand as exporters write it."""

from __future__ import annotations

import onnx

from tests.support import Net


def unet() -> onnx.ModelProto:
    """Two levels below the first, one by MaxPool and one by strides; InstanceNormalization and
    LeakyReLU, as nnU-Net has them; x is [1, 16, 4, 8, 8]."""
    net = Net({"x": (1, 16, 4, 8, 8)})

    def block(x: str, c: int, k: int, stride: int = 1) -> str:
        weight = net.normal(k, c, 3, 3, 3, scale=(27 * c) ** -0.5)
        y = net.node("Conv", x, weight, net.normal(k), pads=[1] * 6, strides=[stride] * 3)
        y = net.node("InstanceNormalization", y, net.normal(k), net.normal(k))
        return net.node("LeakyRelu", y, alpha=0.01)

    def joined(below: str, side: str, c: int, k: int) -> str:
        weight = net.normal(c, k, 2, 2, 2, scale=(8 * c) ** -0.5)
        up = net.node("ConvTranspose", below, weight, net.normal(k), strides=[2] * 3)
        return block(net.node("Concat", up, side, axis=1), 2 * k, k)

    first = block("x", 16, 16)
    second = block(net.node("MaxPool", first, kernel_shape=[2] * 3, strides=[2] * 3), 16, 32)
    third = block(second, 32, 64, stride=2)
    y = joined(joined(third, second, 64, 32), first, 32, 16)
    return net.model(net.node("Conv", y, net.normal(8, 16, 1, 1, 1), net.normal(8)))
