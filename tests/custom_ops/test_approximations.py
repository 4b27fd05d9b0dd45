"""The arithmetic of custom_ops/epilogue/approximations.h, repeated in float32, against the exact functions in float64.

numpy's exp2, log2 and division stand for the special-function unit, whose own errors (2^-22 relative) are far below these bounds.
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
GELU = ("7.03033661e-4f", "-0.0740112926f", "-1.59501577f")
LOG2E, LN2 = F(1.4426950409), F(0.6931471806)


def _number(text: str) -> np.float32:
    assert text in HEADER, f"approximations.h has other constants than this test: {text} is missing"
    return F(text.rstrip("f"))


def exp(x: np.ndarray) -> np.ndarray:
    return np.exp2(LOG2E * x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return F(1) / (F(1) + exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    c2, c1, c0 = (F(_number(text) * LOG2E) for text in GELU)
    square = np.fmin(x * x, F(50))
    u = (c2 * square + c1) * square + c0
    return np.asarray(x * (F(1) / (F(1) + np.exp2(x * u))))


def softplus(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, F(0), x) + LN2 * np.log2(F(1) + exp(-np.abs(x)))


def mish(x: np.ndarray) -> np.ndarray:
    e = exp(np.where(x > 20, F(20), x))
    numerator = e * (e + F(2))
    return x * (numerator * (F(1) / (numerator + F(2))))


def _normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


EXACT: dict[Function, Function] = {
    sigmoid: lambda x: 0.5 * (1 + np.tanh(x / 2)),
    gelu: lambda x: x * np.vectorize(_normal)(x),
    softplus: lambda x: np.logaddexp(0, x),
    mish: lambda x: x * np.tanh(np.logaddexp(0, x)),
}
# absolute error that comes on top of what rounding to fp16 may do to the result
BOUNDS: dict[Function, float] = {sigmoid: 3e-7, gelu: 3e-5, softplus: 3e-7, mish: 3e-7}


@pytest.mark.parametrize("function", EXACT, ids=lambda function: function.__name__)
def test_errors_stay_below_the_rounding_to_fp16(function: Function) -> None:
    with np.errstate(all="ignore"):
        error = np.abs(function(GRID).astype(np.float64) - EXACT[function](GRID.astype(np.float64)))
        exact = EXACT[function](GRID.astype(np.float64))
    half_an_ulp = np.abs(exact) * 2.0**-12  # the least that fp16 rounds a normal number by at most
    assert np.all(error <= np.maximum(half_an_ulp, BOUNDS[function]))
    assert np.all(error <= BOUNDS[function] + 1e-6 * np.abs(exact))


@pytest.mark.parametrize("function", EXACT, ids=lambda function: function.__name__)
def test_nan_and_infinity_pass_through(function: Function) -> None:
    with np.errstate(all="ignore"):
        ends = function(np.array([np.inf, np.nan], F))
    assert ends[0] == (1 if function is sigmoid else np.inf)
    assert np.isnan(ends[1])


def test_far_from_zero_gelu_is_the_identity_or_zero() -> None:
    far = np.array([-60_000, -100, -20, 20, 100, 60_000], F)
    with np.errstate(all="ignore"):
        assert np.array_equal(gelu(far).astype(np.float16), np.maximum(far, 0).astype(np.float16))
