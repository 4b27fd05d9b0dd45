"""Kernels whose result is a mean: images of up to 64 pixels, and what they do not take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import MEAN, PRODUCT
from onnxbolt.families import named
from onnxbolt.plan.cost import candidates, fused_us
from onnxbolt.problems import ConvProblem

HOPPER = get(90)
FAMILY = named("conv_sm90")
CHAIN = ("Bias", "Add", "Relu")
LAST = ConvProblem(
    32,
    7,
    7,
    512,
    2048,
    1,
    1,
    7,
    7,
    (0, 0, 0, 0),
    (1, 1),
    (1, 1),
    1,
    DType.F16,
    DType.F16,
    (*CHAIN, MEAN),
)


@pytest.mark.parametrize("size", [1, 5, 7, 8])
@pytest.mark.parametrize("chain", [CHAIN, ("Bias", "HardSwish")], ids="+".join)
def test_an_image_has_a_block_of_rows_to_itself(size: int, chain: tuple[str, ...]) -> None:
    found: Sequence[Any] = candidates(
        replace(LAST, h=size, w=size, p=size, q=size, chain=(*chain, MEAN)), HOPPER
    )
    assert {config.family for config in found} == {FAMILY}
    assert all(
        config.rows % 64 == 0 and not config.swapped and config.cluster[1] == 1 for config in found
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"h": 9, "w": 9, "p": 9, "q": 9},
        {"k": 255},
        {"c": 255},
        {"groups": 2},
        {"dilations": (2, 2)},
        {"groups": 512, "k": 512},
        {"chain": ("Add", "Mul", MEAN)},
        {"chain": (MEAN, "Relu")},
        {"c": 3, "nchw": True},
        {"y_nchw": True},
        {"inner": (64,), "chain": ("Bias", PRODUCT, "Bias", MEAN)},
    ],
)
def test_problems_without_a_kernel(changes: dict[str, Any]) -> None:
    assert not candidates(replace(LAST, **changes), HOPPER)


def test_older_architectures_have_none() -> None:
    assert not candidates(LAST, get(80))


def test_rows_beyond_an_image_cost_as_much_as_its_own() -> None:
    config = candidates(LAST, HOPPER)[0]
    assert fused_us(replace(LAST, chain=(MEAN,)), config, HOPPER) > fused_us(
        replace(LAST, chain=(MEAN,), n=8), config, HOPPER
    )
