"""Transposed convolutions inside ONNX Runtime: shapes, and the convolution and pixels that kernels
are asked for. Kernels run on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests import library_fixtures as fx
from tests.custom_ops.test_library_in_ort import compare, inferred, session

OPS = (fx.TRANSPOSED, fx.TRANSPOSED_1D, fx.TRANSPOSED_3D, fx.TRANSPOSED_ROWS)
_BY_RANK = {3: fx.TRANSPOSED_1D, 4: fx.TRANSPOSED, 5: fx.TRANSPOSED_3D}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> fx.HostLibrary:
    built = fx.host_library(
        tmp_path_factory.mktemp("library") / "transposed.onnxbolt.so", OPS, archs=(80, 90)
    )
    built.machine()
    return built


def _model(
    x: Sequence[int | str],
    taps: Sequence[int],
    channels: tuple[int, int],
    y: Sequence[int | str],
    fused: fx.Fused | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """A node with a residual; `channels`: of a group of x, and of y."""
    fused = fused or _BY_RANK[len(x)]
    strides, groups = attributes["strides"], attributes.setdefault("group", 1)
    attributes.setdefault("output_padding", [0] * len(strides))
    attributes.setdefault("zeros", [0] * len(strides))
    columns = int(np.prod(strides)) * channels[1]
    if fused is not fx.TRANSPOSED_ROWS:
        attributes["epilogue_params"] = [0.25]
    model = fx.fused_model(fused, x, (columns, *taps, channels[0]), [[columns], y], **attributes)
    bias = next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 1)
    phases = numpy_helper.to_array(bias).reshape(groups, -1, channels[1] // groups)
    alike = np.broadcast_to(phases[:, :1], phases.shape).reshape(-1)
    bias.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(alike), bias.name))
    return model


CASES: dict[str, fx.Case] = {
    "stride and filter alike": (
        _model([2, 5, 7, 8], (1, 1), (8, 4), [2, 10, 14, 4], strides=[2, 2], pads=[0] * 4),
        [(2, 5, 7, 8), (2, 10, 14, 4)],
    ),
    "k4s2p1": (
        _model(["N", 5, 7, 8], (2, 2), (8, 4), ["N", 10, 14, 4], strides=[2, 2], pads=[1] * 4),
        [(2, 5, 7, 8), (2, 10, 14, 4)],
    ),
    "strides, pads and output padding differ": (
        _model(
            [2, "H", 7, 8],
            (3, 2),
            (8, 4),
            [2, "P", 27, 4],
            strides=[2, 4],
            pads=[3, 2, 1, 4],
            output_padding=[1, 1],
        ),
        [(2, 5, 7, 8), (2, 11, 27, 4)],
    ),
    "groups": (
        _model(
            [2, 5, 7, 8], (2, 1), (4, 6), [2, 10, 21, 6], strides=[2, 3], pads=[1, 0, 1, 0], group=2
        ),
        [(2, 5, 7, 8), (2, 10, 21, 6)],
    ),
    "volumes, k2s2": (
        _model(
            ["N", "D", 3, 5, 8],
            (1, 1, 1),
            (8, 4),
            ["N", "E", 6, 10, 4],
            strides=[2] * 3,
            pads=[0] * 6,
        ),
        [(2, 3, 3, 5, 8), (2, 6, 6, 10, 4)],
    ),
    "volumes, pads, output padding and groups": (
        _model(
            [2, 3, "H", 5, 4],
            (1, 2, 1),
            (4, 6),
            [2, 9, "P", 15, 6],
            strides=[3, 2, 3],
            pads=[0, 1, 0, 1, 2, 0],
            output_padding=[1, 1, 0],
            group=1,
        ),
        [(2, 3, 4, 5, 4), (2, 9, 8, 15, 6)],
    ),
    "volumes with one slice for each": (
        _model(
            [2, 3, 4, 5, 8],
            (1, 1, 1),
            (8, 4),
            [2, 3, 8, 10, 4],
            strides=[1, 2, 2],
            pads=[0] * 6,
        ),
        [(2, 3, 4, 5, 8), (2, 3, 8, 10, 4)],
    ),
    "a line": (
        _model([2, "L", 8], (2,), (8, 4), [2, "M", 4], strides=[3], pads=[1, 1]),
        [(2, 9, 8), (2, 28, 4)],
    ),
    "a line in rows": (
        _model(
            [2, "L", 8], (3,), (8, 4), [2, "M", 4], fx.TRANSPOSED_ROWS, strides=[4], pads=[4, 4]
        ),
        [(2, 9, 8), (2, 36, 4)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_agree_with_the_body(case: str, library: fx.HostLibrary) -> None:
    model, shapes = CASES[case]
    assert compare(model, library, *shapes).shape == shapes[1]


@pytest.mark.parametrize(
    ("taps", "stride", "begin", "end"),
    [
        (taps, stride, begin, end)
        for taps, stride in itertools.product((1, 2, 3), (2, 3))
        for begin, end in itertools.product(range(taps * stride), repeat=2)
        if begin + end < taps * stride + stride
    ],
)
def test_all_pads(taps: int, stride: int, begin: int, end: int, library: fx.HostLibrary) -> None:
    size = (4 - 1 + taps) * stride - begin - end
    shapes = [(1, 4, 3, 8), (1, size, 3 * stride, 4)]
    model = _model(
        shapes[0],
        (taps, 1),
        (8, 4),
        shapes[1],
        strides=[stride, stride],
        pads=[begin, 0, end, 0],
    )
    assert compare(model, library, *shapes).shape == shapes[1]


def test_sizes_of_outputs_are_inferred(library: fx.HostLibrary) -> None:
    model, _ = CASES["strides, pads and output padding differ"]
    assert inferred(model, library)[:1] == [2]
    assert inferred(model, library)[2:] == [27, 4]
    model, _ = CASES["k4s2p1"]
    assert inferred(model, library)[1:] == [10, 14, 4]


def test_slices_of_several_slices_are_refused(library: fx.HostLibrary) -> None:
    """`optimize` writes no such nodes."""
    shapes = [(1, 3, 3, 5, 8), (1, 5, 6, 10, 4)]
    pads = [1, 0, 0, 0, 0, 0]
    model = _model(shapes[0], (1, 1, 1), (8, 4), shapes[1], strides=[2] * 3, pads=pads)
    feeds = {"x": np.zeros(shapes[0], np.float32), "operand2": np.zeros(shapes[1], np.float32)}
    with pytest.raises(Exception, match="slices of y are not those that single slices"):
        session(model, library).run(None, feeds)


def test_weights_of_other_phases_are_refused(library: fx.HostLibrary) -> None:
    model = _model([2, 5, 7, 8], (1, 1), (8, 4), [2, 10, 14, 4], strides=[2, 2], pads=[0] * 4)
    weight = next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 4)
    values = numpy_helper.to_array(weight)[:15]
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    feeds = {
        "x": np.zeros((2, 5, 7, 8), np.float32),
        "operand2": np.zeros((2, 10, 14, 4), np.float32),
    }
    with pytest.raises(Exception, match="groups and phases"):
        session(model, library).run(None, feeds)
