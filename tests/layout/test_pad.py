"""Pads whose sizes are computed, as those of a U-Net that takes images of any size."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.layout.test_layout import layout_changes
from tests.support import Net, fused, run


def _less(net: Net, first: str, second: str, axis: int) -> str:
    """By how much an axis of the first image is longer, as a list."""
    sizes = [
        net.node("Gather", net.node("Shape", image), net.const(axis, np.int64))
        for image in (first, second)
    ]
    return net.node("Unsqueeze", net.node("Sub", *sizes), net.const([0], np.int64))


def _in_order(net: Net, rows: str, columns: str) -> str:
    """Pads of the lower and the right border in ONNX's order."""
    nothing = net.const([0, 0], np.int64)
    zero = net.const([0], np.int64)
    return net.node("Concat", nothing, zero, zero, nothing, rows, columns, axis=0)


def _as_torch_has_them(net: Net, rows: str, columns: str) -> str:
    """The same from pairs (begin, end), the last axis first, which an exporter turns round."""
    zero = net.const([0], np.int64)
    count = net.node("Mul", net.node("Shape", net.node("Shape", "x")), net.const([1], np.int64))
    zeros = numpy_helper.from_array(np.zeros(1, np.int64))
    others = net.node("ConstantOfShape", count, value=zeros)
    pairs = net.node("Concat", zero, columns, zero, rows, others, axis=0)
    pairs = net.node("Reshape", pairs, net.const([-1, 2], np.int64))
    ends = (net.const([value], np.int64) for value in (-1, -(2**63) + 1, 0, -1))
    turned = net.node("Transpose", net.node("Slice", pairs, *ends), perm=[1, 0])
    flat = net.node("Reshape", turned, net.const([-1], np.int64))
    return net.node("Cast", flat, to=onnx.TensorProto.INT64)


def _unet(form: str) -> onnx.ModelProto:
    types: dict[str, int] = {"pads": onnx.TensorProto.INT64} if form == "given" else {}
    net = Net({"x": (1, 16, "h", "w"), **({"pads": (8,)} if types else {})}, types=types)
    whole = net.node("Relu", net.conv("x", 16, 16, 3, pads=[1] * 4))
    half = net.node("MaxPool", whole, kernel_shape=[2, 2], strides=[2, 2])
    larger = net.node("ConvTranspose", half, net.normal(16, 16, 2, 2, scale=0.2), strides=[2, 2])
    rows, columns = (_less(net, whole, larger, axis) for axis in (2, 3))
    ordered = _as_torch_has_them if form == "torch" else _in_order
    pads = "pads" if form == "given" else ordered(net, rows, columns)
    y = net.node("Concat", whole, net.node("Pad", larger, pads), axis=1)
    return net.model(net.conv(y, 32, 8, 3, pads=[1] * 4))


@pytest.mark.parametrize(
    ("form", "changes"),
    [
        pytest.param("onnx", 1, id="of the input alone"),
        pytest.param("torch", 2, id="and one of the pads"),
        pytest.param("given", 3, id="channels that may be padded"),
    ],
)
def test_computed_pads_are_those_of_nhwc(form: str, changes: int) -> None:
    model = _unet(form)
    optimized = fused(model, arch=90)
    assert layout_changes(optimized) == changes
    for height, width in ((7, 10), (8, 9)):
        rng = np.random.default_rng(0)
        feeds = {
            "x": rng.standard_normal((1, 16, height, width)).astype(np.float32),
            "pads": np.array([0] * 6 + [height % 2, width % 2]),
        }
        (expected,), (got,) = run(model, feeds), run(optimized, feeds)
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
