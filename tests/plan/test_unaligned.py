"""Convolutions of channels that are no multiple of 8, measured on an H200: cuDNN's alone, and a
model whose grouped ones are left to it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

import onnxbolt
from benchmarks.padding import SHAPES, padded
from models.unfriendly import unfriendly
from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.onnxruntime_time import library_us
from onnxbolt.problems import ConvProblem

H200 = get(90)
# microseconds of cuDNN alone, in the order of SHAPES (benchmarks/results/padding-nvidia-h200.json)
MEASURED = (14.81, 25.15, 28.79, 39.04, 31.51, 59.99)
# the optimized model takes so long; its eight convolutions of two groups of 23 channels are left to
# cuDNN (benchmarks/results/advice-nvidia-h200.json)
WHOLE_US = 733.7


@pytest.mark.parametrize(("problem", "measured"), list(zip(SHAPES, MEASURED, strict=True)))
def test_measured_layers(problem: ConvProblem, measured: float) -> None:
    assert 0.8 <= library_us(problem, H200) / measured <= 1.3


def test_no_bias_over_all_layers() -> None:
    found = zip(SHAPES, MEASURED, strict=True)
    ratios = [library_us(problem, H200) / measured for problem, measured in found]
    assert 0.9 <= math.exp(sum(map(math.log, ratios)) / len(ratios)) <= 1.1


@pytest.mark.parametrize("problem", SHAPES)
def test_whole_accesses_are_faster(problem: ConvProblem) -> None:
    assert library_us(padded(problem), H200) < library_us(problem, H200)
    # 46 channels of fp32 are no whole accesses either, and 44 are
    single = replace(problem, c=44, dtype=DType.F32, out=DType.F32)
    assert library_us(single, H200) < library_us(replace(single, c=46), H200)


def test_few_channels_are_a_stem_s() -> None:
    stem = replace(SHAPES[0], c=3)
    assert library_us(stem, H200) < library_us(padded(SHAPES[0]), H200)


def test_convolutions_that_are_left_count_as_the_library_s(tmp_path: Path) -> None:
    report = onnxbolt.optimize(
        unfriendly("channels_46", 32),
        tmp_path / "out.onnx",
        archs=("sm_90a",),
        library=False,
        verify=False,
    )
    assert report.whole[0].ours_us == pytest.approx(WHOLE_US, rel=0.1)
