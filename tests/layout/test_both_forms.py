"""Results that are read in both forms: convolutions that write both, and what the fused node
says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest

from onnxbolt.verify import verify
from tests.support import Net, assert_same, fused, ops

SAME: dict[str, Any] = {"pads": [1] * 4}
LIMIT = {"fp16": 1e-2, "bf16": 5e-2, "keep": 2e-3}
Model = tuple[Net, tuple[str, ...]]


def _relu(net: Net, x: str, c: int, k: int) -> str:
    return net.node("Relu", net.conv(x, c, k, 3, **SAME))


def also_an_output(channels: int) -> Model:
    net = Net({"x": (2, 16, 20, 20)})
    y = _relu(net, "x", 16, channels)
    return net, (y, net.node("GlobalAveragePool", _relu(net, y, channels, 8)))


def also_read_by_a_node_that_stays(channels: int) -> Model:
    net = Net({"x": (2, 16, 20, 20)})
    y = _relu(net, "x", 16, channels)
    return net, (
        net.node("LRN", y, size=3),
        net.node("GlobalAveragePool", _relu(net, y, channels, 8)),
    )


def with_a_residual(channels: int) -> Model:
    net = Net({"x": (2, channels, 20, 20)})
    x = _relu(net, "x", channels, channels)
    y = net.node("Relu", net.node("Add", net.conv(x, channels, channels, 3, **SAME), x))
    return net, (y, net.node("GlobalAveragePool", _relu(net, y, channels, 8)))


def one_dimensional(channels: int) -> Model:
    net = Net({"x": (2, 16, 400)})
    y = net.node("Relu", net.node("Conv", "x", net.normal(channels, 16, 3), net.normal(channels)))
    return net, (y, net.node("Conv", y, net.normal(8, channels, 3), net.normal(8)))


def backbone() -> Model:
    """Three feature maps of a detector, which are outputs and go on."""
    net = Net({"x": (2, 3, 64, 64)})
    x, features = net.node("Relu", net.conv("x", 3, 16, 3, strides=[2, 2], **SAME)), []
    for c, k in ((16, 32), (32, 21), (21, 64)):
        x = net.node("Relu", net.conv(_relu(net, x, c, c), c, k, 3, strides=[2, 2], **SAME))
        features.append(x)
    return net, (*features, net.node("GlobalAveragePool", _relu(net, x, 64, 8)))


def writers(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [
        node
        for node in model.graph.node
        if "_Store_" in node.op_type and node.op_type.endswith("_to_nchw")
    ]


@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
@pytest.mark.parametrize("channels", [4, 20, 24])
@pytest.mark.parametrize(
    "make",
    [also_an_output, also_read_by_a_node_that_stays, with_a_residual, one_dimensional],
    ids=lambda make: make.__name__,
)
def test_one_kernel_writes_both(
    make: Callable[[int], Model], channels: int, precision: str
) -> None:
    net, outputs = make(channels)
    optimized = assert_same(net.model(*outputs), LIMIT[precision], precision, arch=90)
    assert writers(optimized)
    assert not any(op.startswith("NhwcToNchw") for op in ops(optimized))


def test_the_feature_maps_of_a_backbone_need_no_change_of_layout() -> None:
    net, outputs = backbone()
    optimized = assert_same(net.model(*outputs), LIMIT["fp16"], "fp16", arch=90)
    assert [node.output[0] for node in writers(optimized)] == list(outputs[:3])
    assert not any(
        op in ("Cast", "Transpose", "Slice") or op.startswith("NhwcToNchw") for op in ops(optimized)
    )


def test_both_outputs_are_verified_against_the_original() -> None:
    net, outputs = also_an_output(21)
    model = net.model(*outputs)
    optimized = fused(model, "fp16", arch=90)
    (node,) = writers(optimized)
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert (attributes["tensor"], attributes["layout"]) == (outputs[0].encode(), b"")
    assert (attributes["stored_tensor"], attributes["stored_layout"]) == (
        outputs[0].encode(),
        b"NHWC",
    )
    assert attributes["stored_channel_map"] == [*range(21), -1, -1, -1]
    assert attributes["padding"] == 3
    result = verify(model, optimized)
    for level in ("segment", "node"):
        rows = [row for row in result.at(level) if row.node == node.name]
        assert len(rows) == 2
        assert all(row.passed for row in rows), rows


def test_where_one_pixel_is_a_channel_or_nobody_reads_rows_there_is_one_form() -> None:
    net = Net({"x": (2, 16, 3, 3)})
    y = net.conv("x", 16, 21, 3)
    assert not writers(fused(net.model(y, net.conv(y, 21, 8)), "fp16", arch=90))
    net = Net({"x": (2, 16, 9, 9)})
    assert not writers(fused(net.model(net.conv("x", 16, 21)), "fp16", arch=90))


def test_older_architectures_change_the_layout_and_keep_the_padding() -> None:
    net, outputs = also_an_output(21)
    assert "NhwcToNchw_CastF32_f16_pad3" in ops(
        assert_same(net.model(*outputs), LIMIT["fp16"], "fp16", arch=80)
    )
