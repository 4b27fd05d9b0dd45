"""The arithmetic of custom_ops/epilogue/approximations.h, repeated in float32, against the exact functions in float64.

numpy's exp2 and division stand for the special-function unit, whose own errors (2^-22 relative) are far below these bounds.
"""
import math
from collections.abc import Callable

import numpy as np
import pytest

from onnxbolt.codegen.resources import resource_dir

F = np.float32
Function = Callable[[np.ndarray], np.ndarray]
HEADER = (resource_dir("custom_ops") / "epilogue" / "approximations.h").read_text()
GRID = np.concatenate([np.linspace(-12, 12, 480_001), np.linspace(-60_000, 60_000, 24_001), np.geomspace(1e-7, 1, 5_000)]).astype(F)
# polynomials, the constant term first
GELU = ("1.58142843f", "-6.77542089f", "-17.9578466f", "-5.37471500f")
GELU_TANH = ("1.58792565f", "-6.96794412f", "-16.4314152f", "-8.58104608f")
SOFTPLUS = ("0.999607046f", "-0.486414010f", "0.254024406f", "-0.0743426446f")
LOG2E, HELD = F(1.4426950409), 6


def _number(text: str) -> np.float32:
    assert text in HEADER, f"approximations.h has other constants than this test: {text} is missing"
    return F(text.rstrip("f"))


def _fma(a: np.ndarray, b: np.ndarray, c: np.ndarray | np.float32) -> np.ndarray:
    """Rounded once."""
    return np.asarray(a.astype(np.float64) * b + np.float64(c)).astype(F)


def _polynomial(coefficients: tuple[str, ...], x: np.ndarray) -> np.ndarray:
    *others, last = map(_number, coefficients)
    value = np.full_like(x, last)
    for coefficient in reversed(others):
        value = _fma(value, x, coefficient)
    return value


def exp(x: np.ndarray) -> np.ndarray:
    return np.exp2(LOG2E * x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return F(1) / (F(1) + exp(-x))


def _gate(x: np.ndarray, coefficients: tuple[str, ...]) -> np.ndarray:
    t = np.nan_to_num(np.minimum(np.abs(x) * F(1 / HELD), F(1)))  # saturation takes NaN to 0
    return np.asarray(np.maximum(x, F(0)).astype(np.float64) - t.astype(np.float64) * np.exp2(_polynomial(coefficients, t))).astype(F)


def gelu(x: np.ndarray) -> np.ndarray:
    return _gate(x, GELU)


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return _gate(x, GELU_TANH)


def softplus(x: np.ndarray) -> np.ndarray:
    e = exp(-np.abs(x))
    return np.asarray(np.maximum(x, F(0)).astype(np.float64) + e.astype(np.float64) * _polynomial(SOFTPLUS, e)).astype(F)


def mish(x: np.ndarray) -> np.ndarray:
    e = exp(np.where(x > 20, F(20), x))
    numerator = e * (e + F(2))
    return x * (numerator * (F(1) / (numerator + F(2))))


def _normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


EXACT: dict[Function, Function] = {
    sigmoid: lambda x: 0.5 * (1 + np.tanh(x / 2)),
    gelu: lambda x: x * np.vectorize(_normal)(x),
    gelu_tanh: lambda x: x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    softplus: lambda x: np.logaddexp(0, x),
    mish: lambda x: x * np.tanh(np.logaddexp(0, x)),
}
# absolute error that comes on top of what rounding to fp16 may do to the result
BOUNDS: dict[Function, float] = {sigmoid: 3e-7, gelu: 6e-5, gelu_tanh: 7.5e-5, softplus: 2.8e-4, mish: 3e-7}


@pytest.mark.parametrize("function", EXACT, ids=lambda function: function.__name__)
def test_errors_stay_near_the_rounding_to_fp16(function: Function) -> None:
    with np.errstate(all="ignore"):
        error = np.abs(function(GRID).astype(np.float64) - EXACT[function](GRID.astype(np.float64)))
        exact = EXACT[function](GRID.astype(np.float64))
    half_an_ulp = np.abs(exact) * 2.0**-12  # the least that fp16 rounds a normal number by at most
    assert np.all(error <= np.maximum(half_an_ulp, BOUNDS[function]))
    assert np.all(error <= BOUNDS[function] + 1e-6 * np.abs(exact))


def test_softplus_is_close_where_it_is_small() -> None:
    x = np.linspace(-60, 0, 600_001).astype(F)
    exact = np.logaddexp(0, x.astype(np.float64))
    assert np.all(np.abs(softplus(x) - exact) <= 4e-4 * exact)


@pytest.mark.parametrize("function", EXACT, ids=lambda function: function.__name__)
def test_nan_and_infinity_pass_through(function: Function) -> None:
    with np.errstate(all="ignore"):
        ends = function(np.array([np.inf, np.nan], F))
    assert ends[0] == (1 if function is sigmoid else np.inf)
    assert np.isnan(ends[1])


@pytest.mark.parametrize("function", [gelu, gelu_tanh], ids=lambda function: function.__name__)
def test_far_from_zero_gelu_is_the_identity_or_zero(function: Function) -> None:
    far = np.array([-np.inf, -60_000, -100, -20, 20, 100, 60_000], F)
    assert np.array_equal(function(far).astype(np.float16), np.maximum(far, 0).astype(np.float16))
