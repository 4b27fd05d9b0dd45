"""Squeeze-and-excitation as one node: the forms that exporters write, padding, what is no
squeeze-and-excitation."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

from tests.layout.test_layout import layout_changes
from tests.support import Net, assert_same, fused, matched, ops

POOLS = [
    ("GlobalAveragePool", {}),
    ("ReduceMean", {"axes": [2, 3], "keepdims": 1}),
    ("ReduceMean", {"axes": [-1, -2]}),
]


def _gate(
    net: Net,
    x: str,
    channels: int,
    squeezed: int,
    squeeze: str = "Relu",
    gate: str = "HardSigmoid",
    bias: bool = True,
    pool: tuple[str, dict[str, Any]] = ("GlobalAveragePool", {}),
) -> str:
    y = net.conv(net.node(pool[0], x, **pool[1]), channels, squeezed, bias=bias)
    y = net.node("Mul", y, net.node("Sigmoid", y)) if squeeze == "Silu" else net.node(squeeze, y)
    return net.node(gate, net.conv(y, squeezed, channels, bias=bias))


def _model(
    channels: int = 16, squeezed: int = 8, opset: int = 17, swapped: bool = False, **options: Any
) -> onnx.ModelProto:
    net = Net({"x": (2, 8, 7, 6)}, opset=opset)
    y = net.node("Relu", net.conv("x", 8, channels))
    gate = _gate(net, y, channels, squeezed, **options)
    return net.model(
        net.conv(net.node("Mul", gate, y) if swapped else net.node("Mul", y, gate), channels, 8)
    )


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type.startswith("SqueezeExcite")]


@pytest.mark.parametrize("pool", POOLS, ids=str)
@pytest.mark.parametrize("swapped", [False, True])
def test_it_is_one_node(pool: tuple[str, dict[str, Any]], swapped: bool) -> None:
    optimized = assert_same(_model(pool=pool, swapped=swapped))
    (node,) = _nodes(optimized)
    assert len(node.input) == 5
    # a change of layout, a convolution, this, a convolution, a change of layout
    assert len(ops(optimized)) == 5
    assert layout_changes(optimized) == 2


def test_axes_as_an_input() -> None:
    net = Net({"x": (2, 8, 7, 6)}, opset=18)
    y = net.conv("x", 8, 16)
    mean = net.node("ReduceMean", y, net.const([2, 3], "int64"), keepdims=1)
    gate = net.node("Sigmoid", net.conv(net.node("Relu", net.conv(mean, 16, 8)), 8, 16))
    assert len(_nodes(assert_same(net.model(net.conv(net.node("Mul", y, gate), 16, 8))))) == 1


@pytest.mark.parametrize(
    ("squeeze", "gate", "opset"),
    [
        *(
            (*pair, opset)
            for pair in (("Silu", "Sigmoid"), ("Relu", "Sigmoid"), ("LeakyRelu", "Tanh"))
            for opset in (12, 17, 18)
        ),
        # ONNX has HardSwish from opset 14 on
        *(("HardSwish", "HardSigmoid", opset) for opset in (14, 17, 18)),
    ],
)
def test_activations_and_opsets(squeeze: str, gate: str, opset: int) -> None:
    assert len(_nodes(assert_same(_model(squeeze=squeeze, gate=gate, opset=opset)))) == 1


@pytest.mark.parametrize(("channels", "squeezed"), [(13, 3), (20, 10), (24, 4), (16, 1)])
@pytest.mark.parametrize("gate", ["HardSigmoid", "Sigmoid"])
def test_channels_are_padded(channels: int, squeezed: int, gate: str) -> None:
    optimized = assert_same(_model(channels, squeezed, gate=gate, squeeze="Silu"))
    (node,) = _nodes(optimized)
    shapes = {t.name: list(t.dims) for t in optimized.graph.initializer}
    stored, inner = -(-channels // 4) * 4, -(-squeezed // 4) * 4
    assert [shapes[name] for name in node.input[1:]] == [
        [inner, stored],
        [inner],
        [stored, inner],
        [stored],
    ]


def test_products_without_bias() -> None:
    assert len(_nodes(assert_same(_model(bias=False)))) == 1


@pytest.mark.parametrize(("precision", "limit"), [("fp16", 1e-2), ("bf16", 5e-2)])
def test_other_types(precision: str, limit: float) -> None:
    assert (
        len(_nodes(assert_same(_model(13, 3, squeeze="Silu", gate="Sigmoid"), limit, precision)))
        == 1
    )


def test_a_symbolic_batch_and_image() -> None:
    net = Net({"x": ("n", 8, "h", "w")})
    y = net.conv("x", 8, 16)
    model = net.model(net.conv(net.node("Mul", y, _gate(net, y, 16, 8)), 16, 8))
    assert len(_nodes(fused(model))) == 1


def test_the_gated_tensor_may_have_other_readers() -> None:
    net = Net({"x": (2, 8, 7, 6)})
    y = net.conv("x", 8, 16)
    gated = net.node("Mul", y, _gate(net, y, 16, 8))
    optimized = assert_same(net.model(net.conv(net.node("Add", gated, y), 16, 8)))
    assert len(_nodes(optimized)) == 1
    assert layout_changes(optimized) == 2


def test_a_gate_for_another_tensor_is_refused() -> None:
    net = Net({"x": (2, 8, 7, 6)})
    y, other = net.conv("x", 8, 16), net.conv("x", 8, 16)
    model = net.model(net.conv(net.node("Mul", other, _gate(net, y, 16, 8)), 16, 8))
    _, refusals = matched(model)
    assert any(
        "does not multiply the tensor that it averages" in refusal.reason for refusal in refusals
    )
    assert not _nodes(assert_same(model))


def test_a_gate_that_is_an_output_is_refused() -> None:
    net = Net({"x": (2, 8, 7, 6)})
    y = net.conv("x", 8, 16)
    gate = _gate(net, y, 16, 8)
    model = net.model(net.conv(net.node("Mul", y, gate), 16, 8), gate)
    _, refusals = matched(model)
    assert any("is a graph output" in refusal.reason for refusal in refusals)
    assert not _nodes(assert_same(model))


def test_a_global_pooling_without_products_is_no_near_miss() -> None:
    net = Net({"x": (2, 8, 7, 6)})
    _, refusals = matched(net.model(net.node("GlobalAveragePool", net.conv("x", 8, 16))))
    assert refusals == []


def _residual(*behind: str, shortcut: str = "itself", channels: int = 16) -> onnx.ModelProto:
    """A sum with what a gate has scaled: of the tensor itself, as in text detectors, of a pooled
    one, or of a convolution's result; `behind`: activations."""
    net = Net({"x": (2, 8, 7, 6)})
    y = net.node("Relu", net.conv("x", 8, channels))
    other = y if shortcut == "itself" else net.conv("x", 8, channels)
    if shortcut == "pool":
        other = net.node("MaxPool", other, kernel_shape=[1, 1])
    y = net.node("Add", other, net.node("Mul", y, _gate(net, y, channels, 8)))
    for op in behind:
        y = net.node(op, y)
    return net.model(net.conv(y, channels, 8))


