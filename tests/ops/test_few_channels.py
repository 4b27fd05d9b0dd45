"""Transposed convolutions of few channels as a convolution and a DepthToSpace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from onnxbolt.domains import CONTRIB
from onnxbolt.verify import verify
from onnxbolt.verify.session import CPU
from tests.support import Net, fused, ops, prepare, run


def _head(
    kernel: int,
    stride: int,
    channels: int = 1,
    sizes: tuple[int | str, int | str] = ("H", "W"),
    **attributes: Any,
) -> onnx.ModelProto:
    """The end of a text detector, whose map has a channel or few."""
    net = Net({"x": ("N", 8, *sizes)})
    y = net.node("Relu", net.conv("x", 8, 24, 3, pads=[1, 1, 1, 1]))
    weight = net.normal(24, channels, kernel, kernel, scale=0.3)
    attributes = {"strides": [stride] * 2, "pads": [0] * 4, **attributes}
    y = net.node("ConvTranspose", y, weight, net.normal(channels), **attributes)
    return net.model(net.node("Sigmoid", y))


def test_its_image_may_follow_an_operator_of_unknown_shape() -> None:
    """As the head of floats in a model of onnxruntime.quantization, which says the image's
    shape."""
    net = Net({"x": (2, 24, 8, 8)})
    numbers = net.const(0.05), net.const(0, np.int8)
    codes = net.node("QuantizeLinear", "x", *numbers)
    codes = net.node("QLinearLeakyRelu", codes, *numbers, *numbers, domain=CONTRIB)
    image = net.node("DequantizeLinear", codes, *numbers)
    y = net.node("ConvTranspose", image, net.normal(24, 4, 2, 2, scale=0.3), strides=[2, 2])
    result = net.node("QuantizeLinear", y, *numbers)
    model, typed = net.model(result), onnx.helper.make_tensor_value_info
    model.graph.output[0].CopyFrom(typed(result, onnx.TensorProto.INT8, (2, 4, 16, 16)))
    model.graph.value_info.extend(
        typed(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in ((image, (2, 24, 8, 8)), (y, (2, 4, 16, 16)))
    )
    optimized = fused(model)
    assert "ConvTranspose" not in ops(optimized)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 24, 8, 8)).astype(np.float32)}
    (expected,), (got,) = run(model, feeds), run(optimized, feeds)
    assert np.abs(got.astype(int) - expected).max() <= 1


def _same(model: onnx.ModelProto, optimized: onnx.ModelProto, limit: float) -> None:
    for h, w in ((7, 9), (3, 2)):
        random = np.random.default_rng(0)
        feeds = {"x": random.standard_normal((2, 8, h, w)).astype(np.float32)}
        (expected,), (got,) = run(model, feeds), run(optimized, feeds)
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, atol=limit)


@pytest.mark.parametrize(
    ("kernel", "stride", "attributes"),
    [
        (2, 2, {}),
        (4, 2, {"pads": [1, 1, 1, 1]}),
        (3, 3, {}),
        (3, 2, {"pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        (5, 2, {"pads": [2, 2, 2, 2], "output_padding": [1, 1]}),
        (8, 4, {"pads": [2, 2, 2, 2]}),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_it_is_a_convolution_of_all_phases(
    kernel: int, stride: int, attributes: dict[str, Any], channels: int
) -> None:
    model = _head(kernel, stride, channels, **attributes)
    optimized = fused(model)
    assert "ConvTranspose" not in ops(optimized)
    kinds = {op.removesuffix("_sliced") for op in ops(optimized)}
    assert "DepthToSpace_nhwc_dcr_Sigmoid_f32" in kinds
    _same(model, optimized, 1e-5)


def test_no_change_of_layout_is_left_behind_one_channel() -> None:
    optimized = fused(_head(2, 2), "fp16")
    *_, shuffle, squeeze, unsqueeze = ops(optimized)
    assert shuffle == "DepthToSpace_nhwc_dcr_Sigmoid_CastF32_f16_sliced"
    assert (squeeze, unsqueeze) == ("Squeeze", "Unsqueeze")
    _same(_head(2, 2), optimized, 5e-3)


@pytest.mark.parametrize(
    ("kernel", "stride", "attributes"),
    [
        (3, 2, {"pads": [1, 1, 1, 1]}),  # an odd number of pixels
        (4, 2, {"pads": [0, 1, 1, 1]}),
        (2, 2, {"pads": [0, 2, 2, 0]}),  # pixels of the convolution's would be cut
        (2, 2, {"strides": [2, 1]}),
        (3, 2, {"dilations": [2, 2], "pads": [1, 1, 1, 1]}),
    ],
)
def test_cut_phases_stay_as_they_are(kernel: int, stride: int, attributes: dict[str, Any]) -> None:
    model = _head(kernel, stride, **attributes)
    assert "ConvTranspose" in [node.op for node in prepare(model).nodes]
    _same(model, fused(model), 1e-5)


@pytest.mark.parametrize("sizes", [(7, 9), (7, "W")])
def test_sizes_may_be_fixed(sizes: tuple[int | str, int | str]) -> None:
    model = _head(4, 2, sizes=sizes, pads=[1, 1, 1, 1])
    kinds = ops(fused(model, "fp16"))
    assert not {"Conv", "ConvTranspose"} & set(kinds)
    assert any(kind.startswith("DepthToSpace_nhwc_dcr_Sigmoid") for kind in kinds)


@pytest.mark.parametrize("channels", [8, 12])
def test_whole_accesses_stay(channels: int) -> None:
    assert "ConvTranspose" in [node.op for node in prepare(_head(2, 2, channels)).nodes]


def test_verification_compares_what_follows() -> None:
    model = _head(4, 2, pads=[1, 1, 1, 1])
    result = verify(model, fused(model, "fp16"), providers=(CPU,))
    assert result.passed
    judged: Sequence[str] = [row.name for row in result.rows if row.level == "segment"]
    assert "sigmoid3" in judged
