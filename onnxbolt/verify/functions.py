"""Element-wise operators in float64, and what each makes of its operands' errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onnxbolt.verify.limits import FUNCTION

Array = np.ndarray
Attributes = dict[str, object]
_TINY = 1e-300


@dataclass(frozen=True)
class Function:
    """`value(attributes, *operands)`; `error(attributes, y, operands, errors)`, a bound for each
    element of y; `own`: the error of implementations in fp32, absolute for |y| up to 1 and
    relative above."""

    value: Callable[..., Array]
    error: Callable[[Attributes, Array, Sequence[Array], Sequence[Array]], Array]
    own: float = 0.0
    rounds: bool = True  # False where results are operands, or exact otherwise


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
    )


def sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * x))


def softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _gelu(attributes: Attributes, x: Array) -> Array:
    if attributes.get("approximate", b"none") == b"tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def _elu(attributes: Attributes, x: Array) -> Array:
    return np.where(x > 0, x, number(attributes, "alpha", 1.0) * np.expm1(np.minimum(x, 0)))


def number(attributes: Attributes, name: str, default: float) -> float:
    value = attributes.get(name, default)
    assert isinstance(value, int | float)
    return float(np.float32(value))  # as ONNX has them


def _steep(slope: float) -> Callable[..., Array]:
    """An error's bound where the function is nowhere steeper than `slope`."""
    return lambda attributes, y, operands, errors: errors[0] if slope == 1 else slope * errors[0]


def _steep_by(name: str, default: float) -> Callable[..., Array]:
    """... or than the attribute `name`, where that is above 1."""
    return lambda attributes, y, operands, errors: (
        max(1.0, abs(number(attributes, name, default))) * errors[0]
    )


def _plain(
    function: Callable[..., Array], slope: float, own: float = 0.0, rounds: bool = True
) -> Function:
    return Function(lambda attributes, x: function(x), _steep(slope), own, rounds)


def _quotient_error(
    attributes: Attributes, y: Array, operands: Sequence[Array], errors: Sequence[Array]
) -> Array:
    return (errors[0] + np.abs(y) * errors[1]) / np.maximum(np.abs(operands[1]) - errors[1], _TINY)


def _product_error(
    attributes: Attributes, y: Array, operands: Sequence[Array], errors: Sequence[Array]
) -> Array:
    total = errors[0] * (np.abs(operands[1]) + errors[1])
    return total + np.abs(operands[0]) * errors[1] if errors[1].any() else total


def _root_error(
    attributes: Attributes, y: Array, operands: Sequence[Array], errors: Sequence[Array]
) -> Array:
    return np.minimum(errors[0] / np.maximum(np.abs(y), _TINY), np.sqrt(errors[0]))


def _power_error(
    attributes: Attributes, y: Array, operands: Sequence[Array], errors: Sequence[Array]
) -> Array:
    """How far the corners of the operands' bounds are away: |x|^p is monotone in |x| and in p.
    Every type has small integers exactly."""
    x, p = operands
    spread = np.where((p == np.rint(p)) & (np.abs(p) <= 256), 0.0, errors[1])
    corners = [
        np.maximum(np.abs(x) + a, 0.0) ** (p + b)
        for a in (-errors[0], errors[0])
        for b in (-spread, spread)
    ]
    return np.max([np.abs(corner - np.abs(y)) for corner in corners], axis=0)


def _clip(
    attributes: Attributes, x: Array, low: Array | None = None, high: Array | None = None
) -> Array:
    if low is None:
        low = attributes.get("min")  # type: ignore[assignment]
    if high is None:
        high = attributes.get("max")  # type: ignore[assignment]
    return np.clip(x, low, high) if low is not None or high is not None else x


def _sum_of(errors: Sequence[Array]) -> Array:
    total = errors[0]
    for error in errors[1:]:
        total = total + error
    return total


def _added(
    attributes: Attributes, y: Array, operands: Sequence[Array], errors: Sequence[Array]
) -> Array:
    return _sum_of(errors)


def _largest(
    attributes: Attributes, y: Array, operands: Sequence[Array], errors: Sequence[Array]
) -> Array:
    total = errors[0]
    for error in errors[1:]:
        total = np.maximum(total, error)
    return total


def _accumulated(combine: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def value(attributes: Attributes, first: Array, *others: Array) -> Array:
        for other in others:
            first = combine(first, other)
        return first

    return value


FUNCTIONS = {
    "Abs": _plain(np.abs, 1, rounds=False),
    "Add": Function(lambda attributes, a, b: a + b, _added),
    "Clip": Function(_clip, _steep(1), rounds=False),
    "Cos": _plain(np.cos, 1, FUNCTION),
    "Div": Function(lambda attributes, a, b: a / b, _quotient_error),
    "Elu": Function(_elu, _steep_by("alpha", 1.0), FUNCTION),
    "Erf": _plain(erf, 1.13, FUNCTION),
    "Exp": Function(
        lambda attributes, x: np.exp(x),
        lambda attributes, y, operands, errors: y * np.expm1(errors[0]),
        FUNCTION,
    ),
    "Gelu": Function(_gelu, _steep(1.13), 8 * FUNCTION),
    "HardSigmoid": Function(
        lambda attributes, x: np.clip(
            number(attributes, "alpha", 0.2) * x + number(attributes, "beta", 0.5), 0, 1
        ),
        lambda attributes, y, operands, errors: abs(number(attributes, "alpha", 0.2)) * errors[0],
        FUNCTION,
    ),
    "HardSwish": _plain(lambda x: x * np.clip(x / 6 + 0.5, 0, 1), 1.5, FUNCTION),
    "LeakyRelu": Function(
        lambda attributes, x: np.where(x > 0, x, number(attributes, "alpha", 0.01) * x),
        _steep_by("alpha", 0.01),
    ),
    "Max": Function(_accumulated(np.maximum), _largest, rounds=False),
    "Min": Function(_accumulated(np.minimum), _largest, rounds=False),
    "Mish": _plain(lambda x: x * np.tanh(softplus(x)), 1.1, 4 * FUNCTION),
    "Mul": Function(lambda attributes, a, b: a * b, _product_error),
    "Neg": _plain(np.negative, 1, rounds=False),
    "PRelu": Function(
        lambda attributes, x, slope: np.where(x > 0, x, x * slope),
        lambda attributes, y, operands, errors: (
            np.maximum(np.abs(operands[1]), 1) * errors[0]
            + np.where(operands[0] > 0, 0, np.abs(operands[0]) * errors[1])
        ),
    ),
    "Pow": Function(lambda attributes, x, p: np.power(x, p), _power_error, FUNCTION),
    "Relu": _plain(lambda x: np.maximum(x, 0), 1, rounds=False),
    "Sigmoid": _plain(sigmoid, 0.25, FUNCTION),
    "Sin": _plain(np.sin, 1, FUNCTION),
    "Softplus": _plain(softplus, 1, 2 * FUNCTION),
    "Softsign": _plain(lambda x: x / (1 + np.abs(x)), 1, FUNCTION),
    "Sqrt": Function(lambda attributes, x: np.sqrt(x), _root_error),
    "Sub": Function(lambda attributes, a, b: a - b, _added),
    "Tanh": _plain(np.tanh, 1, FUNCTION),
}