@pytest.mark.parametrize("channels", [16, 13])
@pytest.mark.parametrize(("shortcut", "behind"), [("itself", ()), ("pool", ("Relu", "Tanh"))])
def test_a_sum_behind_it_is_its_epilogue(
    shortcut: str, behind: tuple[str, ...], channels: int
) -> None:
    optimized = assert_same(_residual(*behind, shortcut=shortcut, channels=channels))
    (node,) = _nodes(optimized)
    assert node.op_type.startswith("_".join(("SqueezeExcite_Relu_HardSigmoid_Add", *behind)))
    assert len(node.input) == 6
    assert (node.input[5] == node.input[0]) is (shortcut == "itself")
    assert not {"Add", *behind} & set(ops(optimized))


def test_a_convolution_adds_it_where_it_can() -> None:
    """It may have kernels for the next convolution as well."""
    optimized = assert_same(_residual("Relu", shortcut="conv"))
    (node,) = _nodes(optimized)
    assert len(node.input) == 5
    assert "FusedConv_Bias_Add_Relu_f32" in ops(optimized)


def test_a_bias_is_no_step_behind_it() -> None:
    net = Net({"x": (2, 8, 7, 6)})
    y = net.conv("x", 8, 16)
    y = net.node("Mul", y, _gate(net, y, 16, 8))
    total = net.node("Add", y, net.normal(1, 16, 1, 1))
    optimized = assert_same(net.model(net.node("Relu", total), y))
    assert [len(node.input) for node in _nodes(optimized)] == [5]
