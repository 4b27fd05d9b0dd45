"""Element-wise operators in float64, and how each propagates the errors of its operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from onnxbolt.epilogues import EpilogueStep, numerics, registered
from onnxbolt.epilogues.step import FUNCTION

Array = np.ndarray
Attributes = dict[str, object]
_TINY = 1e-300


@dataclass(frozen=True)
class Function:
    """An operator. `value(attributes, *operands)` is its result; `error(attributes, y, operands,
    errors)` bounds the error of each element of y; `own` is the error of implementations in fp32,
    absolute for |y| up to 1 and relative above. `rounded_factor`: as `Accuracy` has it."""

    value: Callable[..., Array]
    error: Callable[[Attributes, Array, Sequence[Array], Sequence[Array]], Array]
    own: float = 0.0
    rounds: bool = True  # False if results are exact, such as the larger of two operands
    rounded_factor: bool = False


def _gelu(attributes: Attributes, x: Array) -> Array:
    tanh = attributes.get("approximate", b"none") == b"tanh"
    return numerics.gelu_tanh(x) if tanh else numerics.gelu(x)


def number(attributes: Attributes, name: str, default: float) -> float:
    value = attributes.get(name, default)
    assert isinstance(value, int | float)
    return float(np.float32(value))  # ONNX stores attributes as fp32


def _steep(slope: float) -> Callable[..., Array]:
    """The error bound of a function whose slope is at most `slope`."""
    return lambda attributes, y, operands, errors: errors[0] if slope == 1 else slope * errors[0]


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
    """The largest distance to the function's value at the corners of the operands' bounds, because
    |x|^p is monotone in |x| and in p. Small integers are exact in every type."""
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


def _of_step(entry: EpilogueStep) -> Function:
    """A standard operator that is an epilogue step; its attributes are the step's parameters."""

    def params(attributes: Attributes) -> tuple[float, ...]:
        return tuple(number(attributes, each.name, each.default) for each in entry.params)

    return Function(
        lambda attributes, x: entry.reference(x, None, *params(attributes)),
        lambda attributes, y, operands, errors: (
            entry.accuracy.steepest(params(attributes)) * errors[0]
        ),
        entry.accuracy.own,
        rounds=not entry.accuracy.exact,
        rounded_factor=entry.accuracy.rounded_factor,
    )


def functions() -> Mapping[str, Function]:
    """All functions, by operator."""
    return _functions(registered())


@lru_cache(maxsize=1)
def _functions(entries: tuple[EpilogueStep, ...]) -> Mapping[str, Function]:
    return _OTHERS | {op: _of_step(entry) for entry in entries for op in entry.functions}


# operators that are no activation of the epilogues, that read several tensors, or that are one of
# several activations by their attributes
_OTHERS = {
    "Abs": _plain(np.abs, 1, rounds=False),
    "Add": Function(lambda attributes, a, b: a + b, _added),
    "Clip": Function(_clip, _steep(1), rounds=False),
    "Cos": _plain(np.cos, 1, FUNCTION),
    "Div": Function(lambda attributes, a, b: a / b, _quotient_error),
    "Erf": _plain(numerics.erf, 1.13, FUNCTION),
    "Exp": Function(
        lambda attributes, x: np.exp(x),
        lambda attributes, y, operands, errors: y * np.expm1(errors[0]),
        FUNCTION,
    ),
    "Gelu": Function(_gelu, _steep(1.13), 8 * FUNCTION),
    "Max": Function(_accumulated(np.maximum), _largest, rounds=False),
    "Min": Function(_accumulated(np.minimum), _largest, rounds=False),
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
    "Sin": _plain(np.sin, 1, FUNCTION),
    "Softsign": _plain(lambda x: x / (1 + np.abs(x)), 1, FUNCTION),
    "Sqrt": Function(lambda attributes, x: np.sqrt(x), _root_error),
    "Sub": Function(lambda attributes, a, b: a - b, _added),
}
