"""Small networks with the graph shapes of published vision models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto

from tests.support import Net

SAME: dict[str, Any] = {"pads": [1, 1, 1, 1]}


def _sizes(net: Net, *values: int) -> str:
    return net.const(values, np.int64)


def _silu(net: Net, x: str) -> str:
    return net.node("Mul", x, net.node("Sigmoid", x))


def _hard_swish(net: Net, x: str) -> str:
    """As exporters wrote it before opset 14."""
    gate = net.node("Clip", net.node("Add", x, net.const(3.0)), net.const(0.0), net.const(6.0))
    return net.node("Div", net.node("Mul", x, gate), net.const(6.0))


def _head(net: Net, x: str, channels: int, classes: int = 10) -> str:
    flat = net.node("Flatten", net.node("GlobalAveragePool", x), axis=1)
    return net.node(
        "Gemm",
        flat,
        net.normal(classes, channels, scale=channels**-0.5),
        net.normal(classes),
        transB=1,
    )


def _norm_channels(net: Net, x: str, channels: int) -> str:
    """LayerNorm of [N, H, W, C] over the channels."""
    return net.node(
        "LayerNormalization", x, net.normal(channels), net.normal(channels), axis=-1, epsilon=1e-6
    )


def resnet() -> ModelProto:
    """Bottlenecks with and without a projection."""
    net = Net({"x": ("N", 3, 32, 32)})
    y = net.node(
        "Relu", net.batchnorm(net.conv("x", 3, 12, 7, bias=False, strides=[2, 2], pads=[3] * 4), 12)
    )
    y = net.node("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], **SAME)
    for channels, out, stride in ((12, 24, 1), (24, 24, 1), (24, 40, 2)):
        inner = net.node("Relu", net.batchnorm(net.conv(y, channels, 10, bias=False), 10))
        inner = net.node(
            "Relu",
            net.batchnorm(net.conv(inner, 10, 10, 3, bias=False, strides=[stride] * 2, **SAME), 10),
        )
        inner = net.batchnorm(net.conv(inner, 10, out, bias=False), out)
        if channels != out or stride != 1:
            y = net.batchnorm(net.conv(y, channels, out, bias=False, strides=[stride] * 2), out)
        y = net.node("Relu", net.node("Add", inner, y))
    return net.model(_head(net, y, 40))


def repvgg() -> ModelProto:
    """Three branches, one of them a BatchNormalization alone."""
    net = Net({"x": (2, 8, 12, 12)})
    y = "x"
    for _ in range(3):
        wide = net.batchnorm(net.conv(y, 8, 8, 3, bias=False, **SAME), 8)
        narrow = net.batchnorm(net.conv(y, 8, 8, bias=False), 8)
        y = net.node("Relu", net.node("Add", net.node("Add", wide, narrow), net.batchnorm(y, 8)))
    return net.model(_head(net, y, 8))


def mobilenet() -> ModelProto:
    """Inverted residuals: depthwise convolutions, squeeze and excite, Hardswish."""
    net = Net({"x": (1, 3, 24, 24)}, opset=13)
    y = _hard_swish(
        net, net.batchnorm(net.conv("x", 3, 16, 3, bias=False, strides=[2, 2], **SAME), 16)
    )
    for channels in (16, 16):
        inner = _hard_swish(net, net.conv(y, channels, 40))
        inner = net.node("Relu", net.conv(inner, 40, 40, 3, group=40, **SAME))
        gate = net.node("Relu", net.conv(net.node("GlobalAveragePool", inner), 40, 12))
        inner = net.node(
            "Mul", net.node("HardSigmoid", net.conv(gate, 12, 40), alpha=1 / 6, beta=0.5), inner
        )
        y = net.node("Add", net.conv(inner, 40, channels), y)
    return net.model(_head(net, _hard_swish(net, net.conv(y, 16, 33)), 33))


def ghostnet() -> ModelProto:
    """Half of the channels are cheap functions of the other half, cut to an odd number."""
    net = Net({"x": (2, 6, 10, 10)})
    y = "x"
    for channels in (6, 13):
        primary = net.node("Relu", net.conv(y, channels, 7))
        cheap = net.node("Relu", net.conv(primary, 7, 7, 3, group=7, **SAME))
        both = net.node("Concat", primary, cheap, axis=1)
        y = net.node("Slice", both, _sizes(net, 0), _sizes(net, 13), _sizes(net, 1))
    return net.model(_head(net, y, 13))


def shufflenet() -> ModelProto:
    """Split, a branch, Concat, and the channel shuffle of Reshape and Transpose."""
    net = Net({"x": (2, 12, 10, 10)}, opset=13)
    y = "x"
    for _ in range(2):
        kept, given = net.several("Split", y, _sizes(net, 6, 6), outputs=2, axis=1)
        given = net.node(
            "Relu",
            net.conv(
                net.conv(net.node("Relu", net.conv(given, 6, 6)), 6, 6, 3, group=6, **SAME), 6, 6
            ),
        )
        y = net.node(
            "Reshape", net.node("Concat", kept, given, axis=1), _sizes(net, -1, 2, 6, 10, 10)
        )
        y = net.node(
            "Reshape", net.node("Transpose", y, perm=[0, 2, 1, 3, 4]), _sizes(net, -1, 12, 10, 10)
        )
    return net.model(_head(net, net.node("Relu", net.conv(y, 12, 20)), 20))


def densenet() -> ModelProto:
    """Each layer reads all before it, through a BatchNormalization of its own."""
    net = Net({"x": (2, 9, 12, 12)})
    parts, channels = ["x"], 9
    for _ in range(3):
        y = net.node("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]
        y = net.conv(net.node("Relu", net.batchnorm(y, channels)), channels, 16, bias=False)
        parts.append(net.conv(net.node("Relu", net.batchnorm(y, 16)), 16, 5, 3, bias=False, **SAME))
        channels += 5
    y = net.node("Relu", net.batchnorm(net.node("Concat", *parts, axis=1), channels))
    return net.model(
        _head(
            net,
            net.node("AveragePool", net.conv(y, channels, 11), kernel_shape=[2, 2], strides=[2, 2]),
            11,
        )
    )


def inception() -> ModelProto:
    """Four branches of odd widths, one behind a pooling, joined by Concat."""
    net = Net({"x": (2, 5, 9, 9)})
    branches = [
        net.node("Relu", net.conv("x", 5, 7)),
        net.node("Relu", net.conv(net.node("Relu", net.conv("x", 5, 3)), 3, 9, 3, **SAME)),
        net.node("Relu", net.conv(net.node("MaxPool", "x", kernel_shape=[3, 3], **SAME), 5, 4)),
        net.node("AveragePool", "x", kernel_shape=[3, 3], count_include_pad=1, **SAME),
    ]
    return net.model(
        _head(net, net.node("Relu", net.conv(net.node("Concat", *branches, axis=1), 25, 8)), 8)
    )


def convnext() -> ModelProto:
    """Depthwise 7x7, then LayerNorm and two Linears in channels-last order, layer scale,
    residual."""
    net = Net({"x": (2, 3, 24, 24)})
    y = net.conv("x", 3, 12, 4, strides=[4, 4])
    for _ in range(2):
        inner = net.conv(y, 12, 12, 7, group=12, pads=[3] * 4)
        inner = _norm_channels(net, net.node("Transpose", inner, perm=[0, 2, 3, 1]), 12)
        inner = net.linear(inner, 12, 48)
        gate = net.node(
            "Add", net.node("Erf", net.node("Div", inner, net.const(2**0.5))), net.const(1.0)
        )
        inner = net.node("Mul", inner, net.node("Mul", gate, net.const(0.5)))
        inner = net.node("Mul", net.linear(inner, 48, 12), net.normal(12))
        y = net.node("Add", y, net.node("Transpose", inner, perm=[0, 3, 1, 2]))
    return net.model(_head(net, y, 12))


def swin() -> ModelProto:
    """Attention in windows: the image is cut up and put together by Reshape and Transpose."""
    net = Net({"x": (1, 3, 16, 16)})
    y = net.node("Transpose", net.conv("x", 3, 8, 2, strides=[2, 2]), perm=[0, 2, 3, 1])
    cut = net.node("Reshape", _norm_channels(net, y, 8), _sizes(net, 1, 2, 4, 2, 4, 8))
    windows = net.node(
        "Reshape", net.node("Transpose", cut, perm=[0, 1, 3, 2, 4, 5]), _sizes(net, -1, 16, 8)
    )
    heads = net.node(
        "Transpose",
        net.node("Reshape", net.linear(windows, 8, 24), _sizes(net, -1, 16, 3, 2, 4)),
        perm=[2, 0, 3, 1, 4],
    )
    q, k, v = (net.node("Gather", heads, net.const(i, np.int64), axis=0) for i in range(3))
    scores = net.node(
        "MatMul", net.node("Mul", q, net.const(0.5)), net.node("Transpose", k, perm=[0, 1, 3, 2])
    )
    attended = net.node(
        "MatMul", net.node("Softmax", net.node("Add", scores, net.normal(1, 2, 16, 16)), axis=-1), v
    )
    joined = net.node(
        "Reshape", net.node("Transpose", attended, perm=[0, 2, 1, 3]), _sizes(net, -1, 16, 8)
    )
    back = net.node("Reshape", net.linear(joined, 8, 8), _sizes(net, 1, 2, 2, 4, 4, 8))
    back = net.node(
        "Reshape", net.node("Transpose", back, perm=[0, 1, 3, 2, 4, 5]), _sizes(net, 1, 8, 8, 8)
    )
    y = net.node("Add", y, back)
    return net.model(net.linear(net.node("ReduceMean", y, axes=[1, 2], keepdims=0), 8, 10))


def unet() -> ModelProto:
    """Linear Resize to the size of what it is joined with, as PyTorch exports it with symbolic
    sizes."""
    net = Net({"x": ("N", 3, "H", "W")})
    down, skips, y = [(3, 6), (6, 11)], [], "x"
    for channels, out in down:
        y = net.node("Relu", net.conv(y, channels, out, 3, **SAME))
        skips.append((y, out))
        y = net.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    y, channels = net.node("Relu", net.conv(y, 11, 16, 3, **SAME)), 16
    for skip, width in reversed(skips):
        size = net.node("Slice", net.node("Shape", skip), _sizes(net, 2), _sizes(net, 4))
        batch = net.node("Slice", net.node("Shape", y), _sizes(net, 0), _sizes(net, 2))
        sizes = net.node("Concat", batch, size, axis=0)
        y = net.node(
            "Resize",
            y,
            "",
            "",
            sizes,
            mode="linear",
            coordinate_transformation_mode="align_corners",
        )
        y = net.node(
            "Relu",
            net.conv(net.node("Concat", skip, y, axis=1), width + channels, width, 3, **SAME),
        )
        channels = width
    return net.model(
        net.node("Sigmoid", net.conv(y, 6, 1)), net.node("Softmax", net.conv(y, 6, 3), axis=1)
    )


def deeplab() -> ModelProto:
    """ASPP: dilated convolutions and an image-wide feature, stretched back by Resize."""
    net = Net({"x": (1, 8, 16, 16)})
    branches = [net.node("Relu", net.conv("x", 8, 6))]
    branches += [
        net.node("Relu", net.conv("x", 8, 6, 3, dilations=[d, d], pads=[d] * 4)) for d in (2, 4, 6)
    ]
    pooled = net.node("Relu", net.conv(net.node("GlobalAveragePool", "x"), 8, 6))
    branches.append(net.node("Resize", pooled, "", "", _sizes(net, 1, 6, 16, 16), mode="linear"))
    y = net.node("Relu", net.conv(net.node("Concat", *branches, axis=1), 30, 12, bias=False))
    # no ArgMax behind the scores: indices have to be equal, and rounding to 16 bits may choose
    # others
    return net.model(
        net.node("Resize", net.conv(y, 12, 5), "", net.const([1, 1, 4, 4]), mode="linear")
    )


def yolo() -> ModelProto:
    """C2f blocks, SPPF, nearest-neighbour upsampling, and a head that decodes boxes."""
    net = Net({"x": (1, 3, 32, 32)}, opset=13)
    stem = _silu(
        net,
        net.conv(
            _silu(net, net.conv("x", 3, 8, 3, strides=[2, 2], **SAME)),
            8,
            16,
            3,
            strides=[2, 2],
            **SAME,
        ),
    )
    halves = net.several(
        "Split", _silu(net, net.conv(stem, 16, 16)), _sizes(net, 8, 8), outputs=2, axis=1
    )
    inner = net.node(
        "Add",
        halves[1],
        _silu(net, net.conv(_silu(net, net.conv(halves[1], 8, 8, 3, **SAME)), 8, 8, 3, **SAME)),
    )
    small = _silu(net, net.conv(net.node("Concat", *halves, inner, axis=1), 24, 16))
    deep = _silu(net, net.conv(small, 16, 20, 3, strides=[2, 2], **SAME))
    pools = [deep]
    for _ in range(3):
        pools.append(net.node("MaxPool", pools[-1], kernel_shape=[5, 5], pads=[2] * 4))
    deep = _silu(net, net.conv(net.node("Concat", *pools, axis=1), 80, 20))
    up = net.node(
        "Resize",
        deep,
        "",
        net.const([1, 1, 2, 2]),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    merged = _silu(net, net.conv(net.node("Concat", up, small, axis=1), 36, 16))
    maps = [
        net.node("Reshape", net.conv(y, c, 9), _sizes(net, 1, 9, -1))
        for y, c in ((merged, 16), (deep, 20))
    ]
    boxes, scores = net.several(
        "Split", net.node("Concat", *maps, axis=2), _sizes(net, 4, 5), outputs=2, axis=1
    )
    centers, extents = net.several("Split", boxes, _sizes(net, 2, 2), outputs=2, axis=1)
    corners = net.node(
        "Concat", net.node("Sub", centers, extents), net.node("Add", centers, extents), axis=1
    )
    return net.model(
        net.node(
            "Concat", net.node("Mul", corners, net.const(8.0)), net.node("Sigmoid", scores), axis=1
        )
    )


def super_resolution() -> ModelProto:
    """PReLU, a global residual, DepthToSpace."""
    net = Net({"x": ("N", 1, "H", "W")}, opset=11)
    first = y = net.node("PRelu", net.conv("x", 1, 10, 5, pads=[2] * 4), net.normal(10, 1, 1))
    for _ in range(2):
        y = net.node(
            "Add",
            y,
            net.conv(
                net.node("PRelu", net.conv(y, 10, 10, 3, **SAME), net.const([0.25])),
                10,
                10,
                3,
                **SAME,
            ),
        )
    y = net.conv(net.node("Add", y, first), 10, 9, 3, **SAME)
    return net.model(net.node("DepthToSpace", y, blocksize=3, mode="CRD"))


def attention_gates() -> ModelProto:
    """CBAM and ECA: means and maxima over channels, a 1-D convolution over them, products that
    broadcast."""
    net = Net({"x": (2, 3, 12, 12)})
    y = net.node("Relu", net.conv("x", 3, 10, 3, **SAME))
    means = net.node(
        "Transpose",
        net.node("Squeeze", net.node("GlobalAveragePool", y), _sizes(net, 3)),
        perm=[0, 2, 1],
    )
    weights = net.node("Conv", means, net.normal(1, 1, 3), pads=[1, 1])
    y = net.node(
        "Mul",
        y,
        net.node(
            "Sigmoid",
            net.node("Unsqueeze", net.node("Transpose", weights, perm=[0, 2, 1]), _sizes(net, 3)),
        ),
    )
    both = net.node(
        "Concat", net.node("ReduceMean", y, axes=[1]), net.node("ReduceMax", y, axes=[1]), axis=1
    )
    y = net.node("Mul", y, net.node("Sigmoid", net.conv(both, 2, 1, 7, bias=False, pads=[3] * 4)))
    return net.model(_head(net, net.node("Relu", net.conv(y, 10, 7)), 7))


def style_transfer() -> ModelProto:
    """Reflection padding, InstanceNormalization, nearest-neighbour Resize by an old opset's
    rules."""
    net = Net({"x": (1, 3, 16, 16)}, opset=11)
    pads = _sizes(net, 0, 0, 1, 1, 0, 0, 1, 1)

    def block(x: str, channels: int, out: int, strides: Sequence[int]) -> str:
        y = net.conv(
            net.node("Pad", x, pads, mode="reflect"), channels, out, 3, strides=list(strides)
        )
        return net.node(
            "Relu", net.node("InstanceNormalization", y, net.normal(out), net.normal(out))
        )

    y = block(block("x", 3, 9, (1, 1)), 9, 14, (2, 2))
    y = net.node("Resize", y, net.const([]), net.const([1, 1, 2, 2]), mode="nearest")
    return net.model(net.node("Tanh", net.conv(block(y, 14, 9, (1, 1)), 9, 3)))


def detector() -> ModelProto:
    """Scores and boxes to NonMaxSuppression and TopK: integer outputs, sizes that depend on
    data."""
    net = Net({"x": (1, 3, 16, 16)})
    y = net.node("Relu", net.conv("x", 3, 8, 3, **SAME))
    rows = net.node(
        "Transpose", net.node("Reshape", net.conv(y, 8, 6), _sizes(net, 1, 6, 256)), perm=[0, 2, 1]
    )
    boxes, scores = net.several("Split", rows, _sizes(net, 4, 2), outputs=2, axis=2)
    scores = net.node("Transpose", net.node("Sigmoid", scores), perm=[0, 2, 1])
    selected = net.node(
        "NonMaxSuppression", boxes, scores, _sizes(net, 4), net.const([0.5]), net.const([0.1])
    )
    best, where = net.several(
        "TopK",
        net.node("ReduceMax", scores, axes=[1], keepdims=0),
        _sizes(net, 5),
        outputs=2,
        axis=1,
    )
    return net.model(
        selected,
        best,
        where,
        net.node("GatherND", boxes, net.node("Unsqueeze", where, _sizes(net, 2)), batch_dims=1),
    )
