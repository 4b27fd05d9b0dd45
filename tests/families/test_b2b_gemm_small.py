"""Kernels for GEMMs too narrow for tensor cores: what they serve, on which architectures, and
what is left to others."""

from __future__ import annotations

import pytest

from onnxbolt.archs import ARCHS, get
from onnxbolt.dtypes import DType
from onnxbolt.families import candidates, named
from onnxbolt.families.b2b_gemm_small import B2bGemmSmallConfig, serves
from onnxbolt.problems import GemmProblem

FAMILY = named("b2b_gemm_small")
CHAIN = ("Bias", "Relu", "Gemm", "Bias", "Add")


def _extents(config: B2bGemmSmallConfig) -> tuple[tuple[int, int, int], tuple[int, ...]]:
    return (config.rows, config.columns, config.depth), config.later


@pytest.mark.parametrize("number", ARCHS)
def test_one_configuration_on_every_architecture(number: int) -> None:
    (config,) = FAMILY.candidates(
        GemmProblem(2464, 4, 4, DType.F16, DType.F16, CHAIN, (8,)), get(number)
    )
    assert config.family is FAMILY
    assert _extents(config) == ((128, 8, 4), (4, 0, 0))
    assert (config.access_k, config.access_n) == (4, 4)
    assert config.instance() == config


def test_extents_are_padded_and_accesses_are_as_wide_as_rows_allow() -> None:
    chain = ("Relu", "Gemm", "Relu", "Gemm")
    (config,) = FAMILY.candidates(
        GemmProblem(100, 1, 13, DType.BF16, DType.F32, chain, (16, 3)), get(80)
    )
    assert _extents(config) == ((128, 16, 16), (4, 4, 0))
    assert (config.access_k, config.access_n) == (1, 1)
    (config,) = FAMILY.candidates(
        GemmProblem(100, 16, 64, DType.F32, DType.F32, chain, (16, 16)), get(80)
    )
    assert (config.access_k, config.access_n) == (4, 4)


def test_problems_at_its_limits_and_beyond() -> None:
    assert serves(64, (16, 16), CHAIN)
    assert not serves(65, (16, 16), CHAIN)
    assert not serves(64, (17, 16), CHAIN)
    assert not serves(64, (16, 16), ("Add", "Gemm"))
    assert not serves(64, (16,), ("Relu",))
    assert not serves(64, (16, 16), (*["Clip"] * 7, "Gemm"))  # 14 parameters


def test_gemm_offers_it_beside_tensor_cores() -> None:
    problem = GemmProblem(2464, 16, 16, DType.F16, DType.F16, ("Relu", "Gemm"), (16,))
    assert {config.family for config in candidates(problem, get(90))} == {
        named("b2b_gemm_sm90"),
        named("b2b_gemm_small"),
    }
    assert {config.family for config in candidates(problem, get(80))} == {
        named("b2b_gemm_2x"),
        named("b2b_gemm_small"),
    }
