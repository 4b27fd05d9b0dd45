from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest

from onnxbolt.canonicalize.conv_transpose_form import run
from onnxbolt.graph.importer import import_model
from tests.canonicalize.compare import applied, model, random, unchanged


def _transposed(
    size: tuple[int | str, ...], kernel: tuple[int, ...], opset: int = 17, **attributes: Any
) -> onnx.ModelProto:
    """ConvTranspose of an image of 4 channels to 6 with a bias."""
    groups = attributes.get("group", 1)
    sizes = [f"p{axis}" for axis in range(len(kernel))]
    return model(
        [("ConvTranspose", "x w b", "y", attributes)],
        {"x": (2, 4, *size)},
        {"y": (2, 6, *sizes)},
        {"w": random(4, 6 // groups, *kernel), "b": random(6, seed=1)},
        opset,
    )


def test_defaults_are_written_out() -> None:
    graph = applied(_transposed((5, 6), (3, 2), strides=[2, 2]), run, 1)
    assert graph.nodes[0].op == "ConvTranspose"
    assert graph.nodes[0].attrs == {
        "dilations": [1, 1],
        "group": 1,
        "kernel_shape": [3, 2],
        "output_padding": [0, 0],
        "pads": [0] * 4,
        "strides": [2, 2],
    }


@pytest.mark.parametrize(
    ("mode", "stride", "kernel"),
    [*itertools.product(("SAME_UPPER", "SAME_LOWER"), (2, 3), (3, 4, 5)), ("VALID", 2, 3)],
)
def test_automatic_pads_need_no_sizes(mode: str, stride: int, kernel: int) -> None:
    source = _transposed(("h", 7), (kernel, 4), auto_pad=mode, strides=[stride, 2])
    graph = applied(source, run, 1)
    assert "auto_pad" not in graph.nodes[0].attrs


@pytest.mark.parametrize("mode", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("wanted", [[11, 12], [10, 13]])
def test_output_shapes_become_pads(mode: str, wanted: list[int]) -> None:
    source = _transposed((5, 6), (4, 4), auto_pad=mode, strides=[2, 2], output_shape=wanted)
    graph = applied(source, run, 1)
    assert "output_shape" not in graph.nodes[0].attrs


def test_outputs_of_unknown_or_larger_sizes_stay() -> None:
    unchanged(_transposed((5, 6), (2, 2), strides=[2, 2], output_shape=[12, 12]), run)
    graph = import_model(_transposed(("h", 6), (4, 4), strides=[2, 2], output_shape=[11, 12]))
    assert run(graph) == 0
    assert "output_shape" in graph.nodes[0].attrs


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [1, 0, 2, 1]},
        {"dilations": [2, 3], "pads": [2, 3, 1, 0]},
        {"auto_pad": "SAME_LOWER"},
    ],
)
def test_without_strides_it_is_a_convolution(attributes: dict[str, Any], groups: int) -> None:
    graph = applied(_transposed((8, "w"), (3, 2), group=groups, **attributes), run, 2)
    assert [node.op for node in graph.nodes] == ["Conv"]


def test_lines_are_convolutions_too() -> None:
    graph = applied(_transposed((9,), (5,), pads=[2, 2]), run, 2)
    assert graph.nodes[0].attrs["pads"] == [2, 2]


def test_pads_that_cut_the_output_stay() -> None:
    graph = applied(_transposed((8, 8), (2, 2), pads=[2, 2, 1, 1]), run, 1)
    assert graph.nodes[0].op == "ConvTranspose"


def test_computed_weights_stay() -> None:
    source = model(
        [("ConvTranspose", "x w", "y")],
        {"x": (1, 4, 5, 5), "w": (4, 3, 2, 2)},
        {"y": (1, 3, 6, 6)},
    )
    graph = applied(source, run, 1)
    assert graph.nodes[0].op == "ConvTranspose"


def test_the_weight_is_a_constant_of_its_own() -> None:
    graph = applied(_transposed((8, 8), (3, 3)), run, 2)
    weight = graph.nodes[0].inputs[1]
    assert weight.name != "w"
    assert weight.shape == (6, 4, 3, 3)
    assert np.isfinite(weight.values).all()
