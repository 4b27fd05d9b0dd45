from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxbolt.canonicalize.noops import run
from onnxbolt.graph.exporter import export_model
from onnxbolt.graph.importer import import_model
from tests.canonicalize.compare import applied, model, operators, random, unchanged

ZERO, ONE = np.zeros(()), np.ones((1, 3))
NOOPS = [
    ("Identity", "h", {}, {}),
    ("Dropout", "h", {}, {}),
    ("Dropout", "h ratio off", {}, {"ratio": np.array(0.5), "off": np.array(False)}),
    ("Transpose", "h", {"perm": [0, 1]}, {}),
    ("Reshape", "h shape", {}, {"shape": np.array([-1, 3])}),
    ("Cast", "h", {"to": TensorProto.FLOAT}, {}),
    ("Pad", "h pads", {}, {"pads": np.zeros(4, np.int64)}),
    ("Concat", "h", {"axis": 0}, {}),
    ("Sum", "h", {}, {}),
    ("Slice", "h starts ends", {}, {"starts": np.array([0, 0]), "ends": np.array([2**62, 3])}),
    (
        "Slice",
        "h starts ends axes one",
        {},
        {
            "starts": np.array([0]),
            "ends": np.array([9]),
            "axes": np.array([-1]),
            "one": np.array([1]),
        },
    ),
    ("Add", "h c", {}, {"c": ZERO}),
    ("Add", "c h", {}, {"c": np.zeros(3)}),
    ("Sub", "h c", {}, {"c": ZERO}),
    ("Mul", "c h", {}, {"c": ONE}),
    ("Div", "h c", {}, {"c": ONE}),
]
KEPT = [
    ("Dropout", "h ratio on", {}, {"ratio": np.array(0.5), "on": np.array(True)}),
    ("Transpose", "h", {"perm": [1, 0]}, {}),
    ("Transpose", "h", {}, {}),
    ("Reshape", "h shape", {}, {"shape": np.array([3, -1])}),
    ("Cast", "h", {"to": TensorProto.FLOAT16}, {}),
    ("Pad", "h pads", {}, {"pads": np.array([0, 0, 0, 1])}),
    ("Concat", "h h", {"axis": 0}, {}),
    ("Slice", "h starts ends", {}, {"starts": np.array([0, 0]), "ends": np.array([2**62, 2])}),
    ("Slice", "h starts ends", {}, {"starts": np.array([0, 1]), "ends": np.array([2**62, 3])}),
    ("Add", "h c", {}, {"c": np.zeros((1, 1, 3))}),
    ("Sub", "c h", {}, {"c": ZERO}),
    ("Div", "c h", {}, {"c": np.ones(())}),
    ("Mul", "h c", {}, {"c": np.array([1.0, 1.0, 1.001])}),
]


@pytest.mark.parametrize(("op", "inputs", "attributes", "constants"), NOOPS)
def test_a_noop_between_two_nodes_is_removed(
    op: str, inputs: str, attributes: dict[str, Any], constants: dict[str, np.ndarray]
) -> None:
    nodes = [("Relu", "x", "h"), (op, inputs, "same", attributes), ("Neg", "same", "y")]
    source = model(nodes, {"x": ("n", 3)}, {"y": ("n", 3)}, constants)
    assert operators(applied(source, run, 1)) == ["Relu", "Neg"]


@pytest.mark.parametrize(("op", "inputs", "attributes", "constants"), NOOPS)
def test_a_noop_before_an_output_is_removed_and_the_name_stays(
    op: str, inputs: str, attributes: dict[str, Any], constants: dict[str, np.ndarray]
) -> None:
    nodes = [("Relu", "x", "h"), ("Neg", "h", "z"), (op, inputs, "y", attributes)]
    source = model(nodes, {"x": ("n", 3)}, {"y": ("n", 3), "z": ("n", 3)}, constants)
    graph = applied(source, run, 1)
    assert operators(graph) == ["Relu", "Neg"]
    assert graph.nodes[0].outputs[0].name == graph.nodes[1].inputs[0].name == "y"


@pytest.mark.parametrize(("op", "inputs", "attributes", "constants"), KEPT)
def test_near_misses(
    op: str, inputs: str, attributes: dict[str, Any], constants: dict[str, np.ndarray]
) -> None:
    unchanged(
        model(
            [("Relu", "x", "h"), (op, inputs, "z", attributes)],
            {"x": ("n", 3)},
            {"z": ("a", "b")},
            constants,
        ),
        run,
    )


