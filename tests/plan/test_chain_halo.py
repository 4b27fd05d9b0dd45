"""Predicted times of chains behind halo convolutions against what an H200 measured: batch 32,
fp16, in a CUDA graph, inputs out of L2."""

from __future__ import annotations

import dataclasses
import math

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import PRODUCT
from onnxbolt.families import named
from onnxbolt.families.b2b_halo_sm90 import B2bHaloSm90Config
from onnxbolt.families.base import Schedule
from onnxbolt.plan.cost import fused_us, predict
from onnxbolt.problems import ConvProblem

HOPPER = get(90)
LAYER = ("Bias", "Relu")


def _problem(
    size: int, channels: int, last: int, stride: int = 1, steps: tuple[str, ...] = LAYER
) -> ConvProblem:
    out = (size - 1) // stride + 1
    return ConvProblem(
        32,
        size,
        size,
        channels,
        last,
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
        (*LAYER, PRODUCT, *steps),
        inner=(channels,),
    )


def _config(
    block: tuple[int, int, int],
    tile: tuple[int, int, int],
    pixels: int,
    stages: int,
    consumers: int,
    resident: bool,
    last: int = 64,
    schedule: Schedule = Schedule.PINGPONG,
) -> B2bHaloSm90Config:
    channels, positions, k_block = block
    return B2bHaloSm90Config(
        arch=90,
        channels=channels,
        positions=positions,
        k_block=k_block,
        image_tile=tile,
        stage_pixels=pixels,
        later=(last, 0),
        stages=stages,
        schedule=schedule,
        consumers=consumers,
        resident=resident,
    )


EXPANSION = _problem(56, 64, 256)
WITH_RESIDUAL = _problem(56, 64, 256, steps=("Bias", "Add", "Relu"))
MEASURED = (
    (_problem(56, 64, 64), _config((64, 208, 64), (28, 7, 1), 272, 2, 2, True), 16.3),
    (_problem(56, 64, 64), _config((64, 112, 64), (8, 14, 1), 160, 5, 2, True), 16.9),
    (_problem(56, 48, 48), _config((64, 208, 48), (28, 7, 1), 272, 2, 2, True), 14.8),
    (_problem(56, 48, 48), _config((64, 208, 48), (28, 7, 1), 272, 3, 2, False), 17.5),
    (_problem(112, 64, 64, 2), _config((64, 208, 64), (28, 7, 1), 232, 3, 2, True), 21.2),
    (_problem(112, 64, 64, 2), _config((64, 224, 64), (14, 14, 1), 232, 4, 2, False), 21.3),
    (_problem(112, 48, 48, 2), _config((64, 208, 48), (28, 7, 1), 232, 3, 2, True), 19.8),
    (
        _problem(28, 96, 96),
        _config((128, 208, 32), (28, 7, 1), 272, 5, 2, False, 128, Schedule.COOPERATIVE),
        14.1,
    ),
    (EXPANSION, _config((64, 112, 64), (8, 14, 1), 160, 2, 3, True, 256), 24.8),
    (EXPANSION, _config((64, 96, 64), (8, 12, 1), 144, 3, 3, True, 256), 26.1),
    (EXPANSION, _config((64, 208, 64), (28, 7, 1), 272, 2, 2, False, 256), 26.9),
    (EXPANSION, _config((64, 64, 64), (8, 8, 1), 104, 5, 3, True, 256), 27.7),
    (WITH_RESIDUAL, _config((64, 96, 64), (8, 12, 1), 144, 2, 3, True, 256), 38.9),
    (WITH_RESIDUAL, _config((64, 64, 64), (8, 8, 1), 104, 3, 3, True, 256), 39.6),
    (WITH_RESIDUAL, _config((64, 208, 64), (28, 7, 1), 272, 2, 2, False, 256), 43.2),
    (WITH_RESIDUAL, _config((64, 112, 64), (8, 14, 1), 160, 3, 2, True, 256), 44.0),
)


@pytest.mark.parametrize(("problem", "config", "us"), MEASURED, ids=str)
def test_prediction_is_near_the_measurement(
    problem: ConvProblem, config: B2bHaloSm90Config, us: float
) -> None:
    assert fused_us(problem, config, HOPPER) == pytest.approx(us, rel=0.2)


def test_predictions_are_good_on_the_whole() -> None:
    errors = [math.log(fused_us(problem, config, HOPPER) / us) for problem, config, us in MEASURED]
    assert math.hypot(*errors) / math.sqrt(len(errors)) < 0.09


@pytest.mark.parametrize("problem", [problem for problem, _, _ in MEASURED], ids=str)
def test_one_kernel_is_predicted_to_win(problem: ConvProblem) -> None:
    """As it did, by 1.16 to 1.45."""
    config, us = predict(problem, 90)
    assert config.family in (named("b2b_halo_sm90"), named("b2b_conv_sm90"))
    assert us < sum(predict(layer, 90)[1] for layer in problem.layers)


def test_more_images_take_longer() -> None:
    problem, config, _ = MEASURED[0]
    times = [fused_us(dataclasses.replace(problem, n=n), config, HOPPER) for n in (8, 32, 128)]
    assert times[0] < times[1] < times[2]
