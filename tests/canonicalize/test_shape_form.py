from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxbolt.canonicalize import shape_form
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from tests.support import Net, fused, ops, run


def pyramid(
    *, both: bool = False, used: tuple[int, ...] = (2, 3), stride: int = 1
) -> onnx.ModelProto:
    """A lateral convolution whose sizes tell how large the coarser image becomes; with `both` a
    second node reads its result."""
    net = Net({"x": ("n", 8, "h", "w"), "coarse": ("n", 16, 4, 4)})
    image = net.node("Relu", "x")
    lateral = net.conv(image, 8, 16, strides=[stride, stride])
    sizes = net.node("Gather", net.node("Shape", lateral), net.const(used, np.int64))
    kept = net.node("Shape", "coarse", start=0, end=4 - len(used))
    larger = net.node(
        "Resize", "coarse", "", "", net.node("Concat", kept, sizes, axis=0), mode="nearest"
    )
    y = net.node("Sigmoid", net.node("Add", lateral, larger))
    return net.model(y, image, *([net.node("Abs", lateral)] if both else []))


def moved(model: onnx.ModelProto) -> int:
    graph = import_model(model)
    infer(graph)
    return shape_form.run(graph)


def test_a_pyramids_sum_joins_the_convolution() -> None:
    model = pyramid()
    written = fused(model)
    assert not {"Add", "Sigmoid"} & set(ops(written))
    for size in (4, 7):
        rng = np.random.default_rng(0)
        shapes = {"x": (2, 8, size, 5), "coarse": (2, 16, 4, 4)}
        feeds = {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}
        for got, expected in zip(run(written, feeds), run(model, feeds), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "count"),
    [
        pytest.param(pyramid(), 1, id="height and width"),
        pytest.param(pyramid(both=True), 0, id="stored anyway"),
        pytest.param(pyramid(used=(1, 2, 3)), 0, id="other channels"),
        pytest.param(pyramid(stride=2), 0, id="smaller"),
    ],
)
def test_sizes_move_where_they_are_equal(model: onnx.ModelProto, count: int) -> None:
    assert moved(model) == count


def test_an_activation_written_out_is_no_reader_that_stores() -> None:
    """SiLU as Sigmoid and Mul reads the convolution's result twice, and the epilogue has it."""
    net = Net({"x": ("n", 16, "h", "w")})
    wide = net.conv("x", 16, 32, 3, pads=[1] * 4, strides=[2, 2])
    y = net.conv(net.node("Mul", wide, net.node("Sigmoid", wide)), 32, 16, 3, pads=[1] * 4)
    sizes = net.node("Gather", net.node("Shape", y), net.const([2, 3], np.int64))
    divided = net.node("Concat", net.const([-1, 2, 8], np.int64), sizes, axis=0)
    assert not {"Mul", "Sigmoid"} & set(ops(fused(net.model(net.node("Reshape", y, divided)))))
