from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxbolt.canonicalize.constant_fold import run
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from tests.canonicalize.compare import applied, model, operators, random, unchanged


def test_a_chain_of_constants_becomes_one() -> None:
    source = model(
        [
            ("Transpose", "w", "wt", {"perm": [1, 0]}),
            ("Mul", "wt two", "scaled"),
            ("MatMul", "x scaled", "y"),
        ],
        {"x": ("n", 3)},
        {"y": ("n", 4)},
        {"w": random(4, 3), "two": np.array(2.0)},
    )
    graph = applied(source, run, 2)
    assert operators(graph) == ["MatMul"]
    assert graph.nodes[0].inputs[1].name == "scaled"


def test_all_outputs_of_a_node() -> None:
    nodes = [("Split", "w", "a b", {"axis": 0}), ("Add", "x a", "h"), ("Mul", "h b", "y")]
    source = model(nodes, {"x": (3,)}, {"y": (3,)}, {"w": random(6)})
    assert operators(applied(source, run, 1)) == ["Add", "Mul"]


def test_shapes_that_are_known() -> None:
    nodes = [
        ("Relu", "x", "h"),
        ("Shape", "h", "shape"),
        ("Gather", "shape one", "k", {"axis": 0}),
        ("Slice", "shape one three", "rest"),
        ("Concat", "minus rest", "target", {"axis": 0}),
        ("Reshape", "h target", "z"),
        ("Cast", "k", "kf", {"to": TensorProto.FLOAT}),
        ("Mul", "z kf", "y"),
    ]
    source = model(
        nodes,
        {"x": ("n", 2, 5)},
        {"y": ("n", 2, 5)},
        {"one": np.array([1]), "three": np.array([3]), "minus": np.array([-1])},
    )
    assert operators(applied(source, run, 4)) == ["Relu", "Reshape", "Mul"]


def test_parts_of_a_shape_that_are_not_known_stay() -> None:
    nodes = [
        ("Shape", "x", "shape"),
        ("Gather", "shape zero", "n", {"axis": 0}),
        ("Cast", "n", "nf", {"to": TensorProto.FLOAT}),
        ("Mul", "x nf", "y"),
    ]
    unchanged(model(nodes, {"x": ("n", 2)}, {"y": ("n", 2)}, {"zero": np.array(0)}), run)


def test_scalars_stay_scalars() -> None:
    nodes = [
        ("Shape", "x", "shape"),
        ("Gather", "shape one", "k", {"axis": 0}),
        ("Range", "zero k one", "ramp"),
        ("Cast", "ramp", "f", {"to": TensorProto.FLOAT}),
        ("Add", "x f", "y"),
    ]
    source = model(
        nodes, {"x": ("n", 4)}, {"y": ("n", 4)}, {"one": np.array(1), "zero": np.array(0)}
    )
    graph = applied(source, run, 3)
    assert graph.nodes[0].inputs[1].shape == (4,)


def test_what_would_grow_stays() -> None:
    def expanded(*shape: int) -> onnx.ModelProto:
        constants = {"one": np.ones(()), "shape": np.array(shape)}
        return model(
            [("Expand", "one shape", "big"), ("Add", "x big", "y")],
            {"x": shape},
            {"y": shape},
            constants,
        )

    unchanged(expanded(500, 1000), run)
    assert operators(applied(expanded(5, 10), run, 1)) == ["Add"]


