"""The dense parts of recommenders: DLRM's multi-layer perceptrons (Naumov et al. 2019) and DCNv2
(Wang et al. 2021)."""

from __future__ import annotations

import itertools

from models.builder import GAIN, Builder


def mlp(g: Builder, widths: tuple[int, ...], last: str = "Relu") -> None:
    """x[N, widths[0]] -> y[N, widths[-1]], a ReLU behind each layer but the last, which has
    `last`."""
    g.output("y", _tower(g, g.input("x", widths[0]), "mlp", widths, last), widths[-1])


def dcn_v2(
    g: Builder, width: int = 429, crosses: int = 3, deep: tuple[int, ...] = (256, 64, 16)
) -> None:
    """x[N, width] -> probability[N, 1]: cross layers x' = x0 * (W x + b) + x beside a deep tower,
    then one logit.

    13 dense features and 26 embeddings of 16 numbers make the width of 429 (Criteo).
    """
    start = g.input("x", width)
    x = start
    for layer in range(crosses):
        scope = f"cross.{layer}"
        product = g.node("Mul", [start, g.gemm(x, scope, width, width, 0.5)], scope)
        x = g.node("Add", [product, x], scope)
    x = g.node("Concat", [x, _tower(g, start, "deep", (width, *deep))], axis=1)
    g.output("probability", g.node("Sigmoid", [g.gemm(x, "logit", width + deep[-1], 1, 0.5)]), 1)


def _tower(g: Builder, x: str, scope: str, widths: tuple[int, ...], last: str = "Relu") -> str:
    layers = len(widths) - 1
    for index, (k, n) in enumerate(itertools.pairwise(widths)):
        gain = GAIN["relu"] if index else 1.0
        activation = last if index == layers - 1 else "Relu"
        x = g.node(
            activation, [g.gemm(x, f"{scope}.{2 * index}", k, n, gain)], f"{scope}.{2 * index + 1}"
        )
    return x
