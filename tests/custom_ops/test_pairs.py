"""The arithmetic of custom_ops/epilogue/pairs.h, repeated in fp16, against the exact functions in float64, for every finite fp16 number."""
import math
from collections.abc import Callable

import numpy as np
import pytest

from onnxbolt.codegen.resources import resource_dir

H = np.float16
Function = Callable[[np.ndarray], np.ndarray]
HEADER = (resource_dir("custom_ops") / "epilogue" / "pairs.h").read_text()
ALL = np.arange(2**16, dtype=np.uint16).view(H)
FINITE = np.sort(ALL[np.isfinite(ALL)])
# polynomials, the constant term first
GELU = ("0.70703125f", "-0.2783203125f", "-0.0728759765625f", "0.048492431640625f", "-0.006023406982421875f")
GELU_TANH = ("0.70703125f", "-0.27880859375f", "-0.07159423828125f", "0.047760009765625f", "-0.005924224853515625f")
SOFTPLUS = ("0.99951171875f", "-0.48046875f", "0.23876953125f", "-0.06475830078125f")
SILU = ("1.f", "-0.98583984375f", "0.8662109375f", "-0.53173828125f", "0.1517333984375f")
LARGEST = H(65504)


def _number(text: str) -> np.float16:
    assert text in HEADER, f"pairs.h has other constants than this test: {text} is missing"
    number = H(text.rstrip("f"))
    assert float(number) == float(text.rstrip("f")), f"{text} is no fp16 number"
    return number


def _fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Rounded once: products of two fp16 numbers, and their sums, are exact in float64 where it matters."""
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(H)


def _polynomial(coefficients: tuple[str, ...], x: np.ndarray) -> np.ndarray:
    numbers = [np.full_like(x, _number(text)) for text in coefficients]
    value = numbers[-1]
    for number in reversed(numbers[:-1]):
        value = _fma(value, x, number)
    return value


def _saturated(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), H(0), np.clip(x, H(0), H(1)))


def _finite(x: np.ndarray) -> np.ndarray:
    return np.clip(x, -LARGEST, LARGEST)


def _gate(x: np.ndarray, coefficients: tuple[str, ...]) -> np.ndarray:
    t = np.abs(_finite(x))
    root = _saturated(_polynomial(coefficients, t))
    return _fma(-t, root * root, np.maximum(x, H(0)))


def gelu(x: np.ndarray) -> np.ndarray:
    return _gate(x, GELU)


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return _gate(x, GELU_TANH)


def _decay(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.abs(x).astype(np.float32)).astype(H)


def softplus(x: np.ndarray) -> np.ndarray:
    e = _decay(x)
    return _fma(e, _polynomial(SOFTPLUS, e), np.maximum(x, H(0)))


def silu(x: np.ndarray) -> np.ndarray:
    e = _decay(x)
    return _fma(-np.abs(_finite(x)), e * _polynomial(SILU, e), np.maximum(x, H(0)))


def _normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


EXACT: dict[Function, Function] = {
    gelu: lambda x: x * np.vectorize(_normal)(x),
    gelu_tanh: lambda x: x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    softplus: lambda x: np.logaddexp(0, x),
    silu: lambda x: x / (1 + np.exp(-x)),
}
# absolute error that comes on top of what rounding to fp16 does to a result below 1 (at most 2.4e-4)
BOUNDS: dict[Function, float] = {gelu: 5.5e-4, gelu_tanh: 5e-4, softplus: 3.5e-4, silu: 2.5e-4}


def _ids(function: Function) -> str:
    return function.__name__


def _errors(function: Function, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The errors, and the exact results."""
    with np.errstate(all="ignore"):
        exact = EXACT[function](x.astype(np.float64))
        return np.abs(function(x).astype(np.float64) - exact), exact


@pytest.mark.parametrize("function", EXACT, ids=_ids)
def test_errors_stay_near_the_rounding_to_fp16(function: Function) -> None:
    error, exact = _errors(function, FINITE)
    assert np.all(error <= BOUNDS[function] + 2.0**-11 * np.abs(exact))
    usual, _ = _errors(function, np.linspace(-4, 4, 8001).astype(H))
    assert np.sqrt(np.mean(usual**2)) <= 3.5e-4


@pytest.mark.parametrize("function", EXACT, ids=_ids)
def test_the_error_of_what_is_near_zero_is_relative(function: Function) -> None:
    """Where x is not so small that its results have fewer bits."""
    small = FINITE[(np.abs(FINITE) < 0.25) & (np.abs(FINITE) > 1e-3)]
    error, exact = _errors(function, small)
    assert np.all(error <= 2.2e-3 * np.abs(exact))
    assert np.sqrt(np.mean((error / exact) ** 2)) <= 8e-4


@pytest.mark.parametrize("function", [softplus, silu], ids=_ids)
def test_the_error_of_a_tail_is_relative(function: Function) -> None:
    """As far as fp16 has all its bits: what e^x alone decides is not 0 beside anything."""
    tail = FINITE[(FINITE > -9.5) & (FINITE < -0.25)]
    error, exact = _errors(function, tail)
    assert np.all(error <= 2e-3 * np.abs(exact))
    assert np.sqrt(np.mean((error / exact) ** 2)) <= 8e-4


@pytest.mark.parametrize("function", EXACT, ids=_ids)
def test_far_from_zero_and_at_infinity_it_is_the_identity_or_zero(function: Function) -> None:
    far = np.array([-np.inf, -65504, -1000, -30, 30, 1000, 65504, np.inf], H)
    with np.errstate(all="ignore"):
        assert np.array_equal(function(far), np.maximum(far, H(0)))


@pytest.mark.parametrize("function", EXACT, ids=_ids)
def test_nan_passes_through(function: Function) -> None:
    with np.errstate(all="ignore"):
        assert np.isnan(function(np.array([np.nan], H))[0])


def test_the_root_of_a_gate_stays_below_zero_behind_its_zero() -> None:
    """Else saturation would not take it to 0."""
    for coefficients in (GELU, GELU_TANH):
        with np.errstate(all="ignore"):
            root = _polynomial(coefficients, FINITE[FINITE >= 4])
        assert not np.any(root > 0)