def test_a_small_part_of_a_model_may_grow() -> None:
    """Position embeddings that are computed from ranges."""
    rows = 300  # 300 x 256 x 4 bytes exceed what any model may have
    nodes = [("Mul", "column row", "table"), ("Add", "x table", "h"), ("MatMul", "h w", "y")]
    constants = {"column": random(rows, 1), "row": random(1, 256)}
    for width, folded in ((256, 0), (20_000, 1)):
        source = model(
            nodes, {"x": (rows, 256)}, {"y": (rows, width)}, {**constants, "w": random(256, width)}
        )
        graph = import_model(source)
        infer(graph)
        assert run(graph) == folded


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, []),
        ({"mode": "linear"}, ["Expand", "Unsqueeze", "Resize", "Gather", "Cast", "Mul"]),
        (
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
            ["Expand", "Unsqueeze", "Resize", "Gather", "Cast", "Mul"],
        ),
    ],
)
def test_a_number_in_every_place_of_a_large_tensor(change: dict[str, Any], kept: list[str]) -> None:
    """DETR's mask of pixels: torch.ones(1, 800, 1344), resized to the features' size."""
    nodes = [
        ("Expand", "two size", "twos"),
        ("Unsqueeze", "twos zero", "image"),
        (
            "Resize",
            "image corners empty sizes",
            "resized",
            {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"} | change,
        ),
        ("Gather", "resized first", "mask", {"axis": 0}),
        ("Cast", "mask", "factor", {"to": TensorProto.FLOAT}),
        ("Mul", "x factor", "y"),
    ]
    source = model(
        nodes,
        {"x": (1, 25, 42)},
        {"y": (1, 25, 42)},
        {
            "two": np.array(2, np.int32),
            "size": np.array([1, 800, 1344]),
            "zero": np.array([0]),
            "corners": np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32),
            "empty": np.array([], np.float32),
            "sizes": np.array([1, 1, 25, 42]),
            "first": np.array(0),
        },
    )
    graph = applied(source, run, 0 if kept else 3)
    assert operators(graph) == (kept or ["Mul"])


def test_weights_stored_in_half_the_size() -> None:
    nodes = [("Cast", "w", "wide", {"to": TensorProto.FLOAT}), ("MatMul", "x wide", "y")]
    source = model(
        nodes, {"x": ("n", 400)}, {"y": ("n", 500)}, {"w": random(400, 500).astype(np.float16)}
    )
    assert operators(applied(source, run, 1)) == ["MatMul"]


def test_random_numbers_and_dequantized_weights_stay() -> None:
    unchanged(
        model(
            [("RandomUniform", "", "noise", {"shape": [3]}), ("Add", "x noise", "y")],
            {"x": (3,)},
            {"y": (3,)},
        ),
        run,
    )
    unchanged(
        model(
            [("DequantizeLinear", "q scale", "w"), ("MatMul", "x w", "y")],
            {"x": (2, 3)},
            {"y": (2, 4)},
            {"q": np.ones((3, 4), np.int8), "scale": np.array(0.5)},
        ),
        run,
    )


def test_strings_and_control_flow_stay() -> None:
    branch = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["o"])],
        "branch",
        [],
        [helper.make_tensor_value_info("o", 1, (3,))],
    )
    source = model(
        [("If", "flag", "v", {"then_branch": branch, "else_branch": branch}), ("Add", "x v", "y")],
        {"x": (3,)},
        {"y": (3,)},
        {"flag": np.array(True), "w": random(3)},
    )
    unchanged(source, run)


def test_outputs_of_the_model_stay_nodes() -> None:
    unchanged(
        model(
            [("Neg", "w", "y"), ("Add", "x w", "z")],
            {"x": (3,)},
            {"y": (3,), "z": (3,)},
            {"w": random(3)},
        ),
        run,
    )


def test_overridable_initializers_are_no_constants() -> None:
    source = model(
        [("Neg", "w", "v"), ("Add", "x v", "y")],
        {"x": (3,), "w": (3,)},
        {"y": (3,)},
        {"w": random(3)},
    )
    unchanged(source, run)


def test_bfloat16_weights() -> None:
    source = model(
        [("Transpose", "w", "wt"), ("MatMul", "x wt", "y")],
        {"x": ("n", 3)},
        {"y": ("n", 4)},
        dtype=TensorProto.BFLOAT16,
        constants={"w": random(4, 3)},
    )
    graph = import_model(source)
    infer(graph)
    assert run(graph) == 1
    folded = graph.nodes[0].inputs[1]
    assert isinstance(folded, gs.Constant)
    assert folded.dtype == ml_dtypes.bfloat16
    assert (folded.values == numpy_helper.to_array(source.graph.initializer[0]).T).all()


