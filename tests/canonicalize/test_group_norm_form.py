"""Normalizations of groups: the forms that become one node, and near misses. The checker refuses
opset 18's GroupNormalization, which tests/ops/test_group_norm.py has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from onnxbolt.canonicalize.group_norm_form import OP, run
from onnxbolt.domains import INTERNAL
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from tests.canonicalize.compare import applied, model, random, unchanged

GROUPS, CHANNELS = 3, 12
IMAGE = ("n", CHANNELS, 4, "w")
SHAPES = {"x": IMAGE}, {"y": IMAGE}
CONSTANTS = {
    "ones": np.ones(GROUPS),
    "zeros": np.zeros(GROUPS),
    "of_groups": random(GROUPS, seed=1),
    "of_channels": random(CHANNELS, seed=2),
    "gamma": random(CHANNELS, 1, 1, seed=3),
    "beta": random(1, CHANNELS, 1, 1, seed=4),
    "one_number": np.array(0.5),
    "of_columns": random(1, 1, 4, 1, seed=5),
    "of_images": np.repeat(random(CHANNELS, 1, 1, seed=6), 16, 1).reshape(CHANNELS, 4, 4),
    "of_pixels": random(CHANNELS, 4, 4, seed=7),
    "groups": np.array([0, GROUPS, -1]),
}
Nodes = Sequence[tuple[Any, ...]]
EPSILON = {"epsilon": 1e-3}


def _reshaped(*end: tuple[str, str, str], scale: str = "ones") -> Nodes:
    """z is normalized."""
    return (
        ("Shape", "x", "s"),
        ("Reshape", "x groups", "g"),
        ("InstanceNormalization", f"g {scale} zeros", "i", EPSILON),
        ("Reshape", "i s", "z"),
        *end,
    )


GAMMA_BETA = ("Mul", "z gamma", "m"), ("Add", "beta m", "y")
FORMS: dict[str, tuple[int, Nodes]] = {
    "factors of channels": (
        21,
        [
            (
                "GroupNormalization",
                "x of_channels of_channels",
                "y",
                {"num_groups": GROUPS, **EPSILON},
            )
        ],
    ),
    "instances": (17, [("InstanceNormalization", "x of_channels of_channels", "y", EPSILON)]),
    "reshaped": (17, _reshaped(*GAMMA_BETA)),
    "factors of groups behind a Reshape": (17, _reshaped(*GAMMA_BETA, scale="of_groups")),
    "without gamma": (17, _reshaped(("Add", "z beta", "y"))),
    "one number": (17, _reshaped(("Mul", "z one_number", "y"))),
}


def _recognized(source: onnx.ModelProto) -> gs.Graph:
    graph = import_model(source)
    infer(graph)
    assert run(graph) == 1
    return graph


def _normal(source: onnx.ModelProto) -> dict[str, Any]:
    """The attributes of the only node that is left."""
    (node,) = (node for node in _recognized(source).nodes if node.op != "Shape")
    assert (node.op, node.domain) == (OP, INTERNAL)
    assert [tensor.shape for tensor in node.inputs[1:]] == [(CHANNELS,)] * 2
    return dict(node.attrs)


@pytest.mark.parametrize("form", FORMS)
def test_forms_are_one_node(form: str) -> None:
    opset, nodes = FORMS[form]
    attributes = _normal(model(nodes, *SHAPES, CONSTANTS, opset=opset))
    assert attributes["groups"] == (CHANNELS if form == "instances" else GROUPS)
    assert attributes["epsilon"] == pytest.approx(1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_answers_are_as_before_where_nothing_takes_the_node(form: str) -> None:
    opset, nodes = FORMS[form]
    applied(model(nodes, *SHAPES, CONSTANTS, opset=opset), run, 1)


def test_a_shape_that_others_read_too_is_computed_anew() -> None:
    """A recognized node stands for nodes that read x and constants alone."""
    nodes = [*_reshaped(*GAMMA_BETA), ("Identity", "s", "t")]
    source = model(nodes, SHAPES[0], {**SHAPES[1], "t": (4,)}, CONSTANTS, opset=17)
    graph = _recognized(source)
    (norm,) = (node for node in graph.nodes if node.op == OP)
    assert [proto.op_type for proto in norm.expansion].count("Shape") == 1
    assert [node.op for node in graph.nodes if node is not norm] == ["Shape", "Identity"]


def test_a_layer_norm_of_whole_images_is_one_group() -> None:
    image = ("n", CHANNELS, 4, 4)
    nodes = [("LayerNormalization", "x of_images of_images", "y", {"axis": 1, **EPSILON})]
    source = model(nodes, {"x": image}, {"y": image}, CONSTANTS, opset=17)
    assert _normal(source)["groups"] == 1
    applied(source, run, 1)


MISSES: dict[str, Nodes] = {
    "factors of a run": [("InstanceNormalization", "x v v", "y")],
    "factors of pixels": [("LayerNormalization", "x of_pixels", "y", {"axis": 1})],
    "rows": [("LayerNormalization", "x one_number", "y", {"axis": -1})],
}


@pytest.mark.parametrize("miss", MISSES)
def test_near_misses_stay(miss: str) -> None:
    image = ("n", CHANNELS, 4, 4)
    inputs = {"x": image, "v": (CHANNELS,)}
    unchanged(model(MISSES[miss], inputs, {"y": image}, CONSTANTS, opset=17), run)


def test_a_summand_of_columns_stays_behind() -> None:
    source = model(
        [("InstanceNormalization", "x of_channels of_channels", "z"), ("Mul", "z of_columns", "y")],
        *SHAPES,
        CONSTANTS,
        opset=17,
    )
    assert [node.op for node in _recognized(source).nodes] == [OP, "Mul"]


def test_channels_have_to_be_known() -> None:
    image = ("n", "c", 4, 4)
    nodes = [("InstanceNormalization", "x of_channels of_channels", "y")]
    unchanged(model(nodes, {"x": image}, {"y": image}, CONSTANTS), run)
