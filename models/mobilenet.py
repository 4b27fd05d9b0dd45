"""MobileNetV3-Large (Howard et al. 2019, table 1), as torchvision has it, normalization folded
into the convolutions."""

from __future__ import annotations

from dataclasses import dataclass

from models.builder import GAIN, Builder


@dataclass(frozen=True)
class _Row:
    kernel: int
    expanded: int
    out: int
    squeeze: int  # channels inside squeeze-and-excitation, 0: none
    activation: str
    stride: int


ROWS = (
    _Row(3, 16, 16, 0, "relu", 1),
    _Row(3, 64, 24, 0, "relu", 2),
    _Row(3, 72, 24, 0, "relu", 1),
    _Row(5, 72, 40, 24, "relu", 2),
    _Row(5, 120, 40, 32, "relu", 1),
    _Row(5, 120, 40, 32, "relu", 1),
    _Row(3, 240, 80, 0, "hard_swish", 2),
    _Row(3, 200, 80, 0, "hard_swish", 1),
    _Row(3, 184, 80, 0, "hard_swish", 1),
    _Row(3, 184, 80, 0, "hard_swish", 1),
    _Row(3, 480, 112, 120, "hard_swish", 1),
    _Row(3, 672, 112, 168, "hard_swish", 1),
    _Row(5, 672, 160, 168, "hard_swish", 2),
    _Row(5, 960, 160, 240, "hard_swish", 1),
    _Row(5, 960, 160, 240, "hard_swish", 1),
)
_SQUEEZE_GAIN = 2.0  # the gate is about one half


def mobilenet_v3_large(g: Builder) -> None:
    """x[N, 3, 224, 224] -> logits[N, 1000]."""
    hard_swish = GAIN["hard_swish"]
    x = g.hard_swish(g.conv(g.input("x", 3, 224, 224), "features.0.0", 3, 16, 3, 2), "features.0.2")
    c = 16
    for index, row in enumerate(ROWS, 1):
        x, c = _inverted_residual(g, x, f"features.{index}.block", c, row), row.out
    x = g.hard_swish(g.conv(x, "features.16.0", c, 960, 1), "features.16.2")
    x = g.node("Flatten", [g.node("GlobalAveragePool", [x], "avgpool")], axis=1)
    x = g.hard_swish(g.gemm(x, "classifier.0", 960, 1280, hard_swish), "classifier.1")
    g.output("logits", g.gemm(x, "classifier.3", 1280, 1000, hard_swish), 1000)


def _inverted_residual(g: Builder, x: str, scope: str, c: int, row: _Row) -> str:
    """Expand by 1x1 (unless as wide already), depthwise, squeeze, project by 1x1; added to x
    where shapes allow it."""
    gain = GAIN[row.activation]
    y = x
    if row.expanded != c:
        y = g.activation(
            g.conv(y, f"{scope}.0.0", c, row.expanded, 1), f"{scope}.0.2", row.activation
        )
    y = g.conv(
        y,
        f"{scope}.1.0",
        row.expanded,
        row.expanded,
        row.kernel,
        row.stride,
        groups=row.expanded,
        gain=gain,
    )
    y = g.activation(y, f"{scope}.1.2", row.activation)
    if row.squeeze:
        y = _squeeze(g, y, f"{scope}.2", row.expanded, row.squeeze)
        gain *= _SQUEEZE_GAIN
    residual = c == row.out and row.stride == 1
    y = g.conv(y, f"{scope}.3.0", row.expanded, row.out, 1, gain=gain * (0.5 if residual else 1.0))
    return g.node("Add", [x, y], scope) if residual else y


def _squeeze(g: Builder, x: str, scope: str, c: int, inner: int) -> str:
    """Squeeze-and-excitation: a gate per channel from the mean over the image."""
    gate = g.node("GlobalAveragePool", [x], f"{scope}.avgpool")
    gate = g.relu(g.conv(gate, f"{scope}.fc1", c, inner, 1), f"{scope}.activation")
    gate = g.conv(gate, f"{scope}.fc2", inner, c, 1)
    gate = g.node("HardSigmoid", [gate], f"{scope}.scale_activation", alpha=1 / 6, beta=0.5)
    return g.node("Mul", [gate, x], scope)
