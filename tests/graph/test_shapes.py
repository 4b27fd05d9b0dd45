from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxbolt.errors import InputError
from onnxbolt.graph.exporter import INTERNAL_DOMAIN
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from tests.conftest import ZOO
from tests.graph.planted import everything, model, value


def test_symbolic_shapes_pass_through_shape_arithmetic() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
        helper.make_node("MatMul", ["y", "w"], ["z"]),
    ]
    made = model(
        nodes,
        [value("x", shape=("n", 6))],
        [value("z", shape=("n", 2, "w"))],
        {"zero": np.array([0]), "rest": np.array([2, 3]), "w": np.zeros((3, 5000), np.float32)},
    )
    graph = import_model(made)
    infer(graph)
    by_name = {t.name: t for node in graph.nodes for t in node.outputs}
    assert by_name["y"].shape == ["n", 2, 3]
    assert by_name["z"].shape == ["n", 2, 5000]
    assert by_name["z"].dtype == np.float32


@pytest.mark.parametrize(("start", "step", "known"), [(0, 1, True), (1, 1, False), (0, 2, False)])
def test_positions_have_the_size_of_the_axis_that_they_count(
    start: int, step: int, known: bool
) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "axis"], ["length"]),
        helper.make_node("Range", ["start", "length", "step"], ["y"]),
        helper.make_node("Neg", ["y"], ["z"]),
    ]
    numbers = {"axis": 1, "start": start, "step": step}
    constants = {name: np.array(number, np.int64) for name, number in numbers.items()}
    z = value("z", TensorProto.INT64, ("k",))
    graph = import_model(model(nodes, [value("x", shape=("n", "s"))], [z], constants))
    infer(graph)
    (count,) = (node for node in graph.nodes if node.op == "Range")
    assert (count.outputs[0].shape == ["s"]) is known


def test_a_filter_tells_its_images_channels() -> None:
    """Pads that the model computes hide them; they reach what reads the image as well."""
    nodes = [
        helper.make_node("Shape", ["pads"], ["counts"]),
        helper.make_node("Tile", ["x", "counts"], ["tiled"]),
        helper.make_node("Relu", ["tiled"], ["h"]),
        helper.make_node("Conv", ["h", "w"], ["y"], group=2),
        helper.make_node("Transpose", ["h"], ["t"], perm=[0, 2, 3, 1]),
    ]
    made = model(
        nodes,
        [value("x", shape=("n", 6, 8, 8)), value("pads", shape=("a", "b", "c", "d"))],
        [value("y", shape=("n", 4, "h", "w")), value("t", shape=("n", "h", "w", "c"))],
        {"w": np.zeros((4, 3, 1, 1), np.float32)},
    )
    graph = import_model(made)
    infer(graph)
    by_name = {t.name: t.shape for node in graph.nodes for t in node.outputs}
    assert (by_name["h"][1], by_name["t"][-1]) == (6, 6)


def test_recognized_activations_keep_type_and_shape() -> None:
    nodes = [helper.make_node("Gelu", ["x"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    made = model(nodes, [value("x")], [value("y", shape=("a", "b"))])
    graph = import_model(made)
    graph.nodes[0].op, graph.nodes[0].domain, graph.nodes[0].origin = (
        "GeluErf",
        INTERNAL_DOMAIN,
        None,
    )
    infer(graph)
    assert graph.nodes[0].outputs[0].shape == [2, 4]
    assert graph.outputs[0].shape == [2, 4]


def test_what_inference_does_not_know_keeps_what_the_model_says() -> None:
    made = model(
        [
            helper.make_node("Odd", ["x"], ["h"], domain="odd"),
            helper.make_node("Relu", ["h"], ["y"]),
        ],
        [value("x")],
        [value("y", shape=("a", 4))],
    )
    made.opset_import.append(helper.make_opsetid("odd", 1))
    graph = import_model(made)
    infer(graph)
    assert graph.nodes[0].outputs[0].shape is None
    assert graph.outputs[0].shape == ["a", 4]
    assert graph.outputs[0].dtype == np.float32


def test_what_follows_from_what_the_model_says_is_inferred() -> None:
    """The source says the shape of h alone, which nothing infers behind an unknown operator."""
    nodes = [
        helper.make_node("Odd", ["x"], ["o"], domain="odd"),
        helper.make_node("Relu", ["o"], ["h"]),
        helper.make_node("Conv", ["h", "w"], ["c"]),
        helper.make_node("DepthToSpace", ["c"], ["y"], blocksize=2),
    ]
    weight = {"w": np.zeros((4, 3, 1, 1), np.float32)}
    made = model(nodes, [value("x")], [value("y", shape=("n", 1, "a", "b"))], weight)
    made.opset_import.append(helper.make_opsetid("odd", 1))
    made.graph.value_info.append(value("h", shape=("n", 3, 8, 8)))
    graph = import_model(made)
    infer(graph)
    by_name = {t.name: t.shape for node in graph.nodes for t in node.outputs}
    assert by_name["c"] == ["n", 4, 8, 8]
    assert by_name["y"] == ["n", 1, 16, 16]


def test_everything_survives() -> None:
    graph = import_model(everything())
    infer(graph)
    assert {t.name: t.shape for node in graph.nodes for t in node.outputs}["reduced"] == [4]


def test_a_model_that_onnx_gives_up_on() -> None:
    made = model([helper.make_node("F", ["x"], ["y"], domain="local")], [value("x")], [value("y")])
    made.opset_import.append(helper.make_opsetid("local", 1))
    body = [helper.make_node("F", ["a"], ["b"], domain="local")]
    made.functions.append(
        helper.make_function("local", "F", ["a"], ["b"], body, list(made.opset_import))
    )
    with pytest.raises(InputError, match="shapes cannot be inferred"):
        infer(import_model(made))


@pytest.mark.parametrize("name", ["bert_base.ts", "detr_r50.ts", "vgg16.ts"])
def test_large_models_need_no_weights(name: str) -> None:
    source = onnx.load(ZOO / f"{name}.onnx", load_external_data=False)
    graph = import_model(source)
    infer(graph)
    ranks = [t.shape for node in graph.nodes for t in node.outputs if t.name]
    assert all(shape is not None for shape in ranks)
    assert all(t.dtype is not None for node in graph.nodes for t in node.outputs if t.name)
    assert graph.inputs[0].shape[0] == "batch"
    assert TensorProto.FLOAT not in {t.dtype for t in graph.outputs}
