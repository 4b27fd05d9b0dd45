"""The numbers by which the tuner accepts an answer: verification's, for each layer and step of a
problem."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxbolt.dtypes import VALUES, DType
from onnxbolt.epilogues import EPILOGUES
from onnxbolt.problems import AttentionProblem, ConvProblem, GemmProblem, NormProblem
from onnxbolt.problems.base import Computed
from onnxbolt.tune.acceptance import limits_of
from onnxbolt.verify.bounds import Bounded
from onnxbolt.verify.limits import FLOOR, TANH_UNIT, TF32, Arithmetic, unit
from onnxbolt.verify.rules import Analysis, Env
from onnxbolt.verify.standard import Standard

GEMM = GemmProblem(64, 32, 48, DType.F16, DType.F32, ("Bias", "Relu"))
CONV = ConvProblem(
    2,
    8,
    8,
    32,
    16,
    3,
    3,
    8,
    8,
    (1, 1, 1, 1),
    (1, 1),
    (1, 1),
    2,
    DType.BF16,
    DType.BF16,
    ("Bias", "Mish", "Mean"),
)
F16, BF16, F32 = (np.dtype(dtype.numpy) for dtype in (DType.F16, DType.BF16, DType.F32))


def test_the_tuners_limits_are_those_of_verification() -> None:
    """For a product with bias, whose bound the analysis of verification finds without help."""
    rng = np.random.default_rng(0)
    x, w, bias = (
        rng.standard_normal(shape).astype(np.float16) for shape in ((64, 48), (48, 32), (32,))
    )
    env: Env = {name: Bounded.of(values) for name, values in (("x", x), ("w", w), ("b", bias))}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "b"], ["y"]),
    ]
    model = helper.make_model(
        onnx.GraphProto(name="g"), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    Analysis(Standard(model), {}).run(nodes, env, Arithmetic(F16))
    expected = env["y"].absolute(env["y"].arithmetic)

    rounding, floor, mean, output, element, accumulation, relative, absolute, *steps = limits_of(
        GEMM, GEMM.reference
    )
    assert (floor, mean, output, element, relative, absolute, steps) == (
        FLOOR,
        0.0,
        unit(F32),
        unit(F16),
        0.0,
        0.0,
        [0.0, 0.0],
    )
    magnitude = np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64))
    ours = accumulation * magnitude + rounding * np.abs(env["y"].value)
    assert np.all(ours <= expected)
    assert np.all(ours >= 0.7 * expected)


def test_limits_of_a_mean_and_of_functions_in_16_bits() -> None:
    _, _, mean, output, _, accumulation, relative, absolute, bias, mish = limits_of(
        CONV, CONV.reference
    )
    arithmetic = Arithmetic(BF16)
    assert (mean, accumulation) == (arithmetic.accumulation(64), arithmetic.accumulation(9 * 16))
    assert (output, relative, absolute, bias, mish) == (unit(BF16), 0.0, 0.0, 0.0, TANH_UNIT)
    wide = dataclasses.replace(CONV, dtype=DType.F32, out=DType.F32)
    assert limits_of(wide, wide.reference)[-1] < 1e-5


@pytest.mark.parametrize(("dtype", "handed"), [(DType.F16, 2 * unit(F16)), (DType.F32, TF32)])
def test_what_one_layer_hands_to_the_next_was_rounded_twice(dtype: DType, handed: float) -> None:
    several = GemmProblem(
        64, 16, 48, dtype, dtype, ("Bias", "GeluErf", "Store", "Gemm", "Relu"), (96,)
    )
    _, _, _, _, _, first, relative, absolute, _, _, second, *rest = limits_of(
        several, several.reference
    )
    arithmetic = Arithmetic(np.dtype(dtype.numpy))
    assert (first, second) == (arithmetic.accumulation(48), arithmetic.accumulation(96) + handed)
    assert rest == [0.0, 0.0, 0.0]
    published = EPILOGUES["GeluErf"].accuracy.published(dtype)
    assert (absolute >= published, relative > 0) == (True, bool(published))


@pytest.mark.parametrize(
    ("out", "expected"),
    [
        (DType.F32, unit(BF16) + unit(F32)),
        (DType.F16, unit(BF16) + unit(F16)),
        (DType.BF16, unit(BF16)),
    ],
)
def test_an_nchw_output_beside_an_nhwc_one_is_rounded_as_often(out: DType, expected: float) -> None:
    both = dataclasses.replace(
        CONV, groups=1, out=out, chain=("Bias", "Mish", "Store"), y_nchw=True
    )
    assert limits_of(both, both.reference)[3] == expected
    one = dataclasses.replace(both, chain=both.chain[:-1])
    assert limits_of(one, one.reference)[3] == unit(np.dtype(out.numpy))


def test_limits_of_a_norm_are_those_of_its_sums_and_steps() -> None:
    """The order in which profiler.cu reads them: the residual has a step, the stored sum none."""
    chain = ("Add", "Store", "Scale", "Bias")
    norm = NormProblem(1280, 768, True, DType.F16, DType.F16, chain)
    assert norm.reference is not None
    assert norm.reference.computed is Computed.NORM
    assert norm.reference.extents == (1280, 768, 1)
    rounding, floor, mean, output, element, *layer = limits_of(norm, norm.reference)
    assert (floor, mean, output, element) == (FLOOR, 0.0, unit(F16), unit(F16))
    assert rounding == Arithmetic(F16).rounding(F16)
    assert layer == [Arithmetic(F16).accumulation(768), 0.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", VALUES)
def test_limits_of_attention_are_those_of_scores_and_weights(dtype: DType) -> None:
    """The weights of keys are rounded; fp32 is multiplied as TF32."""
    problem = AttentionProblem(8, 12, 4, 197, 300, 64, 32, dtype, dtype, ("kept",), (300,))
    assert problem.reference is not None
    assert problem.reference.computed is Computed.ATTENTION
    assert problem.reference.extents[:10] == (8, 12, 4, 197, 300, 64, 32, 0, 0, 0)
    assert problem.reference.extents[10:] == (2, 0, 1, 1, 1, 300, -(2**31), 2**31 - 1, 0)
    element = np.dtype(dtype.numpy)
    arithmetic = Arithmetic(element)
    _, floor, score, output, stored, *sums = limits_of(problem, problem.reference)
    converted = TF32 if dtype is DType.F32 else 0.0
    assert score == arithmetic.accumulation(64) + converted
    assert (floor, output, stored) == (FLOOR, unit(element), unit(element))
    weights = max(2 * unit(element), converted)
    assert sums == [arithmetic.accumulation(300) + weights, 0.0, 0.0]
