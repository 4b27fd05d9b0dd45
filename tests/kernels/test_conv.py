"""Convolution candidates: iterator, alignment, refusal."""

import dataclasses
from typing import Any

import pytest

from onnxbolt.archs import ARCHS, get
from onnxbolt.dtypes import DType
from onnxbolt.kernels.config import ConvProblem, Family, Iterator
from onnxbolt.kernels.conv import candidates, iterator

BASE = ConvProblem(
    8,
    28,
    28,
    64,
    64,
    3,
    3,
    28,
    28,
    (1, 1, 1, 1),
    (1, 1),
    (1, 1),
    1,
    DType.F16,
    DType.F16,
    ("Bias", "Relu"),
)


@pytest.mark.parametrize("number", ARCHS)
def test_implicit_gemm_everywhere(number: int) -> None:
    found = candidates(BASE, get(number))
    assert {c.family for c in found} == {Family.CONV_2X} | (
        {Family.CONV_SM90, Family.HALO_SM90} if number == 90 else set()
    )
    assert {c.instruction for c in found if c.family is Family.CONV_2X} == {
        get(number).mma[DType.F16]
    }


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, Iterator.OPTIMIZED),
        ({"c": 4}, Iterator.FIXED_CHANNELS),
        ({"c": 8}, Iterator.FIXED_CHANNELS),
        ({"c": 8, "dtype": DType.F32}, Iterator.OPTIMIZED),
        ({"c": 3}, Iterator.OPTIMIZED),
        ({"dilations": (4, 4)}, Iterator.OPTIMIZED),
        ({"r": 33}, Iterator.ANALYTIC),
        ({"s": 41}, Iterator.ANALYTIC),
    ],
)
def test_iterator(change: dict[str, Any], expected: Iterator) -> None:
    problem = dataclasses.replace(BASE, **change)
    assert iterator(problem) is expected
    if expected is Iterator.FIXED_CHANNELS:
        assert {c.align_a for c in candidates(problem, get(80))} == {problem.c}


def test_three_channels_go_through_registers_in_two_stages() -> None:
    found = candidates(dataclasses.replace(BASE, c=3, k=30), get(80))
    assert {(c.align_a, c.align_b, c.align_c, c.stages) for c in found} == {(1, 1, 2, 2)}
