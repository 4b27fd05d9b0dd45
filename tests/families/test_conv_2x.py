"""Convolution candidates: walk, alignment, refusal."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from onnxbolt import families
from onnxbolt.archs import ARCHS, Arch, get
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.families.blocks.mma_sync import Walk
from onnxbolt.families.conv_2x import walk_of
from onnxbolt.problems import ConvProblem
from tests.tune.fakes import CONV


def candidates(problem: ConvProblem, arch: Arch) -> Sequence[Any]:
    """The candidates of all families."""
    return families.candidates(problem, arch)


@pytest.mark.parametrize("number", ARCHS)
def test_implicit_gemm_everywhere(number: int) -> None:
    found = candidates(CONV, get(number))
    assert {c.family for c in found} == {named("conv_2x")} | (
        {named("conv_sm90"), named("halo_sm90")} if number == 90 else set()
    )
    assert {c.instruction for c in found if c.family is named("conv_2x")} == {
        get(number).mma[DType.F16]
    }


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, Walk.OPTIMIZED),
        ({"c": 4}, Walk.FIXED_CHANNELS),
        ({"c": 8}, Walk.FIXED_CHANNELS),
        ({"c": 8, "dtype": DType.F32}, Walk.OPTIMIZED),
        ({"c": 3}, Walk.OPTIMIZED),
        ({"dilations": (4, 4)}, Walk.OPTIMIZED),
        ({"r": 33}, Walk.ANALYTIC),
        ({"s": 41}, Walk.ANALYTIC),
    ],
)
def test_iterators_by_the_convolution(change: dict[str, Any], expected: Walk) -> None:
    problem = dataclasses.replace(CONV, **change)
    assert walk_of(problem) is expected
    if expected is Walk.FIXED_CHANNELS:
        assert {c.access_k for c in candidates(problem, get(80))} == {problem.c}


def test_three_channels_go_through_registers_in_two_stages() -> None:
    found = candidates(dataclasses.replace(CONV, c=3, k=30), get(80))
    assert {(c.access_k, c.access_n, c.stages) for c in found} == {(1, 2, 2)}
