"""Poolings of lines and volumes: which ones kernels compute, and that their function bodies answer
alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.support import Net, assert_same, ops

LINES = (2, 16, 40)
SIZES = (2, 16, 5, 6, 7)


def _conv(net: Net, x: str, k: int, axes: int = 3) -> str:
    return net.node("Conv", x, net.normal(k, 16, *(1,) * axes, scale=0.1), net.normal(k))


def _model(
    op: str, shape: tuple[int | str, ...] = SIZES, opset: int = 17, **attributes: Any
) -> onnx.ModelProto:
    """A pooling between convolutions of lines or volumes."""
    net, axes = Net({"x": shape}, opset=opset), len(shape) - 2
    y = net.node(op, net.node("Relu", _conv(net, "x", 16, axes)), **attributes)
    return net.model(_conv(net, y, 8, axes))


OF_IMAGES = [
    ("MaxPool", {"kernel_shape": [1, 2, 2], "strides": [1, 2, 2]}),
    ("MaxPool", {"kernel_shape": [1, 3, 2], "pads": [0, 1, 0, 0, 1, 1], "dilations": [1, 2, 1]}),
    ("MaxPool", {"kernel_shape": [3, 1, 1], "strides": [2, 1, 1], "pads": [1, 0, 0, 1, 0, 0]}),
    ("MaxPool", {"kernel_shape": [1, 3, 3], "strides": [1, 2, 2], "ceil_mode": 1}),
    ("AveragePool", {"kernel_shape": [1, 3, 3], "pads": [0, 1, 1, 0, 1, 1]}),
    (
        "AveragePool",
        {"kernel_shape": [2, 1, 1], "pads": [1, 0, 0, 0, 0, 0], "count_include_pad": 1},
    ),
    ("GlobalAveragePool", {}),
    ("ReduceMean", {"axes": [-1, 2, 3], "keepdims": 1}),
]
OF_LINES = [
    ("MaxPool", {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    ("MaxPool", {"kernel_shape": [2], "dilations": [3]}),
    ("MaxPool", {"kernel_shape": [3], "strides": [3], "ceil_mode": 1}),
    ("AveragePool", {"kernel_shape": [4], "strides": [4], "pads": [1, 0]}),
    ("AveragePool", {"kernel_shape": [3], "pads": [1, 1], "count_include_pad": 1}),
    ("GlobalAveragePool", {}),
    ("GlobalMaxPool", {}),
    ("ReduceMean", {"axes": [-1], "keepdims": 1}),
]
OF_VOLUMES = [
    ("MaxPool", {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
    ("MaxPool", {"kernel_shape": [3, 3, 3], "strides": [2] * 3, "pads": [1] * 6, "ceil_mode": 1}),
    ("MaxPool", {"kernel_shape": [2, 1, 2], "dilations": [3, 1, 2]}),
    ("AveragePool", {"kernel_shape": [3, 2, 3], "pads": [1, 0, 1, 1, 1, 0]}),
    ("AveragePool", {"kernel_shape": [3, 3, 3], "pads": [1] * 6, "count_include_pad": 1}),
]


@pytest.mark.parametrize(("op", "attributes"), OF_IMAGES)
def test_windows_of_images_have_kernels(op: str, attributes: dict[str, Any]) -> None:
    found = ops(assert_same(_model(op, **attributes), arch=80))
    name = "GlobalAveragePool" if op == "ReduceMean" else op
    assert f"{name}_nhwc_f32_3d" in found
    assert not {"Transpose", op} & {*found}


@pytest.mark.parametrize(("op", "attributes"), OF_LINES)
def test_lines(op: str, attributes: dict[str, Any]) -> None:
    name = {"ReduceMean": "GlobalAveragePool", "GlobalMaxPool": "MaxPool"}.get(op, op)
    assert f"{name}_nhwc_f32_1d" in ops(assert_same(_model(op, LINES, **attributes)))
    half = ops(assert_same(_model(op, LINES, **attributes), 4e-2, "fp16"))
    assert f"{name}_nhwc_f16_1d" in half
    assert not {"Transpose", op} & {*half}


@pytest.mark.parametrize("shape", [LINES, SIZES])
@pytest.mark.parametrize("kept", [0, 1])
def test_means_in_front_of_a_classifier_change_no_layout(shape: tuple[int, ...], kept: int) -> None:
    net, axes = Net({"x": shape}), len(shape) - 2
    y = _conv(net, "x", 16, axes)
    y = net.node("Mul", y, net.node("Sigmoid", y))
    y = net.node("ReduceMean", y, axes=[*range(2, 2 + axes)], keepdims=kept)
    y = net.node("Flatten", y) if kept else y
    found = ops(assert_same(net.model(net.linear(y, 16, 8))))
    assert f"GlobalAveragePool_nhwc_f32_{axes}d" in found
    assert not any(name.startswith("NhwcToNchw") for name in found)


@pytest.mark.parametrize(("op", "attributes"), OF_VOLUMES)
def test_windows_of_volumes(op: str, attributes: dict[str, Any]) -> None:
    assert f"{op}_nhwc_f32_3d" in ops(assert_same(_model(op, **attributes)))
    half = assert_same(_model(op, **attributes), 4e-2, "fp16")
    assert f"{op}_nhwc_f16_3d" in ops(half)
    assert not {"Transpose", op} & {*ops(half)}


@pytest.mark.parametrize("opset", [13, 18, 22])
@pytest.mark.parametrize("op", ["MaxPool", "GlobalAveragePool"])
@pytest.mark.parametrize("axes", [1, 3])
def test_open_sizes(op: str, opset: int, axes: int) -> None:
    window = {"kernel_shape": [1, 2, 2][-axes:], "strides": [1, 2, 2][-axes:]}
    sizes: tuple[int | str, ...] = ("n", 16, *("d", "h", "w")[-axes:])
    model = _model(op, sizes, opset, **(window if op == "MaxPool" else {}))
    assert f"{op}_nhwc_f32_{axes}d" in ops(assert_same(model))


def test_means_over_some_axes_are_no_poolings() -> None:
    for axes in ([2, 3], [3, 4], [2, 3, 4, 1]):
        found = ops(assert_same(_between(axes)))
        assert "ReduceMean" in found
        assert not any(name.startswith("Global") for name in found)


def _between(axes: list[int]) -> onnx.ModelProto:
    net = Net({"x": SIZES})
    y = net.node("Relu", _conv(net, "x", 16))
    mean = net.node("ReduceMean", y, axes=axes, keepdims=1)
    return net.model(_conv(net, net.node("Add", y, mean), 8))


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("precision", ["keep", "fp16"])
def test_means_that_no_kernel_takes_stay_what_they_were(opset: int, precision: str) -> None:
    """Nothing of the graph is stored with its channels last."""
    net = Net({"x": (2, 4, 9, 9)}, opset=opset)
    y = net.node("Softmax", "x", axis=1)
    if opset < 18:
        y = net.node("ReduceMean", y, axes=[2, 3], keepdims=0)
    else:
        y = net.node("ReduceMean", y, net.const([2, 3], np.int64), keepdims=0)
    found = ops(assert_same(net.model(net.linear(y, 4, 8)), 1e-2, precision))
    assert "ReduceMean" in found
    assert not {"Flatten", "GlobalAveragePool"} & {*found}