UNLIKE = [  # the operator, its opset and attributes, the constant's shape
    *(
        (op, 17, {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": mode}, (1, 2, 5, 5))
        for op in ("MaxPool", "AveragePool")
        for mode in ("SAME_LOWER", "SAME_UPPER")
    ),
    ("MaxPool", 17, {"kernel_shape": [3, 3], "pads": [1, 0, 1, 1]}, (1, 2, 7, 7)),
    ("AveragePool", 19, {"kernel_shape": [3, 3], "strides": [3, 2], "ceil_mode": 1}, (1, 2, 7, 7)),
    ("LpPool", 18, {"kernel_shape": [3, 3], "strides": [3, 2], "ceil_mode": 1}, (1, 2, 7, 7)),
    ("Unique", 17, {"sorted": 0}, (3,)),
]


@pytest.mark.parametrize(("op", "opset", "attributes", "shape"), UNLIKE)
def test_what_the_evaluator_computes_otherwise_than_onnx_runtime_stays(
    op: str, opset: int, attributes: dict[str, Any], shape: tuple[int, ...]
) -> None:
    unchanged(
        model(
            [(op, "c", "k", attributes), ("Add", "x k", "y")],
            {"x": (1,)},
            {"y": list("abcd")[: len(shape)]},
            {"c": random(*shape)},
            opset=opset,
        ),
        run,
    )


def test_batch_normalization_of_old_opsets_stays() -> None:
    def normalized(opset: int) -> onnx.ModelProto:
        constants = {
            "c": random(2, 3, 4),
            "s": random(3),
            "m": random(3, seed=1),
            "v": random(3, seed=2) ** 2,
        }
        return model(
            [("BatchNormalization", "c s s m v", "k"), ("Add", "x k", "y")],
            {"x": (1,)},
            {"y": (2, 3, 4)},
            constants,
            opset=opset,
        )

    unchanged(normalized(13), run)
    assert operators(applied(normalized(17), run, 1)) == ["Add"]


@pytest.mark.parametrize("opset", [12, 13])
@pytest.mark.parametrize(
    ("op", "axis"), [("Softmax", 1), ("Softmax", 0), ("LogSoftmax", 1), ("Hardmax", 2)]
)
def test_softmax_is_folded_as_each_opset_means_it(op: str, axis: int, opset: int) -> None:
    """Before opset 13 all axes from `axis` on were one."""
    nodes = [(op, "c", "k", {"axis": axis}), ("Add", "x k", "y")]
    source = model(nodes, {"x": (1,)}, {"y": (2, 3, 4)}, {"c": random(2, 3, 4)}, opset=opset)
    flattened = opset < 13 and axis < 2
    assert operators(applied(source, run, 4 if flattened else 1)) == ["Add"]


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_position_embeddings_are_resized_beforehand(mode: str) -> None:
    def resized(**attributes: Any) -> onnx.ModelProto:
        nodes = [("Resize", "c _ s", "k", {"mode": mode, **attributes}), ("Add", "x k", "y")]
        return model(
            nodes,
            {"x": (1,)},
            {"y": list("abcd")},
            {"c": random(1, 2, 7, 7), "s": np.array([1, 1, 1.5, 0.6], np.float32)},
            opset=18,
        )

    assert operators(
        applied(resized(coordinate_transformation_mode="pytorch_half_pixel"), run, 1)
    ) == ["Add"]
    unchanged(resized(coordinate_transformation_mode="align_corners"), run)
    unchanged(resized(mode="nearest", nearest_mode="floor"), run)
    unchanged(resized(antialias=1), run)


@pytest.mark.parametrize(
    "narrow",
    [TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2],
)
def test_casts_to_types_that_numpy_lacks_stay(narrow: int) -> None:
    nodes = [
        ("Cast", "c", "n", {"to": narrow}),
        ("Cast", "n", "k", {"to": TensorProto.FLOAT}),
        ("Add", "x k", "y"),
    ]
    unchanged(
        model(
            nodes,
            {"x": (1,)},
            {"y": (4,)},
            {"c": np.array([2.5, -1.5, 300, -9], np.float32)},
            opset=21,
        ),
        run,
    )
