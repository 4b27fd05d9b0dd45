from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto, helper

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
