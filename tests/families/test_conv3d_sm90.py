"""Kernels of convolutions of volumes: which there are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnxbolt.archs import ARCHS, get
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.families.conv3d_sm90 import Conv3dSm90Config
from onnxbolt.problems import Conv3dProblem, ConvProblem
from tests.problems.test_conv3d import PROBLEM

FAMILY = named("conv3d_sm90")


def _candidates(problem: Conv3dProblem = PROBLEM) -> tuple[Conv3dSm90Config, ...]:
    return tuple(FAMILY.candidates(problem, get(90)))


def test_it_runs_on_hopper_alone() -> None:
    assert [arch.number for arch in ARCHS.values() if FAMILY.runs_on(arch)] == [90]


def test_32_channels_are_a_k_block_each() -> None:
    """nnU-Net's largest volumes: rows of 64 bytes, without padding."""
    problem, arch = replace(PROBLEM, x=(128,) * 3, y=(128,) * 3, k=32), get(90)
    best = min(_candidates(problem), key=lambda c: FAMILY.predicted_us(problem, c, arch))
    assert (best.k, best.resident) == (32, True)


@pytest.mark.parametrize(
    "change",
    [
        {"c": 20},
        {"k": 20},
        {"k": 12, "out": DType.F32},
        {"groups": 32, "k": 32},
        {"pads": (17, 0, 0, 0, 0, 0)},
        {"pads": (0, 0, 0, 0, 0, 18)},
        {"dilations": (1, 9, 1)},
        {"dilations": (16, 1, 1), "pads": (16, 0, 0, 16, 0, 0)},
        {"strides": (1, 1, 9)},
    ],
)
def test_others_have_none(change: dict[str, object]) -> None:
    assert _candidates(replace(PROBLEM, **change)) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{"pads": (16, 1, 1, 1, 1, 1)}, {"dilations": (8, 8, 8)}, {"strides": (8, 1, 1)}]
)
def test_limits_of_im2col(change: dict[str, object]) -> None:
    assert _candidates(replace(PROBLEM, **change)) != ()  # type: ignore[arg-type]


def test_it_takes_as_long_as_the_same_convolution_of_images() -> None:
    """Predictions of both are equal where pixels, taps and channels are as many."""
    sizes, ones = (2, 16 * 24, 32, 32, 48, 9, 3, 16 * 24, 32), (1, 1)
    images = ConvProblem(
        *sizes, (4, 1, 4, 1), ones, ones, 1, PROBLEM.dtype, PROBLEM.out, PROBLEM.chain
    )
    other, arch = named("conv_sm90"), get(90)
    assert [FAMILY.predicted_us(PROBLEM, config, arch) for config in _candidates()] == [
        other.predicted_us(images, config, arch) for config in other.candidates(images, arch)
    ]
