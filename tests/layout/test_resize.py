"""Resize of height and width in channels last: one node of ours where the kernel has the mode,
else the standard op or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from onnxbolt.ops.resize.pattern import sizes_of
from tests.layout.test_layout import attribute, layout_changes
from tests.support import Net, assert_same, fused, ops, run


def _between(*factors: str, net: Net, **attributes: Any) -> onnx.ModelProto:
    return net.model(
        net.conv(net.node("Resize", net.conv("x", 8, 12), "", *factors, **attributes), 12, 8)
    )


@pytest.mark.parametrize("opset", [13, 17, 19])
@pytest.mark.parametrize(
    ("attributes", "name"),
    [
        (
            {
                "mode": "nearest",
                "coordinate_transformation_mode": "asymmetric",
                "nearest_mode": "floor",
            },
            "nearest_asymmetric_floor",
        ),
        ({}, "nearest_half_pixel_round_prefer_floor"),
        ({"mode": "linear"}, "linear_half_pixel"),
        (
            {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
            "linear_align_corners",
        ),
        (
            {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
            "linear_pytorch_half_pixel",
        ),
        ({"mode": "cubic"}, "cubic_half_pixel"),
        (
            {
                "mode": "cubic",
                "coordinate_transformation_mode": "align_corners",
                "cubic_coeff_a": -0.5,
            },
            "cubic_align_corners",
        ),
        (
            {"mode": "cubic", "coordinate_transformation_mode": "asymmetric", "exclude_outside": 1},
            "cubic_asymmetric",
        ),
        (
            {"mode": "cubic", "coordinate_transformation_mode": "pytorch_half_pixel"},
            "cubic_pytorch_half_pixel",
        ),
    ],
)
@pytest.mark.parametrize("scales", [(2.0, 2.0), (1.5, 0.7)])
def test_scales(
    attributes: dict[str, str], name: str, scales: tuple[float, float], opset: int
) -> None:
    net = Net({"x": (2, 8, 6, 7)}, opset=opset)
    optimized = assert_same(_between(net.const([1, 1, *scales]), net=net, **attributes))
    assert layout_changes(optimized) == 2
    assert f"Resize_nhwc_{name}_scales_f32" in ops(optimized)


def test_sizes() -> None:
    net = Net({"x": (2, 8, 6, 7)})
    optimized = assert_same(
        _between("", net.const([2, 12, 9, 21], np.int64), net=net, mode="linear")
    )
    node = next(
        node
        for node in optimized.graph.node
        if node.op_type == "Resize_nhwc_linear_half_pixel_sizes_f32"
    )
    assert attribute(node, "sizes") == [9, 21]
    assert attribute(node, "sampling") == [1, 0, 0]


def test_symbolic_batch_and_image() -> None:
    net = Net({"x": ("N", 8, "H", "W")})
    model = _between(net.const([1, 1, 2, 2]), net=net, mode="linear")
    assert layout_changes(assert_same(model)) == 2


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_padded_channels_and_other_types(precision: str) -> None:
    net = Net({"x": (1, 8, 6, 6)})
    y = net.node(
        "Resize", net.node("Relu", net.conv("x", 8, 13)), "", net.const([1, 1, 2, 2]), mode="linear"
    )
    assert_same(net.model(net.conv(y, 13, 8)), limit=4e-2, precision=precision)


@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"},
        {"mode": "linear", "antialias": 1},
        {"mode": "cubic", "coordinate_transformation_mode": "half_pixel_symmetric"},
        {"mode": "cubic", "antialias": 1},
    ],
)
def test_resizings_without_a_kernel_stay_in_nchw(attributes: dict[str, Any]) -> None:
    net = Net({"x": (1, 8, 6, 6)}, opset=19)
    optimized = assert_same(_between(net.const([1, 1, 2, 2]), net=net, **attributes))
    assert layout_changes(optimized) == 4
    assert "Resize" in ops(optimized)


def test_another_number_of_channels_is_no_resizing_of_ours() -> None:
    net = Net({"x": (1, 8, 6, 6)})
    y = net.node("Resize", net.conv("x", 8, 8), "", net.const([1, 2, 1, 1]), mode="nearest")
    assert layout_changes(assert_same(net.model(net.conv(y, 16, 8)))) == 4


def test_sizes_that_only_inference_knows() -> None:
    net = Net({"x": (1, 8, 6, 6), "like": (1, 3, 12, 12)})
    sizes = net.node(
        "Concat",
        net.const([1, 12], np.int64),
        net.node(
            "Slice", net.node("Shape", "like"), net.const([2], np.int64), net.const([4], np.int64)
        ),
        axis=0,
    )
    assert layout_changes(assert_same(_between("", sizes, net=net, mode="linear"))) == 2


@pytest.mark.parametrize(("batch", "expected"), [("N", [12, 12]), (None, None)])
def test_sizes_serve_where_the_images_are_known_to_stay(
    batch: str | None, expected: list[int] | None
) -> None:
    x, y = (
        gs.Variable(name, np.float32, [batch, 8, size, size])
        for name, size in (("x", 6), ("y", 12))
    )
    nothing, sizes = gs.Variable.empty(), gs.Variable("sizes", np.int64, [4])
    assert sizes_of(gs.Node("Resize", inputs=[x, nothing, nothing, sizes], outputs=[y])) == expected


@pytest.mark.parametrize(("mode", "follows"), [("nearest", True), ("linear", False)])
def test_computed_sizes(mode: str, follows: bool) -> None:
    net = Net({"x": (2, 8, "H", "W")})
    y = net.conv("x", 8, 12)
    batch, sizes = (
        net.node("Slice", net.node("Shape", t), *(net.const([i], np.int64) for i in place))
        for t, place in ((y, (0, 2)), (net.conv("x", 8, 8, 3), (2, 4)))
    )
    resized = net.node("Resize", y, "", "", net.node("Concat", batch, sizes, axis=0), mode=mode)
    optimized = fused(model := net.model(net.conv(resized, 12, 8)))
    resize = next(node for node in optimized.graph.node if node.op_type == "Resize")
    assert resize.input[0].endswith("__nhwc") is follows
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 8, 9, 11)).astype(np.float32)}
    np.testing.assert_allclose(run(optimized, feeds)[0], run(model, feeds)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [16, 13])
@pytest.mark.parametrize(
    "part", [{}, {"start": 1}, {"start": 2, "end": 4}, {"end": -1}, {"start": -2}]
)
def test_sizes_are_read_from_channels_last(channels: int, part: dict[str, int]) -> None:
    """No image is converted to NCHW for its Shape; padded channels do not count."""
    net = Net({"x": ("n", channels, "h", "w")})
    image = net.node("Relu", net.conv("x", channels, channels, 3, pads=[1, 1, 1, 1]))
    sizes = net.node("Shape", image, **part)
    model = net.model(sizes, net.conv(image, channels, 8, 3))
    written = fused(model, "fp16")
    (shape,) = (node for node in written.graph.node if node.op_type == "Shape")
    (own,) = (node for node in written.graph.node if shape.input[0] in node.output)
    assert own.domain
    assert len(own.output) == 1
    feeds = {"x": np.ones((2, channels, 9, 7), np.float32)}
    np.testing.assert_array_equal(run(written, feeds)[0], run(model, feeds)[0])
