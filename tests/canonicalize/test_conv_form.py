from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from onnxbolt.canonicalize.conv_form import run
from onnxbolt.graph.importer import import_model
from tests.canonicalize.compare import applied, model, random, unchanged


def test_defaults_are_written_out() -> None:
    source = model(
        [("Conv", "x w", "y")],
        {"x": ("n", 4, 8, 8)},
        {"y": ("n", 6, 6, 7)},
        {"w": random(6, 4, 3, 2)},
    )
    graph = applied(source, run, 1)
    assert graph.nodes[0].attrs == {
        "dilations": [1, 1],
        "group": 1,
        "kernel_shape": [3, 2],
        "pads": [0] * 4,
        "strides": [1, 1],
    }


@pytest.mark.parametrize(("stride", "size"), list(itertools.product((1, 2, 3), (7, 8))))
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_automatic_pads(mode: str, stride: int, size: int) -> None:
    attributes = {"auto_pad": mode, "strides": [stride, 1]}
    source = model(
        [("Conv", "x w", "y", attributes)],
        {"x": ("n", 2, size, 9)},
        {"y": ("n", 3, "p", "q")},
        {"w": random(3, 2, 4, 3)},
    )
    graph = applied(source, run, 1)
    assert "auto_pad" not in graph.nodes[0].attrs


@pytest.mark.parametrize(("stride", "size"), [(1, 9), (2, 9), (3, 10)])
def test_automatic_pads_with_dilation(stride: int, size: int) -> None:
    """Compared with numbers, since ONNX Runtime refuses to run these."""
    attributes = {"auto_pad": "SAME_UPPER", "strides": [stride], "dilations": [3]}
    graph = import_model(
        model(
            [("Conv", "x w", "y", attributes)],
            {"x": (1, 2, size)},
            {"y": (1, 3, "l")},
            {"w": random(3, 2, 3)},
        )
    )
    assert run(graph) == 1
    begin, end = graph.nodes[0].attrs["pads"]
    assert (size + begin + end - 7) // stride + 1 == -(-size // stride)
    assert 0 <= end - begin <= 1


def test_one_dimension_and_groups() -> None:
    source = model(
        [("Conv", "x w b", "y", {"auto_pad": "SAME_LOWER", "group": 2})],
        {"x": ("n", 4, "l")},
        {"y": ("n", 6, "l")},
        {"w": random(6, 2, 4), "b": random(6)},
    )
    assert applied(source, run, 1).nodes[0].attrs["pads"] == [2, 1]


def test_unknown_sizes_stay() -> None:
    attributes: dict[str, Any] = {"auto_pad": "SAME_UPPER", "strides": [2, 2]}
    unchanged(
        model(
            [("Conv", "x w", "y", attributes)],
            {"x": ("n", 2, "h", 8)},
            {"y": ("n", 3, "p", "q")},
            {"w": random(3, 2, 3, 3)},
        ),
        run,
    )
    unchanged(
        model(
            [("Conv", "x w", "y")],
            {"x": ("n", 2, 8, 8), "w": ("k", 2, "r", "s")},
            {"y": ("n", "k", "p", "q")},
        ),
        run,
    )


def test_complete_convolutions_are_left_alone() -> None:
    attributes: dict[str, Any] = {
        "dilations": [1, 1],
        "group": 1,
        "kernel_shape": [3, 3],
        "pads": [1, 1, 1, 1],
        "strides": [1, 1],
    }
    source = model(
        [("Conv", "x w", "y", attributes)],
        {"x": ("n", 2, 8, 8)},
        {"y": ("n", 3, 8, 8)},
        {"w": np.ones((3, 2, 3, 3))},
    )
    unchanged(source, run)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("stride", "size"), [(1, 7), (2, 7), (2, 8), (3, 8)])
def test_automatic_pads_of_pooling(op: str, mode: str, stride: int, size: int) -> None:
    attributes = {"auto_pad": mode, "kernel_shape": [3, 2], "strides": [stride, 1]}
    graph = applied(
        model([(op, "x", "y", attributes)], {"x": ("n", 2, size, 9)}, {"y": ("n", 2, "p", "q")}),
        run,
        1,
    )
    assert graph.nodes[0].attrs.keys() == {"kernel_shape", "pads", "strides"}


def test_sizes_that_are_rounded_up() -> None:
    attributes = {"kernel_shape": [2, 2], "strides": [2, 3], "ceil_mode": 1}
    shapes = {"x": ("n", 2, 7, 8)}, {"y": ("n", 2, "p", "q")}
    graph = applied(
        model([("MaxPool", "x", "y", {**attributes, "auto_pad": "SAME_UPPER"})], *shapes), run, 1
    )
    assert "ceil_mode" not in graph.nodes[0].attrs
    unchanged(model([("MaxPool", "x", "y", {**attributes, "auto_pad": "VALID"})], *shapes), run)
    unchanged(model([("MaxPool", "x", "y", attributes)], *shapes), run)


@pytest.mark.parametrize("stride", [1, 2])
def test_dilated_pooling_stays(stride: int) -> None:
    """ONNX Runtime takes the kernel for as wide as without dilations, and ONNX does not."""
    attributes = {
        "auto_pad": "SAME_LOWER",
        "kernel_shape": [3, 3],
        "strides": [stride, stride],
        "dilations": [2, 2],
    }
    shapes = {"x": ("n", 2, 9, 8)}, {"y": ("n", 2, "p", "q")}
    unchanged(model([("MaxPool", "x", "y", attributes)], *shapes), run)
    assert applied(
        model([("MaxPool", "x", "y", {**attributes, "auto_pad": "VALID"})], *shapes), run, 1
    )


def test_an_empty_auto_pad_is_none() -> None:
    """ONNX Runtime takes it for NOTSET."""
    shapes = {"x": ("n", 2, 8, 8)}, {"y": ("n", 3, "p", "q")}
    attributes: dict[str, Any] = {"auto_pad": "", "pads": [0, 1, 2, 1]}
    graph = applied(
        model([("Conv", "x w", "y", attributes)], *shapes, {"w": random(3, 2, 3, 3)}), run, 1
    )
    assert graph.nodes[0].attrs["pads"] == [0, 1, 2, 1]
    unchanged(model([("MaxPool", "x", "y", {**attributes, "kernel_shape": [3, 3]})], *shapes), run)
