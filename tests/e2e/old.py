"""Networks as exporters of opsets 7 to 10 wrote them, and in the forms of today: each operator
by the opset of the model."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, helper

from tests.support import Net


class AnyNet(Net):
    """A Net that writes operators in the form of its opset."""

    def normalized(self, x: str, c: int) -> str:
        y = self.batchnorm(x, c)
        if self.opset < 9:
            self.nodes[-1].attribute.append(helper.make_attribute("spatial", 1))
        return y

    def relu6(self, x: str) -> str:
        return (
            self.node("Clip", x, min=0.0, max=6.0)
            if self.opset < 11
            else self.node("Clip", x, self.const(0.0), self.const(6.0))
        )

    def padded(self, x: str, by: int) -> str:
        pads = [0, 0, by, by, 0, 0, by, by]
        return (
            self.node("Pad", x, pads=pads, value=0.0)
            if self.opset < 11
            else self.node("Pad", x, self.const(pads, np.int64))
        )

    def larger(self, x: str) -> str:
        """Height and width times two, each pixel four times."""
        scales = [1.0, 1.0, 2.0, 2.0]
        if self.opset < 9:
            return self.node("Upsample", x, scales=scales, mode="nearest")
        if self.opset < 11:
            return self.node(
                "Upsample" if self.opset < 10 else "Resize", x, self.const(scales), mode="nearest"
            )
        roi = self.const([]) if self.opset < 13 else ""
        return self.node(
            "Resize",
            x,
            roi,
            self.const(scales),
            mode="nearest",
            nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        )

    def channels(self, x: str, begin: int, end: int) -> str:
        if self.opset < 10:
            return self.node("Slice", x, starts=[begin], ends=[end], axes=[1])
        return self.node(
            "Slice", x, *(self.const([number], np.int64) for number in (begin, end, 1))
        )

    def dropped(self, x: str) -> str:
        """With its mask, which nobody reads, as exporters wrote it."""
        if self.opset < 12:
            return self.node("Dropout", x, outputs=2, ratio=0.5)
        return self.node("Dropout", x, self.const(0.5), outputs=2)

    def squeezed(self, x: str) -> str:
        return (
            self.node("Squeeze", x, axes=[2, 3])
            if self.opset < 13
            else self.node("Squeeze", x, self.const([2, 3], np.int64))
        )

    def classified(self, x: str, c: int, classes: int) -> str:
        return self.node(
            "Softmax",
            self.node("Gemm", x, self.normal(classes, c), self.normal(classes), transB=1),
            axis=1,
        )


def resnet(opset: int) -> ModelProto:
    net = AnyNet({"x": (2, 3, 32, 32)}, opset)
    y = net.node(
        "Relu",
        net.normalized(net.conv("x", 3, 16, 7, bias=False, pads=[3] * 4, strides=[2, 2]), 16),
    )
    y = net.node("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for _ in range(2):
        z = net.node("Relu", net.normalized(net.conv(y, 16, 16, 3, bias=False, pads=[1] * 4), 16))
        y = net.node(
            "Relu",
            net.node(
                "Add", net.normalized(net.conv(z, 16, 16, 3, bias=False, pads=[1] * 4), 16), y
            ),
        )
    return _finished(
        net, net.classified(net.node("Flatten", net.node("GlobalAveragePool", y), axis=1), 16, 10)
    )


def squeezenet(opset: int) -> ModelProto:
    net = AnyNet({"x": (2, 3, 32, 32)}, opset)
    y = net.node("Relu", net.conv("x", 3, 32, 3, strides=[2, 2]))
    for _ in range(2):
        z = net.node("Relu", net.conv(y, 32, 8))
        parts = [
            net.node("Relu", net.conv(z, 8, 16)),
            net.node("Relu", net.conv(z, 8, 16, 3, pads=[1] * 4)),
        ]
        y = net.node("Concat", *parts, axis=1)
    y = net.node("Relu", net.conv(net.dropped(y), 32, 10))
    return _finished(
        net, net.node("Softmax", net.squeezed(net.node("GlobalAveragePool", y)), axis=1)
    )


def mobilenet(opset: int) -> ModelProto:
    net = AnyNet({"x": (2, 3, 32, 32)}, opset)
    y = net.relu6(
        net.normalized(net.conv(net.padded("x", 1), 3, 16, 3, bias=False, strides=[2, 2]), 16)
    )
    for _ in range(2):
        z = net.relu6(net.normalized(net.conv(y, 16, 64, bias=False), 64))
        z = net.relu6(
            net.normalized(net.conv(net.padded(z, 1), 64, 64, 3, bias=False, group=64), 64)
        )
        y = net.node("Add", y, net.normalized(net.conv(z, 64, 16, bias=False), 16))
    y = net.dropped(net.squeezed(net.node("GlobalAveragePool", y)))
    return _finished(net, net.classified(y, 16, 10))


def unet(opset: int) -> ModelProto:
    net = AnyNet({"x": (2, 3, 32, 32)}, opset)
    high = net.node(
        "LeakyRelu",
        net.normalized(net.conv("x", 3, 16, 3, bias=False, pads=[1] * 4), 16),
        alpha=0.1,
    )
    low = net.node(
        "LeakyRelu",
        net.normalized(net.conv(high, 16, 32, 3, bias=False, pads=[1] * 4, strides=[2, 2]), 32),
        alpha=0.1,
    )
    y = net.node("Concat", net.larger(low), high, axis=1)
    y = net.node("Relu", net.conv(y, 48, 32, 3, pads=[1] * 4))
    halves = [net.conv(net.channels(y, 16 * half, 16 * half + 16), 16, 8) for half in range(2)]
    return _finished(net, net.node("Sigmoid", net.node("Mul", *halves)))


def _finished(net: AnyNet, y: str) -> ModelProto:
    """The model; below opset 9 in IR 3, which wants initializers among the inputs."""
    model = net.model(y)
    if net.opset < 9:
        model.ir_version = 3
        model.graph.input.extend(
            helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
            for t in model.graph.initializer
        )
    return model
