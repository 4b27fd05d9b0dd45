from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxbolt.canonicalize import conv_form, conv_transpose_form
from onnxbolt.canonicalize.cut_form import run
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from tests.canonicalize.compare import applied, model, random, unchanged
from tests.support import Net, fused, ops
from tests.support import run as answers

CAUSAL = {"dilations": [2], "pads": [4, 4], "kernel_shape": [3], "strides": [1], "group": 1}
STEPS = CAUSAL | {"strides": [2], "pads": [5, 3]}
LONGER = {
    "pads": [1, 0],
    "strides": [2],
    "kernel_shape": [4],
    "dilations": [1],
    "group": 1,
    "output_padding": [0],
}
FOREVER = 2**63 - 1


def cut(
    op: str, attributes: dict[str, Any], bounds: tuple[int, int], size: int | str = "t", by: int = 1
) -> onnx.ModelProto:
    """A convolution of a line, and a Slice of its result."""
    weight = random(2, 3, attributes["kernel_shape"][0])
    constants = {
        "w": weight if op == "ConvTranspose" else weight.swapaxes(0, 1).copy(),
        "starts": np.array([bounds[0]]),
        "ends": np.array([bounds[1]]),
        "axes": np.array([-1]),
        "steps": np.array([by]),
    }
    nodes = [(op, "x w", "h", attributes), ("Slice", "h starts ends axes steps", "y")]
    return model(nodes, {"x": ("n", 2, size)}, {"y": ("n", 3, "u")}, constants)


@pytest.mark.parametrize("size", ["t", 13])
@pytest.mark.parametrize(
    ("op", "attributes", "bounds", "pads"),
    [
        ("Conv", CAUSAL, (0, -4), [4, 0]),
        ("Conv", CAUSAL, (1, -1), [3, 3]),
        ("Conv", CAUSAL, (4, FOREVER), [0, 4]),
        ("Conv", STEPS, (1, -1), [3, 1]),
        ("ConvTranspose", LONGER, (0, -2), [1, 2]),
        ("ConvTranspose", LONGER, (1, 2**31 - 1), [2, 0]),
    ],
)
def test_cuts_become_pads(
    op: str, attributes: dict[str, Any], bounds: tuple[int, int], pads: list[int], size: int | str
) -> None:
    graph = applied(cut(op, attributes, bounds, size), run, 1)
    assert [node.op for node in graph.nodes] == [op]
    assert graph.nodes[0].attrs["pads"] == pads


@pytest.mark.parametrize(
    ("op", "attributes", "bounds", "by"),
    [
        ("Conv", CAUSAL, (0, -5), 1),
        ("Conv", STEPS, (0, -2), 1),
        ("Conv", CAUSAL, (0, 5), 1),
        ("Conv", CAUSAL, (0, 0), 1),
        ("Conv", CAUSAL, (-3, FOREVER), 1),
        ("Conv", CAUSAL, (0, -4), 2),
        ("ConvTranspose", LONGER, (-1, FOREVER), 1),
        ("ConvTranspose", LONGER | {"auto_pad": "SAME_UPPER"}, (0, -2), 1),
    ],
)
def test_other_slices_stay(
    op: str, attributes: dict[str, Any], bounds: tuple[int, int], by: int
) -> None:
    graph = import_model(cut(op, attributes, bounds, by=by))
    infer(graph)
    assert run(graph) == 0


def computed(others: bool = False) -> onnx.ModelProto:
    """A transposed convolution whose last outputs are cut, by an end that is computed."""
    net = Net({"x": ("n", 16, "t")})
    y = net.node("ConvTranspose", "x", net.normal(16, 16, 4, scale=0.2), strides=[2])
    size = net.node("Gather", net.node("Shape", y), net.const(2, np.int64))
    end = net.node("Unsqueeze", net.node("Sub", size, net.const(2, np.int64)), net.const([0], int))
    cut = net.node("Slice", y, net.const([0], int), end, net.const([2], int), net.const([1], int))
    y = net.node("LeakyRelu", cut, alpha=0.1)
    return net.model(y, *([size] if others else []))


def test_an_end_may_be_computed() -> None:
    given, optimized = computed(), fused(computed())
    assert not {"Slice", "Shape", "LeakyRelu"} & set(ops(optimized))
    for length in (5, 8):
        feeds = {"x": np.random.default_rng(0).standard_normal((2, 16, length)).astype("f")}
        (expected,), (got,) = (answers(each, feeds) for each in (given, optimized))
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_size_that_others_read_stays() -> None:
    graph = import_model(computed(others=True))
    infer(graph)
    assert conv_form.run(graph) + conv_transpose_form.run(graph) == 1
    assert run(graph) == 0


def test_what_others_read_stays() -> None:
    given = cut("Conv", CAUSAL, (0, -4))
    given.graph.node.append(onnx.helper.make_node("Abs", ["h"], ["z"], "node_z"))
    given.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, ("n", 3, "v")))
    unchanged(given, run)