@pytest.mark.parametrize(("second", "count"), [([1, 2, 0], 1), ([2, 0, 1], 0)])
def test_a_transpose_that_reverses_another_is_removed(second: list[int], count: int) -> None:
    nodes = [
        ("Relu", "x", "h"),
        ("Transpose", "h", "t", {"perm": [2, 0, 1]}),
        ("Transpose", "t", "same", {"perm": second}),
        ("Neg", "same", "y"),
        ("Neg", "t", "z"),
    ]
    shape = ("n", 3, 4) if count else (3, 4, "n")
    source = model(nodes, {"x": ("n", 3, 4)}, {"y": shape, "z": (4, "n", 3)})
    graph = applied(source, run, count)
    assert operators(graph).count("Transpose") == 2 - count


def test_unknown_dropout_mode_and_used_mask_stay() -> None:
    mask = model([("Dropout", "x", "y mask"), ("Not", "mask", "z")], {"x": (3,)}, {"y": (3,)})
    mask.graph.output.append(helper.make_tensor_value_info("z", TensorProto.BOOL, (3,)))
    unchanged(mask, run)


@pytest.mark.parametrize(
    ("op", "attributes"), [("Dropout", {}), ("MaxPool", {"kernel_shape": [2]})]
)
def test_outputs_that_nobody_reads_are_forgotten(op: str, attributes: dict[str, Any]) -> None:
    nodes = [("Relu", "x", "h"), (op, "h", "g unread", attributes), ("Relu", "g", "y")]
    graph = applied(
        model(nodes, {"x": (2, 3, 4)}, {"y": (2, 3, "l")}), run, 2 if op == "Dropout" else 1
    )
    assert all(len(node.outputs) == 1 for node in graph.nodes)


def test_inputs_and_constants_that_are_outputs_stay() -> None:
    unchanged(
        model(
            [("Identity", "x", "y"), ("Identity", "c", "z")],
            {"x": (3,)},
            {"y": (3,), "z": (3,)},
            {"c": random(3)},
        ),
        run,
    )
    unchanged(
        model([("Relu", "x", "y"), ("Identity", "y", "z")], {"x": (3,)}, {"y": (3,), "z": (3,)}),
        run,
    )


def test_captured_names_stay() -> None:
    branch = helper.make_graph(
        [helper.make_node("Neg", ["h"], ["o"])],
        "branch",
        [],
        [helper.make_tensor_value_info("o", 1, (3,))],
    )
    choice = ("If", "flag", "y", {"then_branch": branch, "else_branch": branch})
    nodes = [("Relu", "x", "g"), ("Identity", "g", "h"), ("Neg", "g", "z"), choice]
    source = model(nodes, {"x": (3,)}, {"y": (3,), "z": (3,)}, {"flag": np.array(True)})
    graph = applied(source, run, 1)
    assert graph.nodes[0].outputs[0].name == "h"


def test_weights_shared_through_identity_stay_shared() -> None:
    source = model(
        [("Identity", "w", "w2"), ("Add", "x w", "h"), ("Mul", "h w2", "y")],
        {"x": (3,)},
        {"y": (3,)},
        {"w": random(3)},
    )
    graph = applied(source, run, 1)
    assert graph.nodes[0].inputs[1] is graph.nodes[1].inputs[1]


def test_chains_of_no_ops() -> None:
    source = model(
        [
            ("Identity", "x", "a"),
            ("Identity", "a", "b"),
            ("Relu", "b", "c"),
            ("Identity", "c", "d"),
            ("Identity", "d", "y"),
        ],
        {"x": (3,)},
        {"y": (3,)},
    )
    assert operators(applied(source, run, 4)) == ["Relu"]


def test_the_reader_in_the_source_is_untouched_otherwise() -> None:
    source = model(
        [("Identity", "x", "a"), ("Elu", "a", "y", {"alpha": 0.3})], {"x": (3,)}, {"y": (3,)}
    )
    graph = import_model(source)
    run(graph)
    (node,) = export_model(graph).graph.node
    assert node.attribute == source.graph.node[1].attribute
    assert list(node.input) == ["x"]
