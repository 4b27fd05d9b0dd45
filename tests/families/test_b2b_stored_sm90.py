"""Kernels for two products whose first result is stored, or has residuals: what they serve, and
what fits."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from onnxbolt.archs import ARCHS, Capability, get
from onnxbolt.dtypes import DType
from onnxbolt.families import candidates, named
from onnxbolt.problems import ConvProblem, GemmProblem, Product

FAMILY = named("b2b_stored_sm90")
CHAIN = ("Bias", "Add", "Relu", "Store", "Gemm", "Bias", "Relu")
GEMM = GemmProblem(100352, 64, 64, DType.F16, DType.F16, CHAIN, (256,))
CONV = ConvProblem(
    32,
    56,
    56,
    64,
    64,
    1,
    1,
    56,
    56,
    (0,) * 4,
    (1, 1),
    (1, 1),
    1,
    DType.F16,
    DType.F16,
    CHAIN,
    inner=(256,),
)


@pytest.mark.parametrize("problem", [GEMM, CONV])
def test_weights_are_resident_where_they_fit(problem: Product) -> None:
    found = FAMILY.candidates(problem, get(90))
    assert [(config.rows, config.columns, config.depth) for config in found] == [
        (192, 256, 64),
        (128, 256, 64),
        (64, 256, 64),
    ]
    assert {
        (config.family, config.last_columns, config.stages, config.resident) for config in found
    } == {(FAMILY, 64, 4, True)}
    wide = FAMILY.candidates(
        GemmProblem(25088, 128, 128, DType.F16, DType.F16, CHAIN, (512,)), get(90)
    )
    assert {config.resident for config in wide} == {False}
    assert {config.stages for config in wide} == {2, 3}


@pytest.mark.parametrize("problem", [GEMM, CONV])
def test_no_other_family_stores_a_result(problem: Product) -> None:
    assert {config.family for config in candidates(problem, get(90))} == {FAMILY}
    for number in ARCHS:
        stores = {config.family for config in candidates(problem, get(number))} == {FAMILY}
        assert stores == get(number).has(Capability.WGMMA)


@pytest.mark.parametrize("problem", [GEMM, CONV])
def test_a_residual_between_layers_needs_no_other_kernel(problem: Product) -> None:
    inner = dataclasses.replace(problem, chain=tuple(step for step in CHAIN if step != "Store"))
    assert candidates(inner, get(90)) == FAMILY.candidates(problem, get(90))
    assert all(FAMILY.runs_on(arch) == (arch.number == 90) for arch in ARCHS.values())
    plain = dataclasses.replace(inner, chain=("Bias", "Relu", "Gemm", "Bias", "Relu"))
    assert FAMILY.candidates(plain, get(90)) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"k": 60},
        {"n": 60},
        {"n": 264},
        {"inner": (252,)},
        {"inner": (256, 64)},
        {"dtype": DType.F32},
        {"chain": ("Relu", "Gemm")},
        {"chain": ("Store", "Gemm", "Add")},
        {"chain": ("Add", "Gemm", "Add")},
        {"chain": (*["Clip"] * 7, "Store", "Gemm")},
        {"chain": ("Add", "Mul", "Add", "Store", "Gemm")},
        {"k": 4096},
    ],
)
def test_problems_without_a_kernel(changes: dict[str, Any]) -> None:
    assert FAMILY.candidates(dataclasses.replace(GEMM, **changes), get(90)) == ()


@pytest.mark.parametrize(
    "changes",
    [{"r": 3}, {"strides": (2, 2)}, {"pads": (1, 1, 1, 1)}, {"groups": 2}, {"nchw": True}],
)
def test_only_convolutions_that_are_products(changes: dict[str, Any]) -> None:
    assert FAMILY.candidates(dataclasses.replace(CONV, **changes), get(90)) == ()


def test_a_result_of_another_type_is_the_last_layer_s() -> None:
    first, last = dataclasses.replace(GEMM, out=DType.F32).layers
    assert (first.n, first.out, first.chain) == (256, DType.F16, ("Bias", "Add", "Relu"))
    assert (last.n, last.out, last.chain) == (64, DType.F32, ("Bias", "Relu"))
