"""Resize of height and width in channels last: one node of ours where the kernel has the mode,
else the standard op or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from onnxbolt.ops.resize.pattern import sizes_of
from onnxbolt.verify import verify
from onnxbolt.verify.session import CPU
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


@pytest.mark.parametrize("scales", [(0.5, 2.0), (0.5, 0.5)])
def test_cubic_bodies_run_behind_transposes(scales: tuple[float, float]) -> None:
    """ONNX Runtime's cubic kernel for NHWC only enlarges. Verification runs the node alone, between
    Transposes that would meet each other behind a Resize in NHWC."""
    net = Net({"x": ("N", 5, 6, 8)})
    x = net.conv("x", 5, 8)
    y = net.node("Resize", x, "", net.const([1, 1, *scales]), mode="cubic")
    model = net.model(net.node("Relu", y), net.conv(y, 8, 5))
    optimized = assert_same(model)
    assert "Resize_nhwc_cubic_half_pixel_scales_f32" in ops(optimized)
    assert verify(model, optimized, providers=[CPU]).passed


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


def _pyramid(net: Net, laterals: str = "conv", mode: str = "nearest") -> onnx.ModelProto:
    """An image and its coarser one, which is resized to the image's size and added to it."""
    fine = net.node("Relu", net.conv("x", 8, 12, 3, pads=[1, 1, 1, 1]))
    coarse = net.conv(fine, 12, 16, 3, strides=[2, 2], pads=[1, 1, 1, 1])
    batch, sizes = (
        net.node("Slice", net.node("Shape", t), *(net.const([i], np.int64) for i in place))
        for t, place in ((coarse, (0, 2)), (fine, (2, 4)))
    )
    to = net.node("Concat", batch, sizes, axis=0)
    resized = net.node("Resize", coarse, "", "", to, mode=mode)
    lateral = net.conv(fine, 12, 16)
    if laterals == "pool":
        lateral = net.node("MaxPool", lateral, kernel_shape=[1, 1])
    return net.model(net.conv(net.node("Add", lateral, resized), 16, 8), coarse)


def _run_both(model: onnx.ModelProto, optimized: onnx.ModelProto, *shape: int) -> None:
    feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    for got, expected in zip(run(optimized, feeds), run(model, feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_the_image_that_has_the_sizes_gives_them(mode: str) -> None:
    """No node computes sizes then: these run on the host, one after the other."""
    model = _pyramid(Net({"x": ("N", 8, "H", "W")}), mode=mode)
    optimized = fused(model)
    (node,) = (n for n in optimized.graph.node if n.op_type.startswith("Resize"))
    assert node.op_type.endswith("_like_f32")
    assert not {"Shape", "Gather", "Concat", "Slice"} & set(ops(optimized))
    assert layout_changes(optimized) == 3  # one output more
    for h, w in ((9, 11), (8, 8), (1, 5)):
        _run_both(model, optimized, 2, 8, h, w)


def test_sizes_that_no_image_has_are_an_input() -> None:
    net = Net({"x": ("N", 8, "H", "W"), "more": (2,)}, types={"more": onnx.TensorProto.INT64})
    y = net.conv("x", 8, 12)
    batch = net.node("Slice", net.node("Shape", y), *(net.const([i], np.int64) for i in (0, 2)))
    to = net.node("Concat", batch, "more", axis=0)
    model = net.model(net.conv(net.node("Resize", y, "", "", to, mode="linear"), 12, 8))
    optimized = fused(model)
    (node,) = (n for n in optimized.graph.node if n.op_type.startswith("Resize"))
    assert node.op_type == "Resize_nhwc_linear_half_pixel_given_f32"
    assert layout_changes(optimized) == 2
    feeds = {"x": np.ones((1, 8, 5, 6), np.float32), "more": np.array([7, 3])}
    feeds["x"] += np.random.default_rng(0).standard_normal(feeds["x"].shape).astype(np.float32)
    for got, expected in zip(run(optimized, feeds), run(model, feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_channels_that_may_change_are_no_resizing_of_ours() -> None:
    net = Net({"x": (1, 8, "H", "W"), "to": (4,)}, types={"to": onnx.TensorProto.INT64})
    model = net.model(net.node("Resize", net.conv("x", 8, 12), "", "", "to", mode="nearest"))
    assert "Resize" in ops(fused(model))


@pytest.mark.parametrize("precision", ["keep", "fp16", "bf16"])
def test_a_sum_with_what_was_resized_is_its_epilogue(precision: str) -> None:
    model = _pyramid(Net({"x": ("N", 8, "H", "W")}), "pool")
    optimized = fused(model, precision)
    (node,) = (n for n in optimized.graph.node if n.op_type.startswith("Resize"))
    kind = {"keep": "f32", "fp16": "f16", "bf16": "bf16"}[precision]
    assert node.op_type == f"Resize_nhwc_nearest_half_pixel_round_prefer_floor_like_Add_{kind}"
    assert attribute(node, "source_nodes") == [b"resize8", b"add11"]
    assert "Add" not in ops(optimized)
    if precision == "keep":
        for h, w in ((9, 11), (1, 5)):
            _run_both(model, optimized, 2, 8, h, w)


def test_images_whose_sizes_may_differ_are_added_as_onnx_broadcasts() -> None:
    """Twice the size of half an image is not known to be its size, as in text detectors; one row
    of pixels serves two."""
    net = Net({"x": ("N", 8, "H", "W")})
    fine = net.node("MaxPool", net.conv("x", 8, 16), kernel_shape=[1, 1])
    coarse = net.conv(fine, 16, 16, 3, strides=[2, 2], pads=[1, 1, 1, 1])
    resized = net.node("Resize", coarse, "", net.const([1, 1, 2, 2]), mode="nearest")
    total = net.node("Relu", net.node("Add", fine, resized))
    model = net.model(net.conv(total, 16, 8))
    optimized = fused(model)
    (node,) = (n for n in optimized.graph.node if n.op_type.startswith("Resize"))
    assert node.op_type.endswith("_scales_Add_Relu_f32")
    for h, w in ((8, 12), (1, 12), (1, 1)):
        _run_both(model, optimized, 2, 8, h, w)


def test_a_value_with_other_readers_ends_the_epilogue() -> None:
    net = Net({"x": (1, 8, 6, 6)})
    resized = net.node("Resize", net.conv("x", 8, 16), "", net.const([1, 1, 2, 2]), mode="linear")
    pooled = net.node("MaxPool", resized, kernel_shape=[1, 1])
    total = net.node("Add", net.node("Sigmoid", resized), pooled)
    optimized = assert_same(net.model(net.conv(total, 16, 8)))
    assert "Resize_nhwc_linear_half_pixel_scales_f32" in ops(optimized)


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
