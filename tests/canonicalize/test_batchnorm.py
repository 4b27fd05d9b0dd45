from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxbolt.canonicalize.batchnorm import run
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from tests.canonicalize.compare import applied, model, operators, random, unchanged


def parameters(channels: int) -> dict[str, np.ndarray]:
    gamma, beta, mean, root = (random(channels, seed=seed) for seed in range(4))
    return {"g": gamma, "e": beta, "m": mean, "v": root**2 + 0.1}


@pytest.mark.parametrize("inputs", ["x w", "x w b"])
@pytest.mark.parametrize(("group", "spatial"), [(1, (7, 7)), (2, (7, 7)), (1, (7,))])
def test_after_conv(inputs: str, group: int, spatial: tuple[int, ...]) -> None:
    nodes = [
        ("Conv", inputs, "h", {"group": group}),
        ("BatchNormalization", "h g e m v", "z", {"epsilon": 0.01}),
        ("Relu", "z", "y"),
    ]
    source = model(
        nodes,
        {"x": (2, 4, *spatial)},
        {"y": (2, 6, *("pq"[: len(spatial)]))},
        {"w": random(6, 4 // group, *[3] * len(spatial)), "b": random(6, seed=9), **parameters(6)},
    )
    graph = applied(source, run, 1)
    assert operators(graph) == ["Conv", "Relu"]
    assert graph.nodes[0].outputs[0].name == "z"
    assert graph.nodes[0].provenance == ("node_h", "node_z")


@pytest.mark.parametrize("inputs", ["x w", "x w b"])
@pytest.mark.parametrize(("group", "spatial"), [(1, (7, 7)), (2, (7, 7)), (2, (7,))])
def test_after_a_transposed_conv(inputs: str, group: int, spatial: tuple[int, ...]) -> None:
    rank = len(spatial)
    nodes = [
        ("ConvTranspose", inputs, "h", {"group": group, "strides": [2] * rank}),
        ("BatchNormalization", "h g e m v", "y", {"epsilon": 0.01}),
    ]
    source = model(
        nodes,
        {"x": (2, 4, *spatial)},
        {"y": (2, 6, *("pq"[:rank]))},
        {"w": random(4, 6 // group, *[3] * rank), "b": random(6, seed=9), **parameters(6)},
    )
    assert operators(applied(source, run, 1)) == ["ConvTranspose"]


@pytest.mark.parametrize("bias", [True, False])
def test_after_a_product(bias: bool) -> None:
    nodes = [("MatMul", "x w", "p"), ("Add", "p b", "h")] if bias else [("MatMul", "x w", "h")]
    source = model(
        [*nodes, ("BatchNormalization", "h g e m v", "y")],
        {"x": ("n", 4)},
        {"y": ("n", 6)},
        {"w": random(4, 6), "b": random(6, seed=9), **parameters(6)},
    )
    graph = applied(source, run, 1)
    assert operators(graph) == ["MatMul", "Add"]
    assert graph.nodes[0].outputs[0].name not in ("p", "h")  # it has another value now


def test_a_shared_weight_changes_for_the_folded_use_alone() -> None:
    source = model(
        [("Conv", "x w", "h"), ("Conv", "x w", "z"), ("BatchNormalization", "h g e m v", "y")],
        {"x": (2, 4, 5, 5)},
        {"y": (2, 6, "p", "q"), "z": (2, 6, "p", "q")},
        {"w": random(6, 4, 3, 3), **parameters(6)},
    )
    graph = applied(source, run, 1)
    assert [node.inputs[1].name == "w" for node in graph.nodes] == [False, True]


def test_fp16_weights_stay_fp16() -> None:
    source = model(
        [("Conv", "x w b", "h"), ("BatchNormalization", "h g e m v", "y")],
        {"x": (2, 4, 5, 5)},
        {"y": (2, 6, "p", "q")},
        {"w": random(6, 4, 3, 3), "b": random(6), **parameters(6)},
        dtype=TensorProto.FLOAT16,
    )
    graph = applied(source, run, 1)
    assert {t.dtype for t in graph.nodes[0].inputs if isinstance(t, gs.Constant)} == {
        np.dtype(np.float16)
    }


def test_what_does_not_fit_fp16_stays() -> None:
    tiny = parameters(6) | {"v": np.zeros(6), "g": np.full(6, 60000.0)}
    unchanged(
        model(
            [("Conv", "x w", "h"), ("BatchNormalization", "h g e m v", "y")],
            {"x": (2, 4, 5, 5)},
            {"y": (2, 6, "p", "q")},
            {"w": random(6, 4, 3, 3), **tiny},
            dtype=TensorProto.FLOAT16,
        ),
        run,
    )


def test_other_readers_and_outputs() -> None:
    constants = {"w": random(6, 4, 3, 3), **parameters(6)}
    conv, norm = ("Conv", "x w", "h"), ("BatchNormalization", "h g e m v", "y")
    shape = (2, 6, "p", "q")
    unchanged(
        model(
            [conv, norm, ("Relu", "h", "z")],
            {"x": (2, 4, 5, 5)},
            {"y": shape, "z": shape},
            constants,
        ),
        run,
    )
    unchanged(model([conv, norm], {"x": (2, 4, 5, 5)}, {"y": shape, "h": shape}, constants), run)
    unchanged(
        model([("Relu", "x", "h"), norm], {"x": (2, 6, 5, 5)}, {"y": shape}, parameters(6)), run
    )
    branch = helper.make_graph(
        [helper.make_node("Neg", ["h"], ["o"])],
        "branch",
        [],
        [helper.make_tensor_value_info("o", 1, shape)],
    )
    captured = ("If", "flag", "z", {"then_branch": branch, "else_branch": branch})
    unchanged(
        model(
            [conv, norm, captured],
            {"x": (2, 4, 5, 5)},
            {"y": shape, "z": shape},
            {**constants, "flag": np.array(True)},
        ),
        run,
    )


def test_channels_that_are_not_the_last_axis() -> None:
    unchanged(
        model(
            [("MatMul", "x w", "h"), ("BatchNormalization", "h g e m v", "y")],
            {"x": (2, 6, 4)},
            {"y": (2, 6, 6)},
            {"w": random(4, 6), **parameters(6)},
        ),
        run,
    )


ROWS = [
    ("MatMul", "x w", "p"),
    ("Reshape", "p rows", "h"),
    ("BatchNormalization", "h g e m v", "z"),
    ("Reshape", "z tokens", "y"),
]
TOKENS = {"x": (2, 5, 4)}


def rows_of(
    nodes: Sequence[tuple[str, ...]], outputs: dict[str, tuple[int, ...]]
) -> onnx.ModelProto:
    constants = {"w": random(4, 6), "b": random(6, seed=9), **parameters(6)}
    constants |= {"rows": np.array([10, 6]), "tokens": np.array([2, 5, 6])}
    used = {name for node in nodes for name in node[1].split()}
    return model(nodes, TOKENS, outputs, {k: v for k, v in constants.items() if k in used})


@pytest.mark.parametrize("bias", [True, False])
def test_rows_of_a_product(bias: bool) -> None:
    """LeViT normalizes the rows of a sequence."""
    nodes = [("MatMul", "x w", "q"), ("Add", "q b", "p"), *ROWS[1:]] if bias else ROWS
    graph = applied(rows_of(nodes, {"y": (2, 5, 6)}), run, 1)
    assert operators(graph) == ["MatMul", "Add", "Reshape", "Reshape"]
    assert graph.nodes[2].outputs[0].name == "z"
    assert not {"p", "q"} & set(graph.tensors())  # they had other values


def test_rows_that_others_read_stay() -> None:
    for other, shape in (("h", (10, 6)), ("p", (2, 5, 6))):
        nodes = [*ROWS, ("Neg", other, "n")]
        unchanged(rows_of(nodes, {"y": (2, 5, 6), "n": shape}), run)


def test_rows_of_another_width_stay() -> None:
    nodes = [
        ("MatMul", "x w", "p"),
        ("Reshape", "p halves", "h"),
        ("BatchNormalization", "h g e m v", "y"),
    ]
    constants = {"w": random(4, 6), "halves": np.array([20, 3]), **parameters(3)}
    unchanged(model(nodes, TOKENS, {"y": (20, 3)}, constants), run)


def test_rows_whose_weights_would_overflow_stay() -> None:
    source = rows_of(ROWS, {"y": (2, 5, 6)})
    by_name = {tensor.name: tensor for tensor in source.graph.initializer}
    by_name["v"].CopyFrom(numpy_helper.from_array(np.full(6, 1e-5, np.float32), "v"))
    by_name["w"].CopyFrom(numpy_helper.from_array(np.full((4, 6), 3e38, np.float32), "w"))
    graph = import_model(source)
    infer(graph)
    assert run(graph) == 0
    assert operators(graph) == ["MatMul", "Reshape", "BatchNormalization", "Reshape"]


def test_computed_parameters_and_training_stay() -> None:
    constants = {"w": random(6, 4, 3, 3), **parameters(6)}
    shape = (2, 6, "p", "q")
    computed = [("Conv", "x w", "h"), ("Neg", "e", "en"), ("BatchNormalization", "h g en m v", "y")]
    unchanged(model(computed, {"x": (2, 4, 5, 5)}, {"y": shape}, constants), run)
    training = [
        ("Conv", "x w", "h"),
        ("BatchNormalization", "h g e m v", "y m2 v2", {"training_mode": 1}),
    ]
    unchanged(model(training, {"x": (2, 4, 5, 5)}, {"y": shape}, constants), run)
    unread = [("Conv", "x w", "h"), ("BatchNormalization", "h g e m v", "y", {"training_mode": 1})]
    graph = import_model(model(unread, {"x": (2, 4, 5, 5)}, {"y": shape}, constants))
    infer(graph)
    assert run(graph) == 0
