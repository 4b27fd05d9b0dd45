"""RepVGG (Ding et al. 2021): A0, A1 and B0 in training form with three branches, and in the deploy
form they fold into.

Both forms draw the same branches, so the same seed gives two models of the same function. Bolt
(Xing et al. 2022, section 4.3) varies the deploy form: other activations (table 4), and RepVGGAug,
where a 1x1 convolution as wide follows each 3x3 but the last (tables 5 and 6), or each of the first
three alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from models.builder import GAIN, Array, Builder
from models.norm import BatchNorm


@dataclass(frozen=True)
class _Variant:
    blocks: tuple[int, int, int, int]
    widths: tuple[int, int, int, int]
    stem: int


VARIANTS = {
    "a0": _Variant((2, 4, 14, 1), (48, 96, 192, 1280), 48),
    "a1": _Variant((2, 4, 14, 1), (64, 128, 256, 1280), 64),
    "b0": _Variant((4, 6, 16, 1), (64, 128, 256, 1280), 64),
}
# it keeps a larger share of a larger variance: what is above one would grow with each of 54 layers
_GAIN = GAIN | {"hard_swish": 1.5}
EVERY = 99  # more layers than any variant has
_IDENTITY = 0.2  # scale of the identity branch: the sum over many blocks keeps its variance


@dataclass(frozen=True)
class _Branches:
    """One block's weights: a 3x3 and a 1x1 convolution, each normalized, and where shapes allow
    it a normalized identity."""

    dense: Array
    dense_norm: BatchNorm
    point: Array
    point_norm: BatchNorm
    identity_norm: BatchNorm | None


def repvgg(
    g: Builder, variant: str, deploy: bool, activation: str = "relu", augmented: int = 0
) -> None:
    """x[N, 3, 224, 224] -> logits[N, 1000]; behind each of the first `augmented` layers, but never
    the last one, follows a 1x1 convolution of RepVGGAug, without branches of its own."""
    spec, gain = VARIANTS[variant], _GAIN[activation]
    block = _deployed if deploy else _training
    x, c = g.input("x", 3, 224, 224), 3
    widths = [
        spec.stem,
        *(w for w, count in zip(spec.widths, spec.blocks, strict=True) for _ in range(count)),
    ]
    # a stage's first block halves the image
    firsts = {0} | {1 + sum(spec.blocks[:stage]) for stage in range(4)}
    for index, k in enumerate(widths):
        scope, stride = f"blocks.{index}", 2 if index in firsts else 1
        x = g.activation(
            block(g, x, scope, _draw(g, c, k, stride, gain), stride), scope, activation
        )
        if index < min(augmented, len(widths) - 1):
            x = g.activation(
                g.conv(x, f"{scope}.aug", k, k, 1, gain=gain), f"{scope}.aug", activation
            )
        c = k
    x = g.node("Flatten", [g.node("GlobalAveragePool", [x], "gap")], axis=1)
    g.output("logits", g.gemm(x, "linear", c, 1000), 1000)


def _draw(g: Builder, c: int, k: int, stride: int, gain: float) -> _Branches:
    """Branches whose sum has about the variance of one convolution."""
    identity = c == k and stride == 1
    each = gain / math.sqrt(2)
    dense = g.normal((k, c, 3, 3), each / math.sqrt(9 * c))
    point = g.normal((k, c, 1, 1), each / math.sqrt(c))
    norms = BatchNorm.draw(g, k), BatchNorm.draw(g, k)
    return _Branches(
        dense, norms[0], point, norms[1], BatchNorm.draw(g, k, _IDENTITY) if identity else None
    )


def _training(g: Builder, x: str, scope: str, branches: _Branches, stride: int) -> str:
    dense = g.conv_with(x, f"{scope}.rbr_dense.conv", branches.dense, None, stride, 1)
    total = branches.dense_norm.node(g, dense, f"{scope}.rbr_dense.bn")
    point = g.conv_with(x, f"{scope}.rbr_1x1.conv", branches.point, None, stride, 0)
    total = g.node("Add", [total, branches.point_norm.node(g, point, f"{scope}.rbr_1x1.bn")], scope)
    if branches.identity_norm:
        total = g.node(
            "Add", [total, branches.identity_norm.node(g, x, f"{scope}.rbr_identity")], scope
        )
    return total


def _deployed(g: Builder, x: str, scope: str, branches: _Branches, stride: int) -> str:
    """One 3x3 convolution: the 1x1 filter and the identity sit in its center (section 3.3)."""
    weight, bias = branches.dense_norm.fold(branches.dense)
    point, shift = branches.point_norm.fold(branches.point)
    weight[:, :, 1, 1] += point[:, :, 0, 0]
    bias = bias + shift
    if branches.identity_norm:
        identity, shift = branches.identity_norm.fold(np.eye(weight.shape[0], dtype=np.float32))
        weight[:, :, 1, 1] += identity
        bias = bias + shift
    return g.conv_with(x, f"{scope}.rbr_reparam", weight, bias, stride, 1)
