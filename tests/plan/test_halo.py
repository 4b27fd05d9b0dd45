"""Predicted times of halo convolutions against what an H200 measured: batch 32, fp16, bias and
ReLU, in a CUDA graph, inputs out of L2."""

from __future__ import annotations

import math

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.families.base import Schedule
from onnxbolt.families.halo_sm90 import HaloSm90Config
from onnxbolt.plan.cost import fused_us, predict
from onnxbolt.problems import ConvProblem

HOPPER = get(90)
COOPERATIVE, PINGPONG = Schedule.COOPERATIVE, Schedule.PINGPONG


def _problem(size: int, channels: int, stride: int = 1) -> ConvProblem:
    out = (size - 1) // stride + 1
    return ConvProblem(
        32,
        size,
        size,
        channels,
        channels,
        3,
        3,
        out,
        out,
        (1, 1, 1, 1),
        (stride, stride),
        (1, 1),
        1,
        DType.F16,
        DType.F16,
        ("Bias", "Relu"),
    )


def _config(
    block: tuple[int, int, int],
    tile: tuple[int, int, int],
    pixels: int,
    stages: int,
    consumers: int,
    schedule: Schedule,
    resident: bool = False,
    sharing: int = 1,
) -> HaloSm90Config:
    channels, positions, k_block = block
    return HaloSm90Config(
        arch=90,
        channels=channels,
        positions=positions,
        k_block=k_block,
        image_tile=tile,
        stage_pixels=pixels,
        stages=stages,
        sharing=sharing,
        schedule=schedule,
        consumers=consumers,
        resident=resident,
    )


COLUMNS_OF_8 = ((64, 224, 64), (8, 28, 1), 304, 3, 2, PINGPONG)
MEASURED = (
    (_problem(56, 64), _config(*COLUMNS_OF_8, resident=True), 14.9),
    (_problem(56, 64), _config(*COLUMNS_OF_8), 15.3),
    (_problem(56, 64), _config((64, 224, 32), (8, 28, 1), 304, 6, 2, PINGPONG, True), 17.0),
    (_problem(56, 48), _config((64, 224, 48), (8, 28, 1), 304, 3, 2, PINGPONG, True), 13.6),
    (_problem(28, 128), _config((128, 208, 64), (28, 7, 1), 264, 4, 2, COOPERATIVE), 13.7),
    (
        _problem(28, 128),
        _config((128, 208, 64), (28, 7, 1), 264, 4, 2, COOPERATIVE, sharing=2),
        14.4,
    ),
    (_problem(28, 96), _config((64, 208, 48), (28, 7, 1), 264, 4, 2, PINGPONG), 13.2),
    (_problem(14, 256), _config((64, 224, 64), (14, 14, 1), 248, 4, 1, COOPERATIVE), 14.2),
    (_problem(14, 192), _config((64, 224, 64), (14, 14, 1), 248, 4, 1, COOPERATIVE), 11.2),
    (_problem(7, 512), _config((64, 128, 64), (7, 7, 2), 144, 6, 1, COOPERATIVE), 16.5),
    (_problem(224, 64), _config(*COLUMNS_OF_8, resident=True), 166.8),
    (_problem(224, 64), _config(*COLUMNS_OF_8), 176.2),
    (_problem(112, 128), _config(*COLUMNS_OF_8), 161.5),
    (_problem(112, 128), _config(*COLUMNS_OF_8, sharing=2), 163.3),
    (_problem(112, 128), _config((128, 224, 64), (8, 28, 1), 304, 3, 2, COOPERATIVE), 167.3),
    (_problem(56, 256), _config((128, 224, 64), (8, 28, 1), 304, 3, 2, COOPERATIVE), 155.5),
    (_problem(28, 512), _config((128, 208, 64), (28, 7, 1), 264, 4, 2, COOPERATIVE), 159.5),
    (_problem(14, 512), _config((128, 224, 64), (14, 14, 1), 248, 4, 2, COOPERATIVE), 43.9),
    (_problem(112, 48, 2), _config((64, 224, 64), (8, 28, 1), 264, 4, 2, PINGPONG), 23.4),
    (_problem(56, 128, 2), _config((128, 112, 64), (8, 14, 1), 144, 6, 2, COOPERATIVE), 16.0),
)


@pytest.mark.parametrize(("problem", "config", "us"), MEASURED, ids=str)
def test_prediction_is_near_the_measurement(
    problem: ConvProblem, config: HaloSm90Config, us: float
) -> None:
    assert fused_us(problem, config, HOPPER) == pytest.approx(us, rel=0.2)


def test_predictions_are_good_on_the_whole() -> None:
    errors = [math.log(fused_us(problem, config, HOPPER) / us) for problem, config, us in MEASURED]
    assert math.hypot(*errors) / math.sqrt(len(errors)) < 0.09


@pytest.mark.parametrize(
    "problem", [_problem(56, 64), _problem(224, 64), _problem(112, 128)], ids=str
)
def test_early_layers_are_halo_convolutions(problem: ConvProblem) -> None:
    """Few channels and many pixels: what an implicit GEMM loads again for each filter position."""
    assert predict(problem, 90)[0].family is named("halo_sm90")


def test_tiles_of_pixels_that_fill_every_sm_are_faster_than_a_border() -> None:
    """6272 pixels x 256 channels: 132 swapped tiles of 96 x 128, one for each SM (measured: 12.7
    us, the halo form 14.1)."""
    assert predict(_problem(14, 256), 90)[0].family is named("conv_sm90")


@pytest.mark.parametrize("problem", [_problem(56, 64), _problem(224, 64)], ids=str)
def test_filters_that_fit_stay(problem: ConvProblem) -> None:
    assert named("halo_sm90").candidates(problem, HOPPER)[0].resident
