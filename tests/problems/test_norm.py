"""Normalizations of rows: sizes, and a library's times."""

from __future__ import annotations

import dataclasses

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.measurements.keys import plain, problem_from
from onnxbolt.problems import NormProblem

NORM = NormProblem(6304, 768, True, DType.F16, DType.F16, ("Scale", "Bias"))
RESIDUAL = dataclasses.replace(NORM, chain=("Add", "Store", "Scale", "Bias"))


def test_tensors_are_counted_and_vectors_are_not() -> None:
    assert NORM.bytes_moved == 2 * 6304 * 768 * 2
    assert RESIDUAL.bytes_moved == 4 * 6304 * 768 * 2
    assert dataclasses.replace(NORM, chain=("Add",)).bytes_moved == 3 * 6304 * 768 * 2


def test_it_is_described_and_kept_as_json() -> None:
    assert RESIDUAL.description == "layer norm 6304x768, f16, Add+Store+Scale+Bias"
    assert dataclasses.replace(NORM, centered=False).shape == "rms norm 6304x768"
    fields = plain(RESIDUAL)
    assert isinstance(fields, dict)
    assert problem_from("NormProblem", fields) == RESIDUAL


@pytest.mark.parametrize(
    ("rows", "columns", "measured_us"),
    [
        (6304, 768, 14.64),
        (1280, 768, 4.65),
        (1576, 1024, 5.73),
        (16384, 1024, 39.94),
        (50176, 96, 54.39),
        (3136, 384, 6.58),
    ],
)
def test_a_library_s_time_is_near_the_measured_one(
    rows: int, columns: int, measured_us: float
) -> None:
    problem = dataclasses.replace(NORM, m=rows, c=columns)
    assert problem.onnxruntime_us(get(90)) == pytest.approx(measured_us, rel=0.1)
