"""A model's ends: what the first convolution reads, which conversions are one node, and which
Casts and Transposes go."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.support import Net, assert_same, fused, ops

LIMIT = {"fp16": 1e-2, "bf16": 5e-2}


def shape_of(model: onnx.ModelProto, name: str) -> list[int]:
    return next(list(t.dims) for t in model.graph.initializer if t.name == name)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_the_first_convolution_reads_the_input_as_it_is(precision: str) -> None:
    net = Net({"x": (2, 3, 19, 21)})
    y = net.node("Relu", net.conv("x", 3, 16, 7, pads=[3] * 4, strides=[2, 2]))
    y = net.node("Flatten", net.node("GlobalAveragePool", net.conv(y, 16, 8, 3)))
    optimized = assert_same(net.model(net.linear(y, 8, 4)), LIMIT[precision], precision, arch=90)
    short = {"fp16": "f16", "bf16": "bf16"}[precision]
    assert ops(optimized)[0] == f"FusedConv_Bias_Relu_{short}_nchw_f32"
    assert optimized.graph.node[0].input[0] == "x"
    assert shape_of(optimized, optimized.graph.node[0].input[1]) == [16, 7, 7, 3]
    assert not {"Cast", "Transpose", "Pad"} & set(ops(optimized))


def test_a_16_bit_input_is_read_as_it_is() -> None:
    net = Net({"x": (1, 3, 12, 12)}, types={"x": onnx.TensorProto.FLOAT16})
    weight = net.const(net.rng.standard_normal((8, 3, 3, 3)) * 0.2, np.float16)
    y = net.node("Relu", net.node("Conv", "x", weight))
    model = net.model(net.node("Cast", net.node("GlobalAveragePool", y), to=onnx.TensorProto.FLOAT))
    assert ops(fused(model, arch=90))[0] == "FusedConv_Relu_f16_nchw"


def test_another_16_bit_type_is_cast_before() -> None:
    net = Net({"x": (1, 3, 12, 12)}, types={"x": onnx.TensorProto.BFLOAT16})
    weight = net.const(net.rng.standard_normal((8, 3, 3, 3)) * 0.2, np.float16)
    y = net.node(
        "Relu", net.node("Conv", net.node("Cast", "x", to=onnx.TensorProto.FLOAT16), weight)
    )
    model = net.model(net.node("Cast", net.node("GlobalAveragePool", y), to=onnx.TensorProto.FLOAT))
    assert ops(fused(model, arch=90))[:2] == ["Cast", "FusedConv_Relu_f16_nchw"]


def first_op(net: Net, y: str, arch: int = 90) -> str:
    return ops(assert_same(net.model(y), 1e-2, "fp16", arch))[0]


def test_convolutions_without_an_nchw_kernel_read_nhwc() -> None:
    """More channels, dilation, a residual, output channels that stay unpadded, an older
    architecture."""
    net = Net({"x": (1, 8, 9, 9)})
    assert first_op(net, net.conv("x", 8, 8, 3)) == "NchwToNhwc_CastF16_f32"
    net = Net({"x": (1, 3, 9, 9)})
    assert first_op(net, net.conv("x", 3, 8, 3, dilations=[2, 2])) == "NchwToNhwc_CastF16_f32_pad1"
    net = Net({"x": (1, 3, 9, 9), "r": (1, 8, 7, 7)})
    assert first_op(net, net.node("Add", net.conv("x", 3, 8, 3), "r")).startswith(
        "NchwToNhwc_CastF16_f32"
    )
    net = Net({"x": (1, 3, 9, 9)})
    y = net.node("Abs", net.conv("x", 3, 5, 3))
    assert first_op(net, net.node("Softmax", y, axis=1)) == "NchwToNhwc_CastF16_f32_pad1"
    net = Net({"x": (1, 3, 9, 9)})
    assert first_op(net, net.conv("x", 3, 8, 3), arch=80) == "NchwToNhwc_CastF16_f32_pad1"


def test_two_first_convolutions_share_the_input() -> None:
    net = Net({"x": (1, 3, 9, 9)})
    y = net.node("Mul", net.conv("x", 3, 8, 3, pads=[1] * 4), net.conv("x", 3, 8, 1))
    optimized = assert_same(net.model(net.node("GlobalAveragePool", y)), 1e-2, "fp16", arch=90)
    assert len([op for op in ops(optimized) if op.startswith("FusedConv")]) == 2
    assert any(op.endswith("_nchw_f32") for op in ops(optimized))


def test_a_cast_there_and_back_stays_what_onnx_runtime_removes() -> None:
    net = Net({"x": (1, 8, 8, 8)})
    half = net.node("Cast", net.node("Sqrt", net.node("Abs", "x")), to=onnx.TensorProto.FLOAT16)
    y = net.conv(net.node("Cast", half, to=onnx.TensorProto.FLOAT), 8, 8)
    assert ops(assert_same(net.model(y), 1e-5, "keep", arch=90))[2:5] == [
        "Cast",
        "Cast",
        "NchwToNhwc_f32",
    ]


def test_a_cast_stays_for_whoever_else_reads_it() -> None:
    net = Net({"x": (1, 3, 8, 8)})
    y = net.node("GlobalAveragePool", net.conv("x", 3, 8, 3, pads=[1] * 4))
    optimized = assert_same(
        net.model(y, net.node("Abs", net.node("Transpose", "x", perm=[0, 2, 1, 3]))),
        1e-2,
        "fp16",
        arch=90,
    )
    assert ops(optimized)[:2] == ["Cast", "FusedConv_Bias_f16_nchw_f32"]
    assert optimized.graph.node[1].input[0] == "x"


def test_a_convolution_at_the_end_is_turned_by_one_node() -> None:
    net = Net({"x": (2, 8, 6, 6)})
    optimized = assert_same(net.model(net.node("Sigmoid", net.conv("x", 8, 5, 1))), 1e-2, "fp16")
    assert ops(optimized)[0] == "NchwToNhwc_CastF16_f32"
    assert ops(optimized)[-1].startswith("NhwcToNchw")
    assert len(ops(optimized)) == 3


def last_op(net: Net, *outputs: str, precision: str = "fp16", arch: int = 90) -> str:
    return ops(
        assert_same(net.model(*outputs), 5e-2 if precision == "bf16" else 1e-2, precision, arch)
    )[-1]


@pytest.mark.parametrize("channels", [1, 2, 3, 8, 255])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_the_last_convolution_writes_the_output_as_it_is(precision: str, channels: int) -> None:
    net = Net({"x": (2, 16, 7, 9)})
    optimized = assert_same(
        net.model(net.conv("x", 16, channels, 3)), LIMIT[precision], precision, arch=90
    )
    short = {"fp16": "f16", "bf16": "bf16"}[precision]
    assert ops(optimized)[-1] == f"FusedConv_Bias_CastF32_{short}_to_nchw"
    assert shape_of(optimized, optimized.graph.node[-1].input[1]) == [channels, 3, 3, 16]
    assert optimized.graph.node[-1].output[0] == optimized.graph.output[0].name


def test_what_a_node_that_stays_reads_is_written_as_it_is() -> None:
    net = Net({"x": (2, 16, 8, 8)})
    y = net.conv("x", 16, 12, 3, pads=[1] * 4)
    assert last_op(net, net.node("Tile", y, net.const([1, 1, 2, 2], np.int64))) == "Cast"
    net = Net({"x": (2, 16, 40)})
    y = net.node("Conv", "x", net.normal(5, 16, 3), net.normal(5))
    assert last_op(net, y) == "FusedConv_Bias_CastF32_f16_1d_to_nchw"


def test_convolutions_without_an_nchw_kernel_write_nhwc() -> None:
    """A residual, which has its channels last, groups, an older architecture."""
    net = Net({"x": (2, 16, 9, 9)})
    y = net.conv("x", 16, 16)
    assert last_op(net, net.node("Add", net.conv(y, 16, 16), y)).startswith("NhwcToNchw")
    net = Net({"x": (2, 128, 9, 9)})
    assert last_op(net, net.conv("x", 128, 128, 3, group=2)).startswith("NhwcToNchw")
    net = Net({"x": (2, 16, 9, 9)})
    assert last_op(net, net.conv("x", 16, 3), arch=80).startswith("NhwcToNchw")


def test_one_pixel_per_channel_is_only_relabelled() -> None:
    net = Net({"x": (2, 8, 5, 5)})
    optimized = assert_same(net.model(net.node("GlobalAveragePool", net.conv("x", 8, 8))))
    assert ops(optimized)[-1] == "Reshape"


def test_a_cast_behind_a_view_is_part_of_what_computes_the_values() -> None:
    """For a pooling, and for a convolution, whose result is only reshaped afterwards."""
    for pool in (True, False):
        net = Net({"x": (2, 8, 5, 5)})
        y = net.conv("x", 8, 16)
        y = net.node("Flatten", net.node("GlobalAveragePool", y) if pool else y)
        optimized = assert_same(net.model(y), 1e-2, "fp16")
        assert "Cast" not in ops(optimized)
        assert any("CastF32" in op for op in ops(optimized))
