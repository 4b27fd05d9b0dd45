"""Functors of epilogue/steps.h, and steps of the tuner's reference, compiled for the host,
against the ONNX operators in float64."""

from __future__ import annotations

import numpy as np
import pytest

from onnxbolt.codegen.resources import resource_dir
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES
from onnxbolt.problems import GemmProblem
from onnxbolt.tune.acceptance import limits_of
from tests.custom_ops.host_steps import ALL_FP16, GELU_OF_CODES, STEPS, Form, HostSteps, exact

FINITE = ALL_FP16[np.isfinite(ALL_FP16)].astype(np.float32)
OPERAND = np.random.default_rng(0).standard_normal(len(FINITE)).astype(np.float32)
FORMS = (
    (DType.F16, Form.FINISH_HALF),
    (DType.F16, Form.APPROXIMATE),
    (DType.F16, Form.APPLY),
    (DType.BF16, Form.FINISH_BFLOAT),
    (DType.BF16, Form.APPROXIMATE),
    (DType.F32, Form.APPLY),
)
SHIFTS = (-1, 0, 1)  # shifts by the special-function unit's error
# steps that tend to 0 at one side and whose results keep their digits there
TAILS = ("Sigmoid", "Silu", "QuickGelu", "Softplus", "Elu", "Mish", "GeluTanh")


@pytest.mark.parametrize("step", STEPS)
def test_operands_and_parameters_are_those_of_the_table(steps: HostSteps, step: str) -> None:
    row = EPILOGUES[step]
    assert steps.facts(step) == steps.reference_facts(step) == (row.operand, len(row.params))


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("step", STEPS)
def test_apply_is_as_exact_as_fp32_allows(steps: HostSteps, step: str, shift: int) -> None:
    """For every finite fp16 number."""
    expected = exact(step, FINITE, OPERAND)
    error = np.abs(steps.run(step, Form.APPLY, FINITE, OPERAND, shift) - expected)
    assert np.all(error <= 1e-6 * (1 + np.abs(expected)))


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("step", TAILS)
def test_the_tail_of_apply_is_relative(steps: HostSteps, step: str, shift: int) -> None:
    x = FINITE[(FINITE > -8) & (FINITE < 0)]
    x = x[: len(x) // 2 * 2]
    expected = exact(step, x)
    assert np.all(
        np.abs(steps.run(step, Form.APPLY, x, shift=shift) - expected) <= 1e-5 * np.abs(expected)
    )


@pytest.mark.parametrize("shift", SHIFTS)
def test_gelu_of_codes_has_the_error_of_erff(steps: HostSteps, shift: int) -> None:
    """Below zero, where 1 + erf(x) cancels, 2^-22; above, a rounding more. Small results keep
    their digits."""
    x = np.concatenate([np.linspace(-8, 8, 400_001), np.geomspace(1e-6, 1, 4_999)])
    x = np.concatenate([x, -x]).astype(np.float32)
    expected = exact("GeluErf", x)
    error = np.abs(steps.run(GELU_OF_CODES, Form.APPLY, x, shift=shift) - expected)
    assert np.all(error <= 2.0**-22 + 2.0**-24 * np.maximum(expected, 0))
    small = np.abs(x) < 1
    assert np.all(error[small] <= 2.0**-19 * np.abs(expected[small]))


@pytest.mark.parametrize("step", STEPS)
def test_nan_passes_through_every_form(steps: HostSteps, step: str) -> None:
    """And leaves the other half of a pair alone."""
    x, one = np.array([np.nan, 1.0, 1.0, np.nan], np.float32), np.ones(4, np.float32)
    for form in Form:
        if steps.has(step, form):
            y = steps.run(step, form, x, one)
            assert np.array_equal(np.isnan(y), np.isnan(x)), form


@pytest.mark.parametrize("step", STEPS)
def test_the_tuners_reference_is_exact(steps: HostSteps, step: str) -> None:
    expected = exact(step, FINITE, OPERAND)
    error = np.abs(steps.reference(step, FINITE, OPERAND) - expected)
    assert np.all(error <= 1e-13 * (1 + np.abs(expected)))


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("step", STEPS)
def test_the_tuner_accepts_every_value_of_the_functors(
    steps: HostSteps, step: str, shift: int
) -> None:
    """In every form that a kernel may take; and its limits are narrow."""
    x, operand = (values[np.abs(FINITE) <= 40] for values in (FINITE, OPERAND))
    y = exact(step, x, operand)
    for dtype, form in FORMS:
        if not steps.has(step, form):
            continue
        problem = GemmProblem(8, 8, 8, dtype, dtype, (step,))
        rounding, floor, _, unit, _, _, relative, absolute, own = limits_of(
            problem, problem.reference
        )
        limit = (
            steps.bounded(step, x, operand, np.zeros(len(x)), rounding, own)
            + absolute
            + relative * np.abs(y)
        )
        limit += (
            unit * np.maximum(np.abs(y), floor)
            if form in (Form.FINISH_HALF, Form.FINISH_BFLOAT)
            else 0.0
        )
        assert np.all(np.abs(steps.run(step, form, x, operand, shift) - y) <= limit), (dtype, form)
        assert np.all(limit <= 0.01 * (1 + np.abs(x))), (dtype, form)


@pytest.mark.parametrize("step", STEPS)
def test_the_tuners_bounds_hold_what_errors_become(steps: HostSteps, step: str) -> None:
    x, operand = (values[np.abs(FINITE) <= 40] for values in (FINITE, OPERAND))
    errors = np.full(len(x), 1e-3)
    found = steps.bounded(step, x, operand, errors, 0.0, 0.0)
    for part in np.linspace(-1, 1, 9):
        moved = np.abs(
            exact(step, x.astype(np.float64) + part * errors, operand) - exact(step, x, operand)
        )
        assert np.all(moved <= found + 1e-6)


def test_the_tuners_reference_shares_nothing_with_the_functors() -> None:
    """A fault in epilogue/ must not be in the answer that kernels are judged by."""
    for path in (resource_dir("custom_ops") / "profiler").iterdir():
        assert "epilogue/" not in path.read_text().replace(
            "nothing here comes from epilogue/", ""
        ), path.name
        assert "epilogue::" not in path.read_text(), path.name
