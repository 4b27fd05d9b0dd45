"""Predicted times of depthwise convolutions and squeeze-and-excitation; cuDNN's as measured on
one H200 (fp16, batch 32, microseconds)."""

from __future__ import annotations

import dataclasses

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.onnxruntime_time import library_us
from onnxbolt.plan.cost import floor_us, fused_us, ort_us, predict, supports
from onnxbolt.problems import ConvProblem, SqueezeExciteProblem

H200 = get(90)
FACTOR = 1.5  # how far prediction and measurement may lie apart, either way

# channels, image size, filter, stride: cuDNN's convolution, channels last
LAYERS = [
    ((16, 112, 3, 1), 16.1),
    ((64, 112, 3, 2), 21.8),
    ((72, 56, 3, 1), 17.1),
    ((72, 56, 5, 2), 21.4),
    ((120, 28, 5, 1), 16.3),
    ((240, 28, 3, 2), 11.3),
    ((200, 14, 3, 1), 8.1),
    ((480, 14, 3, 1), 9.8),
    ((672, 14, 3, 1), 11.2),
    ((672, 14, 5, 2), 12.0),
    ((960, 7, 5, 1), 9.2),
]
GATE = SqueezeExciteProblem(32, 14, 14, 480, 120, DType.F16, DType.F16, ("Relu", "HardSigmoid"))


def _layer(channels: int, size: int, r: int, stride: int) -> ConvProblem:
    pad, out = r // 2, (size + 2 * (r // 2) - r) // stride + 1
    return ConvProblem(
        32,
        size,
        size,
        channels,
        channels,
        r,
        r,
        out,
        out,
        (pad,) * 4,
        (stride,) * 2,
        (1, 1),
        channels,
        DType.F16,
        DType.F16,
        ("Bias", "Relu"),
    )


@pytest.mark.parametrize(("layer", "cudnn"), LAYERS)
def test_cudnn_on_the_h200(layer: tuple[int, int, int, int], cudnn: float) -> None:
    assert 1 / FACTOR <= library_us(_layer(*layer), H200) / cudnn <= FACTOR


@pytest.mark.parametrize("layer", [layer for layer, _ in LAYERS])
def test_a_fused_layer_lies_between_the_floor_and_onnx_runtime(
    layer: tuple[int, int, int, int],
) -> None:
    problem = _layer(*layer)
    assert floor_us(problem, H200) < predict(problem, 90)[1] < ort_us(problem, H200)


def test_larger_filters_and_images_take_longer() -> None:
    small, large, more = (
        predict(_layer(120, size, r, 1), 90)[1] for size, r in ((28, 3), (28, 5), (56, 5))
    )
    assert small < large < more


def test_inputs_are_loaded_anew_for_each_tap_of_a_filter_that_is_not_fixed() -> None:
    problem = _layer(120, 28, 5, 1)
    dilated = dataclasses.replace(problem, dilations=(2, 2), pads=(4, 4, 4, 4))
    assert predict(dilated, 90)[1] > predict(problem, 90)[1]


def test_types_without_tensor_cores_are_served_too() -> None:
    problem = dataclasses.replace(_layer(72, 56, 3, 1), dtype=DType.BF16, out=DType.BF16)
    assert supports(problem, 75)
    assert floor_us(problem, get(75)) > 0


def test_squeeze_and_excite() -> None:
    ours, us = predict(GATE, 90)
    assert us == fused_us(GATE, ours, H200)
    assert floor_us(GATE, H200) < us < ort_us(GATE, H200)
    assert predict(dataclasses.replace(GATE, n=64), 90)[1] > us
