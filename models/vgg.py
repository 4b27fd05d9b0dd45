"""VGG-16 and VGG-19 (Simonyan and Zisserman 2014, configurations D and E), as torchvision has
them: 224 x 224, no normalization."""

from __future__ import annotations

from models.builder import GAIN, Builder

DEPTHS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_WIDTHS = (64, 128, 256, 512, 512)


def vgg(g: Builder, depth: int) -> None:
    """x[N, 3, 224, 224] -> logits[N, 1000]."""
    relu = GAIN["relu"]
    x, c, index = g.input("x", 3, 224, 224), 3, 0
    for count, width in zip(DEPTHS[depth], _WIDTHS, strict=True):
        for _ in range(count):
            x = g.relu(
                g.conv(x, f"features.{index}", c, width, 3, gain=relu), f"features.{index + 1}"
            )
            c, index = width, index + 2
        x = g.node("MaxPool", [x], f"features.{index}", kernel_shape=[2, 2], strides=[2, 2])
        index += 1
    x = g.node("Flatten", [x], axis=1)
    x = g.relu(g.gemm(x, "classifier.0", 512 * 7 * 7, 4096, relu), "classifier.1")
    x = g.relu(g.gemm(x, "classifier.3", 4096, 4096, relu), "classifier.4")
    g.output("logits", g.gemm(x, "classifier.6", 4096, 1000), 1000)
