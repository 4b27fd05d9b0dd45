"""Pairs stand where kernels read and write codes, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from onnxbolt.dtypes import DType
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.quantize.placement import Placement
from tests.support import Net


def _placed(model: ModelProto, dtype: DType = DType.I8, leave: str = "") -> Placement:
    graph = import_model(model)
    infer(graph)
    return Placement(graph, dtype, frozenset({leave} - {""}))


def _groups(placement: Placement) -> list[list[str]]:
    return [[tensor.name for tensor in group] for group in placement.groups]


def _image(channels: int = 16) -> Net:
    return Net({"x": (2, channels, 8, 8)}, seed=1)


def test_an_epilogue_rounds_nothing() -> None:
    net = _image()
    first = net.node("Relu", net.conv("x", 16, 16))
    placement = _placed(net.model(net.conv(first, 16, 16)))
    assert _groups(placement) == [["x"], [first]]


def test_the_later_of_two_products_takes_their_sum() -> None:
    net = _image()
    main = net.conv(net.node("Relu", net.conv("x", 16, 16)), 16, 32)
    shortcut = net.conv("x", 16, 32)
    total = net.node("Relu", net.node("Add", main, shortcut))
    placement = _placed(net.model(net.conv(total, 32, 16)))
    # the shortcut's result is in the epilogue of its convolution; that of `main` is its residual
    assert _groups(placement) == [["x"], ["relu1"], [main], [total]]


def test_what_is_moved_shares_a_scale() -> None:
    net = _image()
    one, two = (net.node("Relu", net.conv("x", 16, 16)) for _ in range(2))
    pooled = net.node("MaxPool", two, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
    both = net.node("Concat", one, pooled, axis=1)
    placement = _placed(net.model(net.conv(both, 32, 16)))
    assert _groups(placement) == [["x"], [one, two]]


def test_fp8_codes_are_not_moved() -> None:
    net = _image()
    inner = net.node("Relu", net.conv("x", 16, 16))
    pooled = net.node("MaxPool", inner, kernel_shape=[2, 2], strides=[2, 2])
    placement = _placed(net.model(net.conv(pooled, 16, 16)), DType.E4M3)
    assert _groups(placement) == [["x"], [pooled]]


def test_the_gate_of_squeeze_and_excitation() -> None:
    net = _image()
    deep = net.node("HardSwish", net.conv("x", 16, 16, 3, group=16, pads=[1] * 4))
    mean = net.node("GlobalAveragePool", deep)
    gate = net.node("HardSigmoid", net.conv(mean, 16, 16), alpha=1 / 6, beta=0.5)
    gated = net.node("Mul", deep, gate)
    placement = _placed(net.model(net.conv(gated, 16, 16)))
    assert _groups(placement) == [["x"], [deep], [mean], [gate], [gated]]
    # fp8 has no depthwise kernels: what they write are values, and so is the gate
    floats = _placed(net.model(net.conv(gated, 16, 16)), DType.E4M3)
    assert _groups(floats) == [[mean], [gated]]
    assert [left.reason for left in floats.left] == ["no kernel convolves codes in such groups"]


def test_what_means_alone_read_is_stored_as_codes() -> None:
    """A product's result behind which a classifier begins: the mean reads bytes."""
    net = _image()
    last = net.node("Relu", net.conv("x", 16, 16))
    flat = net.node("Flatten", net.node("GlobalAveragePool", last))
    model = net.model(net.linear(flat, 16, 16))
    assert _groups(_placed(model)) == [["x"], [last], [flat]]
    # no kernel averages codes of fp8
    assert _groups(_placed(model, DType.E4M3)) == [["x"], [flat]]
    # others need the values
    model.graph.output.append(helper.make_tensor_value_info(last, TensorProto.FLOAT, (2, 16, 8, 8)))
    assert _groups(_placed(model)) == [["x"], [flat]]


def test_of_tokens_products_alone_read_codes() -> None:
    net = Net({"x": (2, 6, 16)}, seed=1)
    inner = net.node("Relu", net.linear("x", 16, 32))
    total = net.node("Add", net.linear(inner, 32, 16), "x")
    placement = _placed(net.model(total), DType.E4M3)
    assert _groups(placement) == [["x"], [inner]]
    (x, *_), *_ = placement.groups
    assert [node.op for node in placement.readers(x)] == ["MatMul"]


@pytest.mark.parametrize(("classes", "reason"), [(32, ""), (8, "it has fewer than 16 channels")])
def test_few_channels_stay(classes: int, reason: str) -> None:
    net = Net({"x": (4, 32)}, seed=1)
    placement = _placed(net.model(net.linear("x", 32, classes)))
    assert [left.reason for left in placement.left] == [reason] * bool(reason)


def test_the_stem_stays_and_what_is_pooled_is_rounded_behind_the_pooling() -> None:
    net = _image(3)
    stem = net.node("Relu", net.conv("x", 3, 24, 3, pads=[1] * 4))
    pooled = net.node("MaxPool", stem, kernel_shape=[2, 2], strides=[2, 2])
    placement = _placed(net.model(net.conv(pooled, 24, 16)))
    assert _groups(placement) == [[pooled]]
    assert [left.reason for left in placement.left] == [
        "it reads 3 channels, of which kernels would read 16"
    ]


def test_a_stem_that_ends_with_codes_has_these_pooled() -> None:
    net = _image(3)
    stem = net.node("Relu", net.conv("x", 3, 16, 3, pads=[1] * 4))
    pooled = net.node("MaxPool", stem, kernel_shape=[2, 2], strides=[2, 2])
    model = net.model(net.conv(pooled, 16, 16))
    assert _groups(_placed(model)) == [[stem]]
    assert _groups(_placed(model, DType.E4M3)) == [[pooled]]


def test_a_product_that_is_left_reads_values_of_codes() -> None:
    net = _image()
    first = net.node("Relu", net.conv("x", 16, 16))
    one, two = net.conv(first, 16, 16), net.conv(first, 16, 16)
    placement = _placed(net.model(net.node("Add", one, net.node("Abs", two))), leave=two)
    assert [product.node.name for product in placement.products] == ["conv0", one]
    assert {left.node for left in placement.left} == {two}


def test_products_of_other_types_stay() -> None:
    net = Net({"x": (4, 32), "y": (32, 32)}, seed=1)
    half = net.node("Cast", "x", to=10)
    halves = net.node("MatMul", half, net.const(np.ones((32, 32)), np.float16))
    wide = net.node("Cast", halves, to=1)
    placement = _placed(net.model(net.node("MatMul", wide, "y")))
    assert [left.reason for left in placement.left] == [
        "its types are float16 and float16, and float32 alone is quantized",
        "both operands are computed at run time",
    ]


def test_products_in_bodies_are_reported() -> None:
    net = Net({"x": (4, 16), "c": ()}, types={"c": TensorProto.BOOL})
    inner = helper.make_node("MatMul", ["x", net.normal(16, 16)], ["inner"], "product")
    value = helper.make_empty_tensor_value_info("inner")
    branch = helper.make_graph([inner], "branch", [], [value])
    placement = _placed(net.model(net.node("If", "c", then_branch=branch, else_branch=branch)))
    assert not placement.products
    assert {(left.node, left.reason) for left in placement.left} == {
        ("product", "it is in a body of If")
    }
