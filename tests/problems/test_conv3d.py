"""Convolutions of volumes as problems."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.measurements.keys import plain, problem_from
from onnxbolt.problems import Conv3dProblem
from tests.support import planned

PROBLEM = Conv3dProblem(
    2,
    (16, 24, 32),
    32,
    48,
    (3, 3, 3),
    (16, 24, 32),
    (1, 1, 1, 1, 1, 1),
    (1, 1, 1),
    (1, 1, 1),
    1,
    DType.F16,
    DType.F16,
    ("Bias", "Relu"),
)


def test_sizes_of_the_implicit_product() -> None:
    pixels = 2 * 16 * 24 * 32
    assert (PROBLEM.rows, PROBLEM.columns, PROBLEM.depth, PROBLEM.taps) == (pixels, 48, 32, 27)
    assert PROBLEM.flops == 2 * pixels * 48 * 27 * 32
    assert replace(PROBLEM, groups=2).flops == PROBLEM.flops // 2
    assert PROBLEM.bytes_moved == 2 * (pixels * (32 + 48) + 48 * 27 * 32)


def test_depthwise() -> None:
    assert not PROBLEM.depthwise
    assert replace(PROBLEM, k=32, groups=32).depthwise


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "conv 2x16x24x32x32 to 48, 3x3x3"),
        ({"groups": 2}, "conv in 2 groups 2x16x24x32x32 to 48, 3x3x3"),
        ({"strides": (2, 2, 2)}, "conv 2x16x24x32x32 to 48, 3x3x3, stride 2"),
        ({"dilations": (1, 2, 2)}, "conv 2x16x24x32x32 to 48, 3x3x3, dilation 1x2x2"),
    ],
)
def test_words(change: dict[str, object], text: str) -> None:
    assert replace(PROBLEM, **change).shape == text  # type: ignore[arg-type]


def test_onnx_runtime_has_a_kernel_for_each_step_but_the_bias() -> None:
    bias = replace(PROBLEM, chain=("Bias",)).onnxruntime_us(get(90))
    assert bias == replace(PROBLEM, chain=()).onnxruntime_us(get(90))
    assert bias < PROBLEM.onnxruntime_us(get(90))


def test_keys_hold_all_of_it() -> None:
    with planned(named("conv3d_sm90")):
        assert problem_from("Conv3dProblem", plain(PROBLEM)) == PROBLEM  # type: ignore[arg-type]
