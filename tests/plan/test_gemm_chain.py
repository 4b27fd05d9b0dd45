"""Predicted times of several GEMMs in one kernel, bias and ReLU behind each, against what the
best kernels took on an H200 (fp16)."""

from __future__ import annotations

import math

import pytest

from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.plan.cost import predict
from onnxbolt.problems import GemmProblem

# rows, k, columns of each layer; microseconds
MEASURED = (
    (2464, 4, (8, 4), 1.95),
    (16384, 256, (64, 16), 3.75),
    (32768, 576, (128, 64), 12.6),
    (128320, 96, (32, 96), 13.2),
    (2048, 256, (64, 16, 8), 2.21),
    (2048, 429, (256, 64, 16), 6.00),
    (2048, 432, (256, 64, 16), 4.93),
    (16384, 256, (64, 16, 8), 4.03),
    (16384, 429, (256, 64, 16), 11.1),
    (16384, 432, (256, 64, 16), 8.84),
)


def problem(rows: int, k: int, widths: tuple[int, ...]) -> GemmProblem:
    chain = ("Bias", "Relu") + ("Gemm", "Bias", "Relu") * (len(widths) - 1)
    return GemmProblem(rows, widths[-1], k, DType.F16, DType.F16, chain, widths[:-1])


@pytest.mark.parametrize(("rows", "k", "widths", "us"), MEASURED)
def test_predictions_are_near_measurements(
    rows: int, k: int, widths: tuple[int, ...], us: float
) -> None:
    config, predicted = predict(problem(rows, k, widths), 90)
    assert config.family is (
        named("b2b_gemm_small") if max(widths) <= 16 else named("b2b_gemm_sm90")
    )
    assert 0.8 <= predicted / us <= 1.2


def test_no_bias_over_all_chains() -> None:
    errors = [
        math.log(predict(problem(rows, k, widths), 90)[1] / us) for rows, k, widths, us in MEASURED
    ]
    assert abs(sum(errors) / len(errors)) < 0.06


def test_rows_that_tma_cannot_read_take_longer() -> None:
    assert (
        predict(problem(16384, 429, (256, 64, 16)), 90)[1]
        > predict(problem(16384, 432, (256, 64, 16)), 90)[1]
    )
