from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxbolt.canonicalize.pad_form import run
from tests.canonicalize.compare import applied, model, random, unchanged

SHAPES = {"x": ("n", 2, 7, 8)}, {"y": ("n", 3, "p", "q")}
WEIGHT = {"w": random(3, 2, 3, 3)}


@pytest.mark.parametrize(
    ("attributes", "value"),
    [({}, ""), ({"pads": [0, 2, 1, 0]}, "zero"), ({"auto_pad": "VALID"}, "")],
)
def test_a_border_of_zeros_is_the_convolutions(attributes: dict[str, Any], value: str) -> None:
    nodes = [
        ("Pad", f"x pads {value}".strip(), "h"),
        ("Conv", "h w", "y", {"strides": [2, 1], **attributes}),
    ]
    constants = WEIGHT | {"pads": np.array([0, 0, 0, 1, 0, 0, 1, 2]), "zero": np.array(0.0)}
    graph = applied(model(nodes, *SHAPES, constants), run, 1)
    assert graph.nodes[0].attrs["pads"] == ([0, 3, 2, 2] if "pads" in attributes else [0, 1, 1, 2])
    assert graph.nodes[0].provenance == ("node_h", "node_y")


@pytest.mark.parametrize(
    ("pads", "value", "mode", "attributes"),
    [
        ([0, 0, 1, 1, 0, 0, 1, 1], 1.0, "constant", {}),
        ([0, 0, 1, 1, 0, 0, 1, 1], 0.0, "reflect", {}),
        ([0, 0, -1, 1, 0, 0, 1, 1], 0.0, "constant", {}),
        ([1, 0, 0, 0, 0, 0, 0, 0], 0.0, "constant", {}),
        ([0, 0, 1, 1, 0, 0, 1, 1], 0.0, "constant", {"auto_pad": "SAME_UPPER"}),
    ],
)
def test_other_borders_stay(
    pads: list[int], value: float, mode: str, attributes: dict[str, Any]
) -> None:
    nodes = [("Pad", "x pads value", "h", {"mode": mode}), ("Conv", "h w", "y", attributes)]
    unchanged(
        model(nodes, *SHAPES, WEIGHT | {"pads": np.array(pads), "value": np.array(value)}), run
    )


def test_a_border_that_others_read_stays() -> None:
    constants = WEIGHT | {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    unchanged(
        model(
            [("Pad", "x pads", "h"), ("Conv", "h w", "y")],
            SHAPES[0],
            SHAPES[1] | {"h": ("n", 2, "r", "s")},
            constants,
        ),
        run,
    )


def test_an_empty_auto_pad_leaves_the_convolutions_own_pads() -> None:
    attributes: dict[str, Any] = {"auto_pad": "", "pads": [1, 0, 0, 1]}
    source = model(
        [("Pad", "x p", "h"), ("Conv", "h w", "y", attributes)],
        {"x": (1, 2, 8, 8)},
        {"y": (1, 3, 9, 9)},
        {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "w": random(3, 2, 3, 3)},
    )
    assert applied(source, run, 1).nodes[0].attrs["pads"] == [2, 1, 1, 2]
