"""Depthwise candidates: the width of accesses, fixed and other filters, what fits registers and
shared memory."""

import dataclasses
from typing import Any

import pytest

from onnxbolt.archs import ARCHS, get
from onnxbolt.dtypes import DType
from onnxbolt.kernels.config import ConvProblem, Family
from onnxbolt.kernels.conv import candidates
from onnxbolt.kernels.depthwise import fixed

BASE = ConvProblem(
    8,
    28,
    28,
    72,
    72,
    3,
    3,
    28,
    28,
    (1, 1, 1, 1),
    (1, 1),
    (1, 1),
    72,
    DType.F16,
    DType.F16,
    ("Bias", "Relu"),
)


@pytest.mark.parametrize("number", ARCHS)
@pytest.mark.parametrize("dtype", DType)
def test_any_architecture_and_type(number: int, dtype: DType) -> None:
    found = candidates(dataclasses.replace(BASE, dtype=dtype, out=dtype), get(number))
    assert {config.family for config in found} == {Family.DEPTHWISE}
    assert {config.warp for config in found} == {(3, 3, 1)}
    assert max(config.align_a for config in found) == dtype.alignment


@pytest.mark.parametrize(("channels", "widest"), [(72, 8), (20, 4), (6, 2), (13, 1)])
def test_width_follows_channels(channels: int, widest: int) -> None:
    problem = dataclasses.replace(BASE, c=channels, k=channels, groups=channels)
    assert max(config.align_a for config in candidates(problem, get(80))) == widest


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, (3, 3, 1)),
        ({"strides": (2, 2)}, (3, 3, 2)),
        ({"r": 5, "s": 5}, (5, 5, 1)),
        ({"strides": (2, 1)}, (0, 0, 0)),
        ({"strides": (3, 3)}, (0, 0, 0)),
        ({"dilations": (2, 2)}, (0, 0, 0)),
        ({"r": 1, "s": 3}, (0, 0, 0)),
        ({"r": 7, "s": 7}, (0, 0, 0)),
    ],
)
def test_filters_that_are_fixed(change: dict[str, Any], expected: tuple[int, int, int]) -> None:
    problem = dataclasses.replace(BASE, **change)
    assert fixed(problem) == expected
    assert {config.warp for config in candidates(problem, get(90))} == {expected}


def test_filters_beyond_shared_memory_have_fewer_channels_to_a_thread_or_no_kernel() -> None:
    large = dataclasses.replace(BASE, r=51, s=51)
    assert {config.align_a for config in candidates(large, get(90))} == {4, 2, 1}
    assert candidates(dataclasses.replace(BASE, r=200, s=200), get(90)) == ()


def test_a_channel_multiplier_is_a_grouped_convolution() -> None:
    assert Family.DEPTHWISE not in {
        config.family for config in candidates(dataclasses.replace(BASE, k=144), get(90))
    }
