"""Functors of epilogue/steps.h, and steps of the tuner's reference, compiled for the host, against the ONNX operators in float64."""
from __future__ import annotations

import numpy as np
import pytest

from onnxbolt.codegen.resources import resource_dir
from onnxbolt.epilogues import EPILOGUES
from tests.custom_ops.host_steps import ALL_FP16, STEPS, Form, HostSteps, exact

FINITE = ALL_FP16[np.isfinite(ALL_FP16)].astype(np.float32)
OPERAND = np.random.default_rng(0).standard_normal(len(FINITE)).astype(np.float32)
SHIFTS = (-1, 0, 1)  # of the special-function unit's error
# of the steps that tend to 0 at one side, those whose results keep their digits there
TAILS = ("Sigmoid", "Silu", "Softplus", "Elu", "Mish", "GeluTanh")


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
    assert np.all(np.abs(steps.run(step, Form.APPLY, x, shift=shift) - expected) <= 1e-5 * np.abs(expected))


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


def test_the_tuners_reference_shares_nothing_with_the_functors() -> None:
    """A fault in epilogue/ must not be in the answer that kernels are judged by."""
    for path in (resource_dir("custom_ops") / "profiler").iterdir():
        assert "epilogue/" not in path.read_text().replace("nothing here comes from epilogue/", ""), path.name
        assert "epilogue::" not in path.read_text(), path.name
