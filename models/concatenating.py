"""SqueezeNet 1.1 (Iandola et al. 2016) and DenseNet-121 (Huang et al. 2017) as torchvision has
them: blocks that join results by Concat."""

from __future__ import annotations

import numpy as np

from models.builder import GAIN, Builder

_FIRES = (
    (16, 64),
    (16, 64),
    None,
    (32, 128),
    (32, 128),
    None,
    (48, 192),
    (48, 192),
    (64, 256),
    (64, 256),
)
_LAYERS, _GROWTH, _BOTTLENECK = (6, 12, 24, 16), 32, 128


def squeezenet1_1(g: Builder) -> None:
    """x[N, 3, 224, 224] -> logits[N, 1000]."""
    x, c = (
        _pool(
            g,
            g.relu(
                g.conv(
                    g.input("x", 3, 224, 224), "features.0", 3, 64, 3, 2, pad=0, gain=GAIN["relu"]
                )
            ),
        ),
        64,
    )
    for index, fire in enumerate(_FIRES, 3):
        if fire is None:
            x = _pool(g, x)
            continue
        scope, (squeezed, expanded) = f"features.{index}", fire
        x = _convolved(g, x, f"{scope}.squeeze", c, squeezed, 1)
        parts = [_convolved(g, x, f"{scope}.expand{r}x{r}", squeezed, expanded, r) for r in (1, 3)]
        x, c = g.node("Concat", parts, scope, axis=1), 2 * expanded
    x = _convolved(g, x, "classifier.1", c, 1000, 1)
    g.output("logits", g.node("Flatten", [g.node("GlobalAveragePool", [x])], axis=1), 1000)


def densenet121(g: Builder) -> None:
    """x[N, 3, 224, 224] -> logits[N, 1000]. Each layer reads the results of all layers of its
    block before it."""
    x, c = (
        g.relu(g.conv(g.input("x", 3, 224, 224), "features.conv0", 3, 64, 7, 2, gain=GAIN["relu"])),
        64,
    )
    x = g.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for block, layers in enumerate(_LAYERS, 1):
        x, c = _dense_block(g, x, f"features.denseblock{block}", c, layers), c + layers * _GROWTH
        x = _normalized(g, x, f"features.transition{block}.norm", c)
        if block < len(_LAYERS):
            x, c = (
                g.conv(
                    x,
                    f"features.transition{block}.conv",
                    c,
                    c // 2,
                    1,
                    bias=False,
                    gain=GAIN["relu"],
                ),
                c // 2,
            )
            x = g.node("AveragePool", [x], kernel_shape=[2, 2], strides=[2, 2])
    x = g.node("Flatten", [g.node("GlobalAveragePool", [x])], axis=1)
    g.output("logits", g.gemm(x, "classifier", c, 1000), 1000)


def _dense_block(g: Builder, x: str, scope: str, c: int, layers: int) -> str:
    features = [x]
    for layer in range(1, layers + 1):
        name, joined = f"{scope}.denselayer{layer}", g.node("Concat", features, scope, axis=1)
        x = _normalized(g, joined, f"{name}.norm1", c + (layer - 1) * _GROWTH)
        x = _convolved(g, x, f"{name}.conv1", c + (layer - 1) * _GROWTH, _BOTTLENECK, 1)
        features.append(g.conv(x, f"{name}.conv2", _BOTTLENECK, _GROWTH, 3, bias=False))
    return g.node("Concat", features, scope, axis=1)


def _normalized(g: Builder, x: str, scope: str, c: int) -> str:
    """BatchNormalization and ReLU, in front of a convolution: nothing that it could be folded
    into."""
    values = {
        "weight": 1 + g.normal((c,), 0.1),
        "bias": g.normal((c,), 0.1),
        "running_mean": g.normal((c,), 0.1),
        "running_var": 1 + np.abs(g.normal((c,), 0.1)),
    }
    return g.relu(
        g.node(
            "BatchNormalization",
            [x, *(g.weight(f"{scope}.{name}", value) for name, value in values.items())],
            scope,
        )
    )


def _convolved(g: Builder, x: str, scope: str, c: int, k: int, r: int) -> str:
    return g.relu(g.conv(x, scope, c, k, r, gain=GAIN["relu"]), scope)


def _pool(g: Builder, x: str) -> str:
    return g.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
