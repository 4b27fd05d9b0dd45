"""Functors of epilogue/codes.h, and those steps of the tuner's reference, compiled for the host,
against codes as numpy computes them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from onnxbolt.dtypes import CODES as TYPES
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import (
    ADD_CODES,
    ADD_VALUES,
    DECODE,
    DEQUANTIZE,
    EPILOGUES,
    MUL_CODES,
    QUANTIZE,
    REQUANTIZE,
    STORE_VALUES,
)
from onnxbolt.problems import QuantizedGemmProblem
from onnxbolt.tune.acceptance import limits_of
from tests.custom_ops.host_steps import ALL_FP16, CODES, PARAMS, Form, HostSteps

FINITE = ALL_FP16[np.isfinite(ALL_FP16)].astype(np.float32)
OPERAND = np.random.default_rng(0).integers(-128, 128, len(FINITE)).astype(np.float32)
ROUNDING = [*REQUANTIZE.values(), *QUANTIZE.values()]


def _params(step: str) -> tuple[float, ...]:
    return tuple(float(np.float32(number)) for number in PARAMS[step])


def _exact(step: str, x: np.ndarray) -> np.ndarray:
    operand = OPERAND.astype(np.float64) if EPILOGUES[step].operand else None
    exact: np.ndarray = EPILOGUES[step].reference(x.astype(np.float64), operand, *_params(step))
    return exact


def _near_the_middle(step: str, x: np.ndarray) -> np.ndarray:
    """True for values whose codes depend on the last bits of a quotient."""
    scale, zero = _params(step)
    dtype = next(
        dtype for table in (REQUANTIZE, QUANTIZE) for dtype in TYPES if table[dtype] == step
    )
    ends = (
        EPILOGUES[QUANTIZE[dtype]].reference(x * (1 + sign * 2.0**-22), None, scale, zero)
        for sign in (-1, 1)
    )
    one, other = ends
    return np.asarray(one != other)


@pytest.mark.parametrize("step", CODES)
def test_operands_and_parameters_are_those_of_the_table(steps: HostSteps, step: str) -> None:
    row = EPILOGUES[step]
    assert steps.facts(step) == steps.reference_facts(step) == (row.operand, len(row.params))


@pytest.mark.parametrize("step", CODES)
def test_the_tuners_reference_is_exact(steps: HostSteps, step: str) -> None:
    found, expected = steps.reference(step, FINITE, OPERAND), _exact(step, FINITE)
    assert np.all(np.abs(found - expected) <= 1e-13 * (1 + np.abs(expected)))


@pytest.mark.parametrize("step", CODES)
def test_apply_is_exact_where_no_quotient_lies_in_the_middle(steps: HostSteps, step: str) -> None:
    found, expected = steps.run(step, Form.APPLY, FINITE, OPERAND), _exact(step, FINITE)
    if step == QUANTIZE[DType.E4M3]:  # rounded by the conversion behind it
        found = found.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    wrong = np.abs(found - expected) > 1e-6 * (1 + np.abs(expected))
    if step in ROUNDING:
        wrong &= ~_near_the_middle(step, FINITE.astype(np.float64))
    assert not wrong.any()


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_packed_codes_are_those_of_the_reference(
    steps: HostSteps, dtype: DType, centred: bool
) -> None:
    """They saturate; NaN has the zero point of integers, and stays NaN among floats. Where the
    zero point is 0, other instructions make the same codes."""
    step = QUANTIZE[dtype]
    scale, zero = _params(step)
    zero *= not centred
    x = np.concatenate([FINITE, np.array([np.inf, -np.inf, 3e38, -3e38], np.float32)])
    with np.errstate(over="ignore"):
        expected = EPILOGUES[step].reference(x.astype(np.float64), None, scale, zero)
    found = steps.packed(step, x, centred).view(dtype.numpy).astype(np.float64)
    middle = _near_the_middle(step, x.astype(np.float64))
    assert np.array_equal(found[~middle], expected[~middle])
    assert middle.mean() < 0.01
    nan = np.full(4, np.nan, np.float32)
    codes_of_nan = steps.packed(step, nan, centred).view(dtype.numpy).astype(np.float64)
    if dtype is DType.E4M3:
        assert np.isnan(codes_of_nan).all()
    else:
        assert (codes_of_nan == zero).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_codes_are_read_from_words(steps: HostSteps, dtype: DType) -> None:
    """Minus their zero point, of which those of floating point have none."""
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes.view(dtype.numpy).astype(np.float32)
    for zero in (0.0,) if dtype is DType.E4M3 else (0.0, 5.0, 127.0):
        found = [steps.codes(dtype, int(word), zero) for word in codes.view("<u4")]
        assert np.array_equal(np.concatenate(found), numbers - zero, equal_nan=True)


@pytest.mark.parametrize("step", ROUNDING)
def test_the_tuners_bounds_hold_what_errors_become(steps: HostSteps, step: str) -> None:
    """The code changes where an error reaches the middle between two."""
    x, errors = FINITE[np.abs(FINITE) <= 40], 1e-3
    found = steps.bounded(step, x, np.zeros_like(x), np.full(len(x), errors), 0.0, 0.0)
    for part in np.linspace(-1, 1, 9):
        row = EPILOGUES[step]
        moved, still = (
            row.reference(x.astype(np.float64) + by, None, *_params(step))
            for by in (part * errors, 0.0)
        )
        assert np.all(np.abs(moved - still) <= found + 1e-9)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_tuner_accepts_every_code_that_kernels_make(steps: HostSteps, dtype: DType) -> None:
    """Also where the reciprocal of the scale decides otherwise than the quotient."""
    step = QUANTIZE[dtype]
    chain = (DEQUANTIZE, step)
    problem = QuantizedGemmProblem(16, 16, 16, dtype, dtype, chain)
    rounding, floor, _, unit, *_ = limits_of(problem, problem.reference)
    x = FINITE[np.abs(FINITE) <= 40]
    x = x[: len(x) // 4 * 4]
    expected = steps.reference(step, x, np.zeros_like(x))
    limit = steps.bounded(step, x, np.zeros_like(x), rounding * np.abs(x), rounding, 0.0)
    limit += unit * np.maximum(np.abs(expected), floor)
    found = steps.packed(step, x).view(dtype.numpy).astype(np.float64)
    assert np.all(np.abs(found - expected) <= limit)
    assert (limit > 0).all()
    assert np.mean(limit > 1e-3) < 0.01


@pytest.mark.parametrize("activation", ["GeluErf", "GeluTanh", "Sigmoid", "Silu", "Tanh", "Elu"])
def test_the_tuner_accepts_codes_of_approximate_activations(
    steps: HostSteps, activation: str
) -> None:
    """A pair behind them, in kernels whose results have 16 bits, moves values by a whole step."""
    pair, dtype = REQUANTIZE[DType.I8], DType.I8
    problem = QuantizedGemmProblem(16, 16, 16, dtype, DType.F16, (DEQUANTIZE, activation, pair))
    rounding, floor, _, unit, _, _, relative, absolute, *own = limits_of(problem, problem.reference)
    x = FINITE[np.abs(FINITE) <= 8]
    zeros = np.zeros_like(x)
    y = steps.reference(activation, x, zeros)
    errors = steps.bounded(activation, x, zeros, rounding * np.abs(x), rounding, own[1])
    expected = steps.reference(pair, y.astype(np.float32), zeros)
    limit = steps.bounded(pair, y, zeros, errors, rounding, own[2])
    limit += absolute + (relative + unit) * np.maximum(np.abs(expected), floor)
    found = steps.run(pair, Form.APPLY, steps.run(activation, Form.APPROXIMATE, x).astype("f4"))
    assert np.all(np.abs(found - expected) <= limit)
    assert np.mean(limit > 1e-2) < 0.1


def test_every_step_of_codes_is_of_these_kinds() -> None:
    read = (*DECODE.values(), *ADD_CODES.values(), *MUL_CODES.values())
    values = (*ADD_VALUES.values(), *STORE_VALUES.values())
    assert set(CODES) == {DEQUANTIZE, *read, *values, *ROUNDING}
