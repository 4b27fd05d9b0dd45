"""Which convolutions of volumes are convolutions of images, and of which images."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from onnxbolt.graph.volumes import Axis, as_images, axes_of, is_of_images

POINT, THREE = Axis(1, (0, 0), 1, 1), Axis(3, (1, 1), 1, 1)


def test_axes_have_onnx_s_defaults() -> None:
    weight = gs.Constant("w", np.zeros((8, 4, 3, 1, 2), np.float32))
    x = gs.Variable("x", np.float32, (1, 4, 5, 6, 7))
    alone = gs.Node("Conv", inputs=[x, weight])
    assert [axis.filter for axis in axes_of(alone)] == [3, 1, 2]
    assert {(axis.pads, axis.stride, axis.dilation) for axis in axes_of(alone)} == {((0, 0), 1, 1)}
    attrs = {"pads": [1, 2, 3, 4, 5, 6], "strides": [1, 2, 3], "dilations": [3, 2, 1]}
    written = axes_of(gs.Node("Conv", inputs=[x, weight], attrs=attrs))
    assert written[1] == Axis(1, (2, 5), 2, 2)


@pytest.mark.parametrize(
    ("axis", "size", "output"),
    [(THREE, 7, 7), (Axis(3, (0, 0), 2, 2), 10, 3), (Axis(1, (0, 0), 2, 1), 7, 4), (POINT, 5, 5)],
)
def test_outputs(axis: Axis, size: int, output: int) -> None:
    assert axis.output(size) == output


@pytest.mark.parametrize(
    "axis", [Axis(2, (0, 0), 1, 1), Axis(1, (0, 1), 1, 1), Axis(1, (0, 0), 2, 1), THREE]
)
def test_points_are_elements_at_their_place(axis: Axis) -> None:
    assert POINT.is_point
    assert not axis.is_point


def test_images() -> None:
    assert as_images(2, (7,), (THREE,)) == (2, (1, 7), (POINT, THREE))
    assert as_images(2, (6, 7), (THREE, POINT)) == (2, (6, 7), (THREE, POINT))
    slices = (POINT, THREE, Axis(5, (2, 2), 1, 1))
    assert as_images(2, (5, 6, 7), slices) == (10, (6, 7), slices[1:])
    assert as_images(2, (5, 6, 7), (THREE, POINT, POINT)) == (2, (5, 42), (THREE, POINT))


def test_others_are_of_volumes() -> None:
    strided = Axis(1, (0, 0), 2, 1)
    assert is_of_images((THREE, THREE))
    assert is_of_images((POINT, POINT, POINT))
    for axes in ((THREE, THREE, POINT), (strided, POINT, strided), (THREE, POINT, strided)):
        assert not is_of_images(axes)
