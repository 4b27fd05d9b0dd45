"""custom_ops/epilogue/pairs.h, compiled for the host, against the exact functions in float64,
for every finite fp16 number."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from onnxbolt.codegen.resources import resource_dir
from tests.custom_ops.host_steps import ALL_FP16, STEPS, Form, HostSteps, exact

FINITE = np.sort(ALL_FP16[np.isfinite(ALL_FP16)]).astype(np.float32)
SHIFTS = (-1, 0, 1)  # shifts within the special-function unit's error
# absolute error that comes on top of what rounding to fp16 does to a result below 1 (at most
# 2.4e-4)
BOUNDS = {
    "GeluErf": 5.5e-4,
    "GeluTanh": 5e-4,
    "Softplus": 3.5e-4,
    "Silu": 2.5e-4,
    "QuickGelu": 2.5e-4,
}


def _errors(
    steps: HostSteps, step: str, x: np.ndarray, shift: int
) -> tuple[np.ndarray, np.ndarray]:
    """The errors, and the exact results."""
    even = x[: len(x) // 2 * 2]
    expected = exact(step, even)
    return np.abs(steps.run(step, Form.FINISH_HALF, even, shift=shift) - expected), expected


def test_every_step_that_reckons_in_fp16_has_a_bound(steps: HostSteps) -> None:
    assert {step for step in STEPS if steps.has(step, Form.FINISH_HALF)} == BOUNDS.keys() | {"Relu"}
    # bf16 is too coarse to reckon in
    assert [step for step in STEPS if steps.has(step, Form.FINISH_BFLOAT)] == ["Relu"]


def test_relu_is_rounded_once(steps: HostSteps) -> None:
    x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    assert np.array_equal(
        steps.run("Relu", Form.FINISH_HALF, x),
        np.maximum(x, 0).astype(np.float16).astype(np.float64),
    )
    assert np.array_equal(
        steps.run("Relu", Form.FINISH_BFLOAT, x),
        np.maximum(x, 0).astype(ml_dtypes.bfloat16).astype(np.float64),
    )


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("step", BOUNDS)
def test_errors_stay_near_the_rounding_to_fp16(steps: HostSteps, step: str, shift: int) -> None:
    error, expected = _errors(steps, step, FINITE, shift)
    assert np.all(error <= BOUNDS[step] + 2.0**-11 * np.abs(expected))
    usual, _ = _errors(
        steps, step, np.linspace(-4, 4, 8001).astype(np.float16).astype(np.float32), shift
    )
    assert np.sqrt(np.mean(usual**2)) <= 3.5e-4


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("step", BOUNDS)
def test_the_error_of_what_is_near_zero_is_relative(
    steps: HostSteps, step: str, shift: int
) -> None:
    """For x that is not so small that its results have fewer bits."""
    error, expected = _errors(
        steps, step, FINITE[(np.abs(FINITE) < 0.25) & (np.abs(FINITE) > 1e-3)], shift
    )
    assert np.all(error <= 2.2e-3 * np.abs(expected))
    assert np.sqrt(np.mean((error / expected) ** 2)) <= 8e-4


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize(("step", "end"), [("Softplus", -9.5), ("Silu", -9.5), ("QuickGelu", -5.5)])
def test_the_error_of_a_tail_is_relative(
    steps: HostSteps, step: str, end: float, shift: int
) -> None:
    """As far as fp16 has all its bits: what e^x, or e^1.702x, alone decides is not 0 beside
    anything."""
    error, expected = _errors(steps, step, FINITE[(end < FINITE) & (FINITE < -0.25)], shift)
    assert np.all(error <= 2e-3 * np.abs(expected))
    assert np.sqrt(np.mean((error / expected) ** 2)) <= 8e-4


@pytest.mark.parametrize("step", BOUNDS)
def test_far_from_zero_and_at_infinity_it_is_the_identity_or_zero(
    steps: HostSteps, step: str
) -> None:
    far = np.array([-np.inf, -65504, -1000, -30, 30, 1000, 65504, np.inf], np.float32)
    assert np.array_equal(steps.run(step, Form.FINISH_HALF, far), np.maximum(far, 0))


def test_every_coefficient_is_an_fp16_number() -> None:
    """Else the compiler would round it, and the polynomial would be another one."""
    header = (resource_dir("custom_ops") / "epilogue" / "pairs.h").read_text()
    numbers = [float(text) for text in re.findall(r"(-?\d+\.\d*)f\b", header)]
    assert len(numbers) >= 19
    assert all(float(np.float16(number)) == number for number in numbers)
