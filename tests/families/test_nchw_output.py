"""Kernels that write channels first: any number of channels, and what they do not take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import PRODUCT, STORE
from onnxbolt.families import named
from onnxbolt.plan.cost import candidates, fused_us
from onnxbolt.problems import ConvProblem

HOPPER = get(90)
LAST = ConvProblem(
    8,
    40,
    40,
    256,
    255,
    3,
    3,
    40,
    40,
    (1, 1, 1, 1),
    (1, 1),
    (1, 1),
    1,
    DType.F16,
    DType.F32,
    ("Bias",),
    y_nchw=True,
)
LAYERS = ("Bias", "Relu", PRODUCT, "Bias")


@pytest.mark.parametrize("channels", [1, 2, 3, 8, 255])
def test_any_number_of_channels_is_stored_one_by_one(channels: int) -> None:
    found: Sequence[Any] = candidates(replace(LAST, k=channels), HOPPER)
    assert {config.family for config in found} == {named("conv_sm90"), named("halo_sm90")}
    assert {config.access_out for config in found} == {1}


def test_tiles_have_pixels_as_rows() -> None:
    """A swapped product stores its channels last."""
    last = replace(LAST, n=32, h=14, w=14, p=14, q=14, k=256, out=DType.F16)
    family = named("conv_sm90")
    in_rows = family.candidates(replace(last, y_nchw=False), HOPPER)
    assert any(config.swapped for config in in_rows)
    assert not any(config.swapped for config in family.candidates(last, HOPPER))


@pytest.mark.parametrize(
    "changes",
    [
        {"chain": ("Bias", "Add")},
        {"groups": 2, "k": 256},
        {"groups": 256, "k": 256},
        {"c": 255},
        {"k": 256, "inner": (64,), "chain": LAYERS},
    ],
)
def test_problems_without_an_nchw_output_kernel(changes: dict[str, Any]) -> None:
    assert not candidates(replace(LAST, **changes), HOPPER)


@pytest.mark.parametrize("padding", [0, 7])
def test_both_forms_are_written_by_kernels_that_store_rows(padding: int) -> None:
    both = replace(LAST, k=256, chain=("Bias", STORE), padding=padding)
    found = candidates(both, HOPPER)
    assert {config.family for config in found} == {named("conv_sm90")}
    assert set(found) < set(candidates(both.in_rows, HOPPER))


@pytest.mark.parametrize(
    ("channels", "dtype"), [(255, DType.F16), (12, DType.F16), (12, DType.BF16), (6, DType.F32)]
)
def test_rows_of_both_forms_are_whole_accesses(channels: int, dtype: DType) -> None:
    """If a reader of the NHWC output accepts no padding, there is none."""
    assert not candidates(replace(LAST, k=channels, dtype=dtype, chain=("Bias", STORE)), HOPPER)


def test_kernels_that_write_both_layouts_may_have_a_residual() -> None:
    assert candidates(replace(LAST, k=256, chain=("Bias", "Add", "Relu", STORE)), HOPPER)


def test_older_architectures_have_none() -> None:
    assert not candidates(LAST, get(80))


def test_halves_of_sectors_cost_as_much_as_whole_ones() -> None:
    config = named("conv_sm90").candidates(LAST, HOPPER)[0]
    assert fused_us(replace(LAST, out=DType.F16), config, HOPPER) == fused_us(LAST, config, HOPPER)
