"""Stem convolutions: the depth of their product, what they serve, and that candidates fit an
SM."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from onnxbolt import families
from onnxbolt.archs import Arch, get
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.families.blocks import stem
from onnxbolt.problems import ConvProblem

STEM = ConvProblem(
    32,
    224,
    224,
    3,
    64,
    7,
    7,
    112,
    112,
    (3, 3, 3, 3),
    (2, 2),
    (1, 1),
    1,
    DType.F16,
    DType.F16,
    ("Bias", "Relu"),
    nchw=True,
)


def candidates(problem: ConvProblem, arch: Arch) -> Sequence[Any]:
    """The candidates of all families."""
    return families.candidates(problem, arch)


def changed(**changes: Any) -> ConvProblem:
    return dataclasses.replace(STEM, **changes)


@pytest.mark.parametrize(
    ("change", "depth"),
    [
        ({}, 176),  # 7 runs of 21, each in 3 chunks of 8
        ({"r": 3, "s": 3}, 48),
        ({"r": 3, "s": 3, "strides": (1, 1)}, 48),  # three channels are stored as four
        ({"r": 1, "s": 1, "c": 1}, 16),
        ({"r": 4, "s": 4, "strides": (4, 4)}, 64),
    ],
)
def test_depth_of_a_stage(change: dict[str, Any], depth: int) -> None:
    assert {c.depth for c in candidates(changed(**change), get(90))} == {depth}


@pytest.mark.parametrize(
    "change",
    [
        {"c": 5},
        {"k": 60},
        {"r": 13},
        {"strides": (5, 5)},
        {"dilations": (2, 2)},
        {"dtype": DType.F32},
    ],
)
def test_problems_without_a_kernel(change: dict[str, Any]) -> None:
    assert candidates(changed(**change), get(90)) == ()


def test_older_architectures_have_none() -> None:
    assert candidates(STEM, get(80)) == ()


@pytest.mark.parametrize("k", [8, 16, 48, 64, 72, 96, 128, 192, 768])
@pytest.mark.parametrize("size", [1, 3, 7, 11])
@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("c", [1, 2, 3, 4])
def test_candidates_fit(c: int, stride: int, size: int, k: int) -> None:
    found = candidates(changed(c=c, strides=(stride, stride), r=size, s=size, k=k), get(90))
    assert found
    for config in found:
        assert config.family is named("stem_sm90")
        assert config.columns in stem.COLUMNS
        assert 1 <= config.consumers * 128 * stem.registers(config) <= get(90).registers_per_sm
        assert stem.shared_memory(config) <= get(90).shared_memory_per_block


def test_output_channels_are_not_wasted() -> None:
    assert {c.columns for c in candidates(changed(k=192), get(90))} == {96}
    assert {c.columns for c in candidates(changed(k=72), get(90))} == {24}
