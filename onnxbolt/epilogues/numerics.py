"""Functions that numpy lacks, in the precision of their argument."""

from __future__ import annotations

import math

import numpy as np

Array = np.ndarray


def _erf_table() -> tuple[Array, Array]:
    places = np.linspace(-6.0, 6.0, 6145)
    return places, np.array([math.erf(place) for place in places])


_PLACES, _ERF = _erf_table()


def erf(x: Array) -> Array:
    """By Taylor's series around the nearest of 6,145 exact values: terms up to the third leave
    an error below 2e-13."""
    clipped = np.clip(np.nan_to_num(x), -6.0, 6.0)
    index = np.rint((clipped + 6.0) * 512).astype(np.int64)
    a = _PLACES[index]
    h = clipped - a
    series = h - a * h * h + (2 * a * a - 1) / 1.5 * 0.5 * h**3
    return np.where(
        np.isnan(x), np.nan, _ERF[index] + 2 / math.sqrt(math.pi) * np.exp(-a * a) * series
    ).astype(x.dtype)


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x)"""
    return 0.5 * (1 + np.tanh(0.5 * x))


def softplus(x: Array) -> Array:
    """log(1 + e^x), without overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def gelu(x: Array) -> Array:
    """x Phi(x), Phi the normal distribution."""
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x: Array) -> Array:
    """GELU's approximation by tanh."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
