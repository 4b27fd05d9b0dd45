"""Sizes that are computed from the image's own shape become scales."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxbolt.canonicalize import canonicalize
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from tests.support import Net, assert_same, prepare


def _resized(
    *sizes: int, batch: int | str = "N", shape_of: str = "", channels: int = 8, **attributes: Any
) -> Net:
    net = Net({"x": (batch, 8, 6, 7), "other": ("M", 8, 6, 7)})
    whole = net.node("Shape", shape_of or "x")
    first = net.node("Slice", whole, net.const([0], np.int64), net.const([1], np.int64))
    net.node(
        "Resize",
        "x",
        "",
        "",
        net.node("Concat", first, net.const([channels, *sizes], np.int64), axis=0),
        **attributes,
    )
    return net


@pytest.mark.parametrize(
    "attributes",
    [
        {
            "mode": "nearest",
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        },
        {"mode": "linear"},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ],
)
@pytest.mark.parametrize("sizes", [(12, 14), (3, 14), (9, 20), (6, 1)])
def test_same_answer_without_computed_sizes(
    sizes: tuple[int, int], attributes: dict[str, Any]
) -> None:
    net = _resized(*sizes, **attributes)
    model = net.model(net.nodes[-1].output[0])
    del model.graph.input[1:]
    graph = prepare(model)
    assert [node.op for node in graph.nodes] == ["Resize"]
    assert graph.nodes[0].inputs[2].values.tolist() == pytest.approx(
        [1, 1, sizes[0] / 6, sizes[1] / 7]
    )
    assert_same(model)


@pytest.mark.parametrize(
    "net",
    [
        _resized(12, 14, shape_of="other"),
        _resized(12, 14, channels=16),
        _resized(12, 9),  # 9 / 7 in fp32, times 7, is 9 in fp32, and less in fp64
        _resized(12, 14, coordinate_transformation_mode="tf_crop_and_resize"),
    ],
)
def test_left_alone(net: Net) -> None:
    graph = import_model(net.model(net.nodes[-1].output[0]))
    infer(graph)
    canonicalize(graph)
    assert "Concat" in [node.op for node in graph.nodes]


def test_a_gathered_batch() -> None:
    net = Net({"x": ("N", 8, 6, 6)})
    batch = net.node(
        "Unsqueeze",
        net.node("Gather", net.node("Shape", "x"), net.const(0, np.int64)),
        net.const([0], np.int64),
    )
    net.node(
        "Resize",
        "x",
        "",
        "",
        net.node("Concat", batch, net.const([8, 12, 12], np.int64), axis=0),
        mode="linear",
    )
    assert [node.op for node in prepare(net.model(net.nodes[-1].output[0])).nodes] == ["Resize"]


def _of_axes(batch: int | str, axes: list[int], given: str, opset: int = 18) -> Net:
    """A Resize of some axes, to sizes or by scales, which may be those of another image."""
    net = Net({"x": (batch, 8, 6, 7), "other": (batch, 8, "h", "w")}, opset=opset)
    if given == "run time":
        shape = net.node("Shape", "other", start=2)
        sizes = shape if axes[0] in (2, -2) else net.node("Gather", shape, net.const([1, 0], int))
        net.node("Resize", "x", "", "", sizes, axes=axes, mode="linear")
    elif given == "sizes":
        net.node("Resize", "x", "", "", net.const([9, 20], np.int64), axes=axes, mode="linear")
    else:
        net.node("Resize", "x", "", net.const([1.5, 2.0]), axes=axes, mode="linear")
    return net


@pytest.mark.parametrize("batch", [2, "N"])
@pytest.mark.parametrize("axes", [[2, 3], [-2, -1]])
@pytest.mark.parametrize("given", ["run time", "sizes", "scales"])
def test_sizes_of_the_last_axes_become_those_of_all(
    given: str, axes: list[int], batch: int | str
) -> None:
    net = _of_axes(batch, axes, given)
    model = net.model(net.nodes[-1].output[0])
    (node,) = (node for node in prepare(model).nodes if node.op == "Resize")
    assert "axes" not in node.attrs
    if given == "run time":
        assert list(node.outputs[0].shape[1:]) == [8, "h", "w"]
    else:
        assert_same(model)


@pytest.mark.parametrize("axes", [[3, 2], [1, 2]])
def test_other_axes_stay(axes: list[int]) -> None:
    net = _of_axes("N", axes, "scales")
    (node,) = prepare(net.model(net.nodes[-1].output[0])).nodes
    assert node.attrs["axes"] == axes
