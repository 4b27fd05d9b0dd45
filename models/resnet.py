"""ResNet-18 and ResNet-50 (He et al. 2016; torchvision's v1.5, whose bottleneck strides in the 3x3
convolution), and ResNeXt-50 32x4d (Xie et al. 2017), whose 3x3 convolutions are twice as wide, in
32 groups.

ResNet-18 keeps its BatchNormalization nodes, as an export in training mode does; in ResNet-50 they
are folded into the convolutions, as an export in evaluation mode does. So the two cover both forms
that tools meet.
"""

from __future__ import annotations

from functools import partial

from models.builder import GAIN, Builder
from models.norm import batch_norm

_BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
_RELU = GAIN["relu"]
_BRANCH = 0.3  # a residual branch's last gain: the sum over many blocks keeps its variance


def resnet(g: Builder, depth: int, groups: int = 1) -> None:
    """x[N, 3, 224, 224] -> logits[N, 1000]. `groups`, 1 or 32: of the bottlenecks' 3x3
    convolutions."""
    bottleneck = depth == 50
    x = g.relu(_conv(g, g.input("x", 3, 224, 224), "conv1", 3, 64, 7, 2, _RELU, bottleneck))
    x = g.node("MaxPool", [x], "maxpool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    c = 64
    for stage, count in enumerate(_BLOCKS[depth]):
        for index in range(count):
            stride = 2 if stage and not index else 1
            block = partial(_bottleneck, groups=groups) if bottleneck else _basic
            x, c = block(g, x, f"layer{stage + 1}.{index}", c, 64 << stage, stride)
    x = g.node("Flatten", [g.node("GlobalAveragePool", [x], "avgpool")], axis=1)
    g.output("logits", g.gemm(x, "fc", c, 1000), 1000)


def _conv(
    g: Builder,
    x: str,
    scope: str,
    c: int,
    k: int,
    r: int,
    stride: int,
    gain: float,
    folded: bool,
    groups: int = 1,
) -> str:
    if folded:
        return g.conv(x, scope, c, k, r, stride, groups=groups, gain=gain)
    x = g.conv(x, scope, c, k, r, stride, bias=False, gain=gain)
    return batch_norm(g, x, scope.replace("conv", "bn") if "conv" in scope else f"{scope}.bn", k)


def _shortcut(g: Builder, x: str, scope: str, c: int, k: int, stride: int, folded: bool) -> str:
    return (
        x
        if c == k and stride == 1
        else _conv(g, x, f"{scope}.downsample.0", c, k, 1, stride, 1.0, folded)
    )


def _basic(g: Builder, x: str, scope: str, c: int, width: int, stride: int) -> tuple[str, int]:
    """Two 3x3 convolutions; returns the value and its channels."""
    y = g.relu(_conv(g, x, f"{scope}.conv1", c, width, 3, stride, _RELU, False), scope)
    y = _conv(g, y, f"{scope}.conv2", width, width, 3, 1, _BRANCH, False)
    return (
        g.relu(g.node("Add", [y, _shortcut(g, x, scope, c, width, stride, False)], scope), scope),
        width,
    )


def _bottleneck(
    g: Builder, x: str, scope: str, c: int, width: int, stride: int, groups: int
) -> tuple[str, int]:
    """1x1, 3x3, 1x1 to four times the width; returns the value and its channels."""
    inner = width if groups == 1 else 2 * width
    y = g.relu(_conv(g, x, f"{scope}.conv1", c, inner, 1, 1, _RELU, True), scope)
    y = g.relu(_conv(g, y, f"{scope}.conv2", inner, inner, 3, stride, _RELU, True, groups), scope)
    y = _conv(g, y, f"{scope}.conv3", inner, 4 * width, 1, 1, _BRANCH, True)
    return (
        g.relu(
            g.node("Add", [y, _shortcut(g, x, scope, c, 4 * width, stride, True)], scope), scope
        ),
        4 * width,
    )
