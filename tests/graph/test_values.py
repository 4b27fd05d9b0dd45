"""Sizes at a point that a model computes by operators which onnx's inference does not follow."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import Shape, infer_at
from onnxbolt.graph.skeleton import LARGE
from onnxbolt.graph.values import evaluate


def constant(name: str, *values: int, scalar: bool = False) -> TensorProto:
    array = np.array(values[0] if scalar else values, np.int64)
    return numpy_helper.from_array(array, name)


def shapes_of(
    nodes: list[onnx.NodeProto], output: str, *constants: TensorProto, length: int = 5
) -> dict[str, Shape]:
    """Those of a model with x [batch, length], at a batch of 3."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length"])
    y = helper.make_empty_tensor_value_info(output)
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return infer_at(import_model(model), [{"x": (3, length)}])[0]


POSITIONS = [
    helper.make_node("Shape", ["x"], ["shape"]),
    helper.make_node("Gather", ["shape", "one"], ["length"]),
    helper.make_node("Range", ["zero", "length", "one"], ["positions"]),
]
SCALARS = (constant("zero", 0, scalar=True), constant("one", 1, scalar=True))


def test_positions_are_as_many_as_the_text_is_long() -> None:
    nodes = [*POSITIONS, helper.make_node("Unsqueeze", ["positions", "first"], ["y"])]
    shapes = shapes_of(nodes, "y", *SCALARS, constant("first", 0))
    assert (shapes["positions"], shapes["y"]) == ([5], [1, 5])


def test_sizes_of_an_expand_that_keeps_some() -> None:
    """PyTorch's expand(-1, 7, ..): Where(Equal(sizes, -1), 1, sizes)."""
    nodes = [
        *POSITIONS,
        helper.make_node("Concat", ["minus", "seven", "last"], ["sizes"], axis=0),
        helper.make_node("Unsqueeze", ["length", "first"], ["last"]),
        helper.make_node("Equal", ["sizes", "minus"], ["kept"]),
        helper.make_node("Where", ["kept", "ones", "sizes"], ["told"]),
        helper.make_node("Unsqueeze", ["x", "axis"], ["wide"]),
        helper.make_node("Expand", ["wide", "told"], ["y"]),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    order = [0, 1, 2, 4, 3, 5, 6, 7, 8, 9]
    constants = (
        *(constant("minus", -1), constant("seven", 7), constant("first", 0)),
        *(constant("ones", 1, 1, 1), constant("axis", 1)),
    )
    shapes = shapes_of([nodes[i] for i in order], "z", *SCALARS, *constants)
    assert (shapes["y"], shapes["z"]) == ([3, 7, 5], [3, 7, 5])


def test_padding_to_whole_windows() -> None:
    nodes = [
        *POSITIONS,
        helper.make_node("Mod", ["length", "window"], ["rest"]),
        helper.make_node("Sub", ["window", "rest"], ["more"]),
        helper.make_node("Mod", ["more", "window"], ["least"]),
        helper.make_node("Unsqueeze", ["least", "first"], ["behind"]),
        helper.make_node("Concat", ["none", "behind"], ["pads"], axis=0),
        helper.make_node("Pad", ["x", "pads"], ["y"]),
    ]
    constants = (
        constant("window", 7, scalar=True),
        constant("first", 0),
        constant("none", 0, 0, 0),
    )
    for length, padded in ((5, 7), (7, 7), (8, 14)):
        assert shapes_of(nodes, "y", *SCALARS, *constants, length=length)["y"] == [3, padded]


def test_a_detectors_own_scale() -> None:
    """torchvision resizes images to a least size: 10 / length, by Reciprocal, with Floor."""
    nodes = [
        *POSITIONS,
        helper.make_node("Cast", ["length"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Reciprocal", ["real"], ["inverse"]),
        helper.make_node("Mul", ["inverse", "least"], ["scale"]),
        helper.make_node("Mul", ["real", "scale"], ["scaled"]),
        helper.make_node("Floor", ["scaled"], ["floored"]),
        helper.make_node("Cast", ["floored"], ["size"], to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["size", "first"], ["width"]),
        helper.make_node("Concat", ["three", "width"], ["sizes"], axis=0),
        helper.make_node("Resize", ["x", "", "", "sizes"], ["y"]),
    ]
    least = numpy_helper.from_array(np.asarray(10, np.float32), "least")
    constants = (least, constant("three", 3), constant("first", 0))
    assert shapes_of(nodes, "y", *SCALARS, *constants, length=4)["y"] == [3, 10]


def test_sizes_that_values_decide_stay_open() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    size = shapes_of(nodes, "y")["y"][1]
    assert not isinstance(size, int)


@pytest.mark.parametrize(("length", "known"), [(LARGE, True), (LARGE + 1, False)])
def test_only_small_values_are_evaluated(length: int, known: bool) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Range", ["zero", "end", "one"], ["positions"]),
            helper.make_node("Mul", ["positions", "one"], ["y"]),
        ],
        "g",
        [],
        [helper.make_empty_tensor_value_info("y")],
        [*SCALARS, constant("end", length, scalar=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    found = evaluate(model, {"positions": [length], "y": [length]})
    assert list(found) == (["positions"] if known else [])
    assert [node.output[0] for node in model.graph.node] == ["positions", "y"][known:]
