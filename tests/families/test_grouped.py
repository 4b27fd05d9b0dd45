"""Merged groups: how many, and that the merged weight is the same convolution; which kernels
there are for them."""

import dataclasses

import numpy as np
import pytest

from onnxbolt import grouped
from onnxbolt.archs import ARCHS, get
from onnxbolt.dtypes import DType
from onnxbolt.families import candidates, named
from onnxbolt.problems import ConvProblem

BASE = ConvProblem(
    8,
    28,
    28,
    128,
    128,
    3,
    3,
    28,
    28,
    (1, 1, 1, 1),
    (1, 1),
    (1, 1),
    2,
    DType.F16,
    DType.F16,
    ("Bias", "Relu"),
)


@pytest.mark.parametrize(
    ("groups", "c", "k", "expected"),
    [
        (32, 128, 128, 2),
        (32, 256, 256, 4),
        (32, 512, 512, 8),
        (32, 1024, 1024, 16),  # ResNeXt-50: 64 channels
        (14, 336, 336, 7),
        (5, 120, 120, 5),
        (8, 448, 448, 8),
        (11, 1232, 1232, 11),  # RegNetY: 24 become 48 where they are even; 56, 112
        (10, 120, 120, 5),
        (37, 148, 148, 37),
        (2, 16, 16, 1),
        (4, 64, 32, 1),
        (3, 72, 240, 3),
        (1, 64, 64, 1),
        (64, 64, 64, 64),
    ],
)
def test_number_of_merged_groups(groups: int, c: int, k: int, expected: int) -> None:
    assert grouped.merged(groups, c, k) == expected


def test_the_wider_weight_is_the_same_product() -> None:
    rng = np.random.default_rng(0)
    # 4 groups of 2 to 3 channels, 3 filter positions
    weight, x = (rng.normal(size=(12, 2, 3)), rng.normal(size=8))

    def product(weight: np.ndarray, groups: int) -> np.ndarray:
        parts = zip(np.split(weight, groups), np.split(x, groups), strict=True)
        return np.concatenate(
            [np.einsum("kcr,c->kr", filters, channels) for filters, channels in parts]
        )

    for count in (4, 2, 1):
        wide = grouped.widened(weight, 4, count)
        assert wide.shape == (12, 8 // count, 3)
        np.testing.assert_allclose(product(wide, count), product(weight, 4))


@pytest.mark.parametrize("number", ARCHS)
def test_every_architecture_has_kernels(number: int) -> None:
    assert {c.family for c in candidates(BASE, get(number))} == (
        {named("conv_2x")} | ({named("conv_sm90"), named("halo_sm90")} if number == 90 else set())
    )


@pytest.mark.parametrize(
    ("channels", "groups", "widths"),
    [(128, 2, {64, 32}), (224, 2, {112, 56}), (216, 3, {72}), (96, 4, {24}), (464, 2, {8})],
)
def test_a_tile_belongs_to_one_group(channels: int, groups: int, widths: set[int]) -> None:
    problem = dataclasses.replace(BASE, c=channels, k=channels, groups=groups)
    ours = named("conv_sm90").candidates(problem, get(90))
    assert {c.columns for c in ours} == widths


@pytest.mark.parametrize(
    ("width", "channels"), [(24, {64}), (64, {64}), (128, {64, 128}), (112, {64, 128})]
)
def test_halo_tiles_are_no_wider_than_a_group_needs(width: int, channels: set[int]) -> None:
    problem = dataclasses.replace(BASE, c=2 * width, k=2 * width)
    found = named("halo_sm90").candidates(problem, get(90))
    assert {c.channels for c in found} == channels


def test_rows_of_16_bytes() -> None:
    assert grouped.serves(3, 72, 72, DType.F16)
    assert not grouped.serves(37, 37 * 4, 37 * 4, DType.F16)
    assert grouped.serves(37, 37 * 4, 37 * 4, DType.F32)
