"""Predicted times of a convolution and a 1x1 one in one kernel, against measurements on one H200
(fp16, batch 32, bias and ReLU)."""

from __future__ import annotations

import dataclasses

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import KernelConfig, named
from onnxbolt.plan.cost import fused_us, ort_us, predict
from onnxbolt.problems import ConvProblem

CHAIN = ("Bias", "Relu", "Gemm", "Bias", "Relu")


def problem(
    size: int, c: int, inner: int, k: int, stride: int, chain: tuple[str, ...] = CHAIN
) -> ConvProblem:
    p = size // stride
    return ConvProblem(
        32,
        size,
        size,
        c,
        k,
        3,
        3,
        p,
        p,
        (1, 1, 1, 1),
        (stride, stride),
        (1, 1),
        1,
        DType.F16,
        DType.F16,
        chain,
        c == 3,
        (inner,),
    )


# measured microseconds of the best of the family's kernels
MEASURED = (
    ((224, 3, 48, 48, 2), 20.2),
    ((224, 3, 64, 64, 2), 20.9),
    ((112, 48, 48, 48, 2), 24.7),
    ((56, 48, 48, 48, 1), 23.1),
    ((112, 64, 64, 64, 2), 20.4),
    ((56, 64, 64, 64, 1), 18.4),
    ((56, 48, 96, 96, 2), 10.1),
    ((28, 96, 96, 96, 1), 12.9),
    ((28, 96, 192, 192, 2), 9.8),
    ((14, 192, 192, 192, 1), 10.4),
    ((56, 64, 128, 128, 2), 11.8),
)


def best(case: ConvProblem) -> tuple[float, KernelConfig]:
    families = (named("b2b_conv_sm90"), named("b2b_stem_sm90"))
    found = (config for family in families for config in family.candidates(case, get(90)))
    return min((fused_us(case, config, get(90)), config) for config in found)


@pytest.mark.parametrize(("shape", "us"), MEASURED)
def test_predictions_are_near_measurements(
    shape: tuple[int, int, int, int, int], us: float
) -> None:
    assert 0.75 * us <= best(problem(*shape))[0] <= 1.3 * us


def test_a_residual_behind_a_wide_last_layer() -> None:
    chain = ("Bias", "Relu", "Gemm", "Bias", "Add", "Relu")
    assert best(problem(56, 64, 64, 256, 1, chain))[0] == pytest.approx(38.1, rel=0.1)


def test_one_kernel_takes_less_than_two_and_more_than_the_first() -> None:
    both = problem(14, 192, 192, 192, 1)
    first, last = (predict(layer, 90)[1] for layer in both.layers)
    assert first < best(both)[0] < first + last


def test_onnx_runtime_runs_the_layers_one_by_one() -> None:
    both = problem(56, 64, 64, 64, 1)
    assert ort_us(both, get(90)) == pytest.approx(
        sum(ort_us(layer, get(90)) for layer in both.layers)
    )
    assert fused_us(dataclasses.replace(both, n=64), best(both)[1], get(90)) > best(both)[0]
