"""Predicted times of b2b_gemm_wide_sm90, bias and ReLU behind each layer, against what its kernels
took on an H200 (fp16)."""

from __future__ import annotations

import math

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.plan.cost import fused_us
from onnxbolt.problems import GemmProblem

# rows, k, columns of each layer; microseconds with tiles of 64 and of 128 rows
MEASURED = (
    (2048, 13, (512, 256, 64), 6.9, 10.5),
    (16384, 13, (512, 256, 64), 13.7, 12.2),
    (2048, 13, (512, 256, 64, 16), 7.2, 10.8),
    (16384, 13, (512, 256, 64, 16), 13.9, 12.3),
    (2048, 367, (512, 256, 1), 11.7, 26.3),
    (16384, 367, (512, 256, 1), 29.2, 27.9),
    (2048, 480, (512, 256, 1), 11.3, 22.6),
    (16384, 480, (512, 256, 1), 29.7, 26.2),
    (2048, 512, (256, 128), 6.3, 9.4),
    (16384, 512, (256, 128), 13.1, 13.7),
)


def predicted(rows: int, k: int, widths: tuple[int, ...]) -> list[float]:
    chain = ("Bias", "Relu") + ("Gemm", "Bias", "Relu") * (len(widths) - 1)
    problem = GemmProblem(rows, widths[-1], k, DType.F16, DType.F16, chain, widths[:-1])
    found = named("b2b_gemm_wide_sm90").candidates(problem, get(90))
    return [fused_us(problem, config, get(90)) for config in found]


@pytest.mark.parametrize(("rows", "k", "widths", "narrow", "high"), MEASURED)
def test_predictions_are_near_measurements(
    rows: int, k: int, widths: tuple[int, ...], narrow: float, high: float
) -> None:
    for us, measured in zip(predicted(rows, k, widths), (narrow, high), strict=True):
        assert 0.85 <= us / measured <= 1.15


def test_no_bias_over_all_chains() -> None:
    errors = [
        math.log(us / measured)
        for rows, k, widths, *both in MEASURED
        for us, measured in zip(predicted(rows, k, widths), both, strict=True)
    ]
    assert abs(sum(errors) / len(errors)) < 0.05
