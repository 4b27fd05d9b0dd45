"""Grouped convolutions measured on an H200: cuDNN's and our kernels against the predictions."""

from __future__ import annotations

import math

import pytest

from onnxbolt import grouped
from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.onnxruntime_time import library_us
from onnxbolt.plan.cost import ort_us, predict
from onnxbolt.problems import ConvProblem

# image, channels, groups, stride, of 3x3 convolutions at batch 32; microseconds of cuDNN alone (the
# faster layout), and of our best kernel with bias and ReLU
MEASURED = (
    (56, 128, 32, 1, 44.6, 24.0),
    (56, 256, 32, 2, 32.1, 20.2),
    (28, 256, 32, 1, 28.0, 15.0),
    (28, 512, 32, 2, 16.2, 12.1),
    (14, 512, 32, 1, 15.6, 10.1),
    (14, 1024, 32, 2, 10.7, 8.2),
    (7, 1024, 32, 1, 10.4, 7.6),
    (28, 192, 4, 1, 55.5, 13.3),
    (14, 432, 9, 1, 47.8, 10.6),
    (14, 336, 14, 1, 41.1, 8.6),
    (7, 888, 37, 1, 33.8, 10.5),
    (28, 448, 8, 1, 112.0, 26.7),
    (14, 896, 16, 1, 69.3, 16.6),
)


def _problem(size: int, channels: int, groups: int, stride: int) -> ConvProblem:
    out = (size - 1) // stride + 1
    return ConvProblem(
        32,
        size,
        size,
        channels,
        channels,
        3,
        3,
        out,
        out,
        (1, 1, 1, 1),
        (stride, stride),
        (1, 1),
        groups,
        DType.F16,
        DType.F16,
        ("Bias", "Relu"),
    )


@pytest.mark.parametrize(("size", "channels", "groups", "stride", "library", "ours"), MEASURED)
def test_measured_layers(
    size: int, channels: int, groups: int, stride: int, library: float, ours: float
) -> None:
    theirs = _problem(size, channels, groups, stride)
    merged = _problem(size, channels, grouped.merged(groups, channels, channels), stride)
    predicted = predict(merged, 90)[1]
    assert 0.6 <= library_us(theirs, get(90)) / library <= 1.6
    assert 0.7 <= predicted / ours <= 1.3
    assert predicted < ort_us(theirs, get(90))


def test_no_bias_over_all_layers() -> None:
    ratios = [library_us(_problem(*layer), get(90)) / library for *layer, library, _ in MEASURED]
    assert 0.85 <= math.exp(sum(map(math.log, ratios)) / len(ratios)) <= 1.15
