"""Kernels for GEMMs whose rows TMA cannot read: which problems have them, and that each fits."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from onnxbolt.archs import ARCHS, get
from onnxbolt.dtypes import DType
from onnxbolt.families import candidates, named
from onnxbolt.families.blocks import b2b
from onnxbolt.plan.cost import predict
from onnxbolt.problems import GemmProblem

HOPPER = get(90)
FAMILY = named("gemm_rows_sm90")
ODD = GemmProblem(16384, 256, 429, DType.F16, DType.F16, ("Bias", "Relu"))
PROBLEMS = [
    dataclasses.replace(ODD, n=n, k=k) for n, k in ((256, 429), (64, 13), (250, 1), (8, 130))
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: f"{problem.k}-{problem.n}")
def test_each_configuration_fits_and_has_all_columns(problem: GemmProblem) -> None:
    found = FAMILY.candidates(problem, HOPPER)
    assert found
    assert set(found) <= set(candidates(problem, HOPPER))
    for config in found:
        assert config.family is FAMILY
        assert (config.rows % 64, config.tma_rows, config.later) == (0, False, ())
        assert config.columns >= problem.n
        assert config.depth - 64 < problem.k <= config.depth
        assert b2b.is_feasible(config, problem, HOPPER)


@pytest.mark.parametrize(
    "change", [{"k": 432}, {"n": 264}, {"dtype": DType.F32, "out": DType.F32}], ids=str
)
def test_problems_that_other_families_serve_have_no_candidates(change: dict[str, Any]) -> None:
    assert not FAMILY.candidates(dataclasses.replace(ODD, **change), HOPPER)


@pytest.mark.parametrize("number", ARCHS)
def test_only_hopper_has_wgmma(number: int) -> None:
    assert (FAMILY in {config.family for config in candidates(ODD, get(number))}) == (number == 90)


@pytest.mark.parametrize(
    ("m", "k", "n", "us"),
    [
        (16384, 429, 256, 11.92),
        (2048, 429, 256, 6.12),
        (16384, 13, 64, 2.50),
        (16384, 13, 256, 4.08),
        (16384, 429, 128, 9.38),
    ],
)
def test_predictions_are_near_measurements(m: int, k: int, n: int, us: float) -> None:
    """On one H200."""
    config, predicted = predict(dataclasses.replace(ODD, m=m, k=k, n=n), 90)
    assert config.family is FAMILY
    assert us / 1.35 < predicted < us * 1.1
