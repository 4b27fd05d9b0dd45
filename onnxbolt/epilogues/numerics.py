"""Functions that numpy lacks, in the precision of their argument."""

from __future__ import annotations

import math

import numpy as np

Array = np.ndarray


def _erf_table() -> Array:
    """For each of 6,145 places from -6 to 6 the coefficients of Taylor's series around it."""
    places = np.linspace(-6.0, 6.0, 6145)
    slopes = 2 / math.sqrt(math.pi) * np.exp(-places * places)
    values = np.array([math.erf(place) for place in places])
    return np.stack([values, slopes, -places * slopes, (2 * places * places - 1) / 3 * slopes])


_ERF = _erf_table()


def erf(x: Array) -> Array:
    """By Taylor's series around the nearest of 6,145 exact values: terms up to the third leave
    an error below 2e-13."""
    units = (np.clip(x.astype(np.float64), -6.0, 6.0) + 6.0) * 512  # NaN stays
    nearest = np.rint(units)
    h = (units - nearest) / 512
    with np.errstate(invalid="ignore"):  # NaN as an index
        index = np.clip(nearest.astype(np.intp), 0, 6144)
    result = _ERF[3][index]
    for coefficients in _ERF[2::-1]:
        result *= h
        result += coefficients[index]
    return result.astype(x.dtype)


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
