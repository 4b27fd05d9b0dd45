"""Depthwise convolutions of codes: candidates as those of values have them, filters whose sums fp32
holds, and the rule that the pattern asks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnxbolt import families
from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.problems import ConvProblem, QuantizedConvProblem
from tests.quantized import kernels

_CHAIN = ("Dequantize", "Bias", "QuantizeU8")


def _problem(size: int = 3, groups: int = 64) -> QuantizedConvProblem:
    pads = (size // 2,) * 4
    return QuantizedConvProblem(
        *(2, 28, 28, 64, 64, size, size, 28, 28, pads, (1, 1), (1, 1), groups),
        *(DType.U8, DType.U8, _CHAIN, True, True),
    )


@pytest.mark.parametrize("arch", [80, 90])
def test_tiles_are_those_of_values(arch: int) -> None:
    family, problem = named("quantized_depthwise"), _problem()
    sizes = (problem.n, problem.h, problem.w, problem.c, problem.k, problem.r, problem.s)
    window = (problem.p, problem.q, problem.pads, problem.strides, problem.dilations)
    values = ConvProblem(*sizes, *window, problem.groups, DType.F16, DType.F16, ("Bias",))
    expected = named("depthwise").candidates(values, get(arch))
    found = family.candidates(problem, get(arch))
    assert [(c.rows, c.columns, c.access, c.filter) for c in found] == [
        (c.rows, c.columns, c.access, c.filter) for c in expected
    ]
    assert all(family.decode(config.row()) == config for config in found)
    assert all(family.predicted_us(problem, config, get(arch)) > 0 for config in found)


@pytest.mark.parametrize(("arch", "some"), [(80, False), (86, False), (89, True), (90, True)])
def test_fp8_needs_instructions_for_it(arch: int, some: bool) -> None:
    """Without these no value is rounded to its codes within an epilogue."""
    chain = ("Dequantize", "RequantizeE4M3", "Relu", "QuantizeE4M3")
    problem = replace(_problem(), dtype=DType.E4M3, out=DType.E4M3, chain=chain)
    assert bool(named("quantized_depthwise").candidates(problem, get(arch))) == some


def test_other_groups_and_large_filters_have_none() -> None:
    family, arch = named("quantized_depthwise"), get(90)
    assert family.candidates(_problem(21), arch)
    assert not family.candidates(_problem(23), arch)  # 529 taps
    assert not family.candidates(_problem(groups=32), arch)
    assert not family.candidates(replace(_problem(groups=1)), arch)


def test_they_are_chosen_where_they_have_run() -> None:
    assert families.convolves_by_channel()
    with kernels.absent():
        assert not families.convolves_by_channel()
