"""custom_ops/epilogue/approximations.h, compiled for the host, against the exact functions in
float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.custom_ops.host_steps import ALL_FP16, STEPS, Form, HostSteps, exact

FINITE = ALL_FP16[np.isfinite(ALL_FP16)].astype(np.float32)
GRID = np.concatenate(
    [
        np.linspace(-12, 12, 480_001),
        np.linspace(-60_000, 60_000, 24_001),
        np.geomspace(1e-7, 1, 5_000),
        FINITE,
        [0.0],
    ]
)
GRID = GRID.astype(np.float32)[: len(GRID) // 2 * 2]
SHIFTS = (-1, 0, 1)  # shifts within the special-function unit's error
# absolute error that comes on top of what rounding to fp16 may do to the result
BOUNDS = {
    "Sigmoid": 3e-7,
    "Tanh": 2.0**-10.9,
    "GeluErf": 6e-5,
    "GeluTanh": 7.5e-5,
    "Silu": 3e-7,
    "QuickGelu": 3e-7,
    "Softplus": 2.8e-4,
    "Elu": 6e-7,
    "Mish": 3e-7,
}


def test_every_approximation_has_a_bound(steps: HostSteps) -> None:
    assert {step for step in STEPS if steps.has(step, Form.APPROXIMATE)} == BOUNDS.keys()


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("step", BOUNDS)
def test_errors_stay_near_the_rounding_to_fp16(steps: HostSteps, step: str, shift: int) -> None:
    """The absolute bound, beside a few units in the last place of fp32; where results are small,
    at most half a unit of fp16."""
    expected = exact(step, GRID)
    error = np.abs(steps.run(step, Form.APPROXIMATE, GRID, shift=shift) - expected)
    assert np.all(error <= BOUNDS[step] + 1e-6 * np.abs(expected))
    # the least that fp16 rounds a normal number by at most
    half_an_ulp = np.abs(expected) * 2.0**-12
    assert np.all(error <= np.maximum(half_an_ulp, BOUNDS[step]))


@pytest.mark.parametrize("shift", SHIFTS)
def test_softplus_is_close_where_it_is_small(steps: HostSteps, shift: int) -> None:
    x = np.linspace(-60, 0, 600_000).astype(np.float32)
    expected = exact("Softplus", x)
    assert np.all(
        np.abs(steps.run("Softplus", Form.APPROXIMATE, x, shift=shift) - expected)
        <= 4e-4 * expected
    )


@pytest.mark.parametrize("step", BOUNDS)
def test_infinity_passes_through(steps: HostSteps, step: str) -> None:
    ends = steps.run(step, Form.APPROXIMATE, np.array([np.inf, 1.0], np.float32))
    assert ends[0] == (1 if step in ("Sigmoid", "Tanh") else np.inf)


@pytest.mark.parametrize("step", ["GeluErf", "GeluTanh"])
def test_far_from_zero_gelu_is_the_identity_or_zero(steps: HostSteps, step: str) -> None:
    far = np.array([-np.inf, -60_000, -100, -20, 20, 100, 60_000, 0], np.float32)
    assert np.array_equal(
        steps.run(step, Form.APPROXIMATE, far).astype(np.float16),
        np.maximum(far, 0).astype(np.float16),
    )
