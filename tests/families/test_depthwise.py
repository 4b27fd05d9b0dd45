"""Depthwise candidates: the width of accesses, fixed and other filters, what fits registers and
shared memory."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from onnxbolt import families
from onnxbolt.archs import ARCHS, Arch, get
from onnxbolt.dtypes import VALUES, DType
from onnxbolt.families import named
from onnxbolt.families.blocks.channelwise import fixed
from onnxbolt.problems import ConvProblem

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


def candidates(problem: ConvProblem, arch: Arch) -> Sequence[Any]:
    """The candidates of all families."""
    return families.candidates(problem, arch)


@pytest.mark.parametrize("number", ARCHS)
@pytest.mark.parametrize("dtype", VALUES)
def test_any_architecture_and_type(number: int, dtype: DType) -> None:
    found = candidates(dataclasses.replace(BASE, dtype=dtype, out=dtype), get(number))
    assert {config.family for config in found} == {named("depthwise")}
    assert {config.filter for config in found} == {(3, 3, 1)}
    assert max(config.access for config in found) == dtype.alignment


@pytest.mark.parametrize(("channels", "widest"), [(72, 8), (20, 4), (6, 2), (13, 1)])
def test_width_follows_channels(channels: int, widest: int) -> None:
    problem = dataclasses.replace(BASE, c=channels, k=channels, groups=channels)
    assert max(config.access for config in candidates(problem, get(80))) == widest


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
        ({"r": 7, "s": 7}, (7, 7, 1)),
        ({"r": 7, "s": 7, "strides": (2, 2)}, (0, 0, 0)),
    ],
)
def test_filters_that_are_fixed(change: dict[str, Any], expected: tuple[int, int, int]) -> None:
    problem = dataclasses.replace(BASE, **change)
    assert fixed(problem) == expected
    assert {config.filter for config in candidates(problem, get(90))} == {expected}


def test_filters_beyond_shared_memory_have_fewer_channels_to_a_thread_or_no_kernel() -> None:
    large = dataclasses.replace(BASE, r=51, s=51)
    assert {config.access for config in candidates(large, get(90))} == {4, 2, 1}
    assert candidates(dataclasses.replace(BASE, r=200, s=200), get(90)) == ()


def test_a_channel_multiplier_is_a_grouped_convolution() -> None:
    assert named("depthwise") not in {
        config.family for config in candidates(dataclasses.replace(BASE, k=144), get(90))
    }
