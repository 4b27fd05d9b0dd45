"""Batch normalization with plausible statistics, and its folding into the convolution before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.builder import Array, Builder


@dataclass(frozen=True)
class BatchNorm:
    """Per-channel scale, shift, mean and variance."""

    scale: Array
    shift: Array
    mean: Array
    variance: Array
    epsilon: float = 1e-5

    @classmethod
    def draw(cls, g: Builder, channels: int, scale: float = 1.0) -> BatchNorm:
        """Statistics near those of unit-variance activations, and a scale near `scale`."""
        near_one = g.random.uniform(0.8, 1.2, (2, channels)).astype(np.float32)
        return cls(
            scale * near_one[0], g.normal((channels,), 0.1), g.normal((channels,), 0.1), near_one[1]
        )

    def node(self, g: Builder, x: str, scope: str) -> str:
        names = ("weight", "bias", "running_mean", "running_var")
        values = (self.scale, self.shift, self.mean, self.variance)
        inputs = [
            g.weight(f"{scope}.{name}", value) for name, value in zip(names, values, strict=True)
        ]
        return g.node("BatchNormalization", [x, *inputs], scope, epsilon=self.epsilon, momentum=0.9)

    def fold(self, weight: Array) -> tuple[Array, Array]:
        """Weight [K, ..] and bias [K] of the convolution that equals a bias-free one followed by
        this normalization."""
        factor = self.scale / np.sqrt(self.variance + self.epsilon)
        return (
            weight * factor.reshape(-1, *[1] * (weight.ndim - 1)),
            self.shift - self.mean * factor,
        )


def batch_norm(g: Builder, x: str, scope: str, channels: int) -> str:
    """A BatchNormalization node with drawn statistics."""
    return BatchNorm.draw(g, channels).node(g, x, scope)
