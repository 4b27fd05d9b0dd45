"""Factors, summands and residuals behind a Transpose to NCHW move in front of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_graphsurgeon as gs
import pytest

import onnxbolt
from onnxbolt.canonicalize.transpose_form import run
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from tests.support import Net

C = 16
FIRST, LAST = [0, 3, 1, 2], [0, 2, 3, 1]


def gelu(net: Net, x: str) -> str:
    half = net.node("Mul", x, net.const(0.5))
    erf = net.node("Erf", net.node("Div", x, net.const(2**0.5)))
    return net.node("Mul", half, net.node("Add", erf, net.const(1.0)))


def in_front(net: Net, y: str, x: str) -> str:
    """Hugging Face's ConvNeXt."""
    y = net.node("Transpose", net.node("Mul", net.normal(C), y), perm=FIRST)
    return net.node("Add", x, y)


def behind(net: Net, y: str, x: str) -> str:
    """torchvision's."""
    y = net.node("Mul", net.normal(C, 1, 1), net.node("Transpose", y, perm=FIRST))
    return net.node("Add", y, x)


def reshaped(net: Net, y: str, x: str) -> str:
    """timm's."""
    y = net.node("Mul", net.node("Transpose", y, perm=FIRST), net.normal(1, C, 1, 1))
    return net.node("Add", y, x)


def without(net: Net, y: str, x: str) -> str:
    return net.node("Add", net.node("Transpose", y, perm=FIRST), x)


Scaled = Callable[[Net, str, str], str]


def block(net: Net, x: str, scaled: Scaled) -> str:
    y = net.conv(x, C, C, 7, group=C, pads=[3, 3, 3, 3])
    y = net.node("Transpose", y, perm=LAST)
    y = net.node("LayerNormalization", y, net.normal(C), net.normal(C), axis=-1)
    y = net.linear(gelu(net, net.linear(y, C, 2 * C)), 2 * C, C)
    return scaled(net, y, x)


def blocks(scaled: Scaled, batch: int | str = 2) -> onnx.ModelProto:
    """Two stages, with a normalization over channels before the second stage's convolution."""
    net = Net({"x": (batch, 3, 16, 16)})
    x = net.conv("x", 3, C, 2, strides=[2, 2])
    x = block(net, block(net, x, scaled), scaled)
    x = net.node("Transpose", x, perm=LAST)
    x = net.node("LayerNormalization", x, net.normal(C), net.normal(C), axis=-1)
    x = net.conv(net.node("Transpose", x, perm=FIRST), C, C, 2, strides=[2, 2])
    return net.model(net.node("GlobalAveragePool", block(net, x, scaled)))


@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
@pytest.mark.parametrize("scaled", [in_front, behind, reshaped, without])
def test_blocks_of_convnext(scaled: Scaled, precision: str, tmp_path: Path) -> None:
    """Scale and residual are steps of the second product, the residual in front of a normalization
    maybe of that, and no Transpose is left."""
    report = onnxbolt.optimize(
        blocks(scaled, "batch"),
        tmp_path / "out.onnx",
        archs="sm_80",
        precision=precision,
        fuse="all",
        library=False,
    )
    assert report.passed
    ops = [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node]
    assert not {"Add", "Mul", "Transpose"} & {*ops}
    added = [node.rule for node in report.fused if "Add" in node.rule.split("+")]
    assert len(added) == 3
    assert sum(rule.endswith("+Bias+Add") for rule in added) >= 2


def test_a_sum_is_compared_as_it_is_stored(tmp_path: Path) -> None:
    report = onnxbolt.optimize(
        blocks(behind), tmp_path / "out.onnx", archs="sm_80", fuse="all", library=False
    )
    (first, *_) = (node for node in report.fused if node.rule.endswith("+Bias+Add"))
    assert report.verification is not None
    rows = {row.name: row for row in report.verification.at("segment")}
    assert rows[first.tensor].passed
    node = next(n for n in onnx.load(tmp_path / "out.onnx").graph.node if n.name == first.name)
    layout = next(a.s for a in node.attribute if a.name == "layout")
    assert layout == b"NHWC"


# --- the pass alone -------------------------------------------------------------------------------


def after(net: Net, *outputs: str) -> gs.Graph:
    graph = import_model(net.model(*outputs))
    infer(graph)
    before = [node.op for node in graph.nodes]
    assert bool(run(graph)) == ([node.op for node in graph.nodes] != before)
    return graph


def ops(net: Net, *outputs: str) -> list[str]:
    return [node.op for node in after(net, *outputs).nodes]


def image(net: Net) -> str:
    """[2, C, 4, 4], a product's result."""
    return net.node("Transpose", net.node("MatMul", "x", net.normal(C, C)), perm=FIRST)


def inputs() -> Net:
    return Net({"x": (2, 4, 4, C), "r": (2, C, 4, 4), "thin": (2, C, 1, 1)})


def test_constants_move() -> None:
    net = inputs()
    y = net.node("Add", net.node("Mul", net.const(2.0), image(net)), net.normal(1, C, 1, 1))
    graph = after(net, y)
    assert [node.op for node in graph.nodes] == ["MatMul", "Mul", "Add", "Transpose"]
    assert [tuple(node.inputs[-1].shape) for node in graph.nodes[1:3]] == [(2, 4, 4, C), (C,)]
    assert graph.nodes[-1].outputs[0].name == y
    inner = graph.nodes[2].outputs[0]
    assert (inner.original, inner.channels_last) == (y, True)


def test_a_residual_moves_where_a_convolution_reads_the_sum() -> None:
    net = inputs()
    y = net.node("Add", image(net), "r")
    assert ops(net, net.conv(y, C, C)) == ["MatMul", "Transpose", "Add", "Transpose", "Conv"]
    net = inputs()
    y = net.node("Add", image(net), "r")
    assert ops(net, net.node("Relu", y)) == ["MatMul", "Transpose", "Add", "Relu"]


def test_transposes_back_vanish() -> None:
    net = inputs()
    assert ops(net, net.node("Relu", net.node("Transpose", image(net), perm=LAST))) == [
        "MatMul",
        "Transpose",
        "Relu",
    ]


@pytest.mark.parametrize(
    "other",
    [
        lambda net: net.normal(C, 4, 4),  # varies over the image
        lambda net: net.normal(4),  # along the width
        lambda net: net.normal(1, 1, C, 1, 1),  # another rank
        lambda net: "thin",  # a residual that is broadcast
    ],
)
def test_others_stay(other: Callable[[Net], str]) -> None:
    net = Net({"x": (2, 4, 4, C), "thin": (2, C, 1, 1)})
    y = net.node("Add", image(net), other(net))
    assert "Transpose" in ops(net, net.node("Abs", y))[1]


def test_what_is_no_product_stays() -> None:
    net = inputs()
    y = net.node("Transpose", net.node("Relu", "x"), perm=FIRST)
    assert ops(net, net.node("Mul", y, net.const(2.0))) == ["Relu", "Transpose", "Mul"]


def test_a_transpose_that_others_read_stays() -> None:
    net = inputs()
    y = image(net)
    z = net.node("Mul", y, net.const(2.0))
    assert ops(net, z, net.node("Abs", y)) == ["MatMul", "Transpose", "Mul", "Abs"]
    net = inputs()
    y = image(net)
    assert ops(net, net.node("Mul", y, net.const(2.0)), y) == ["MatMul", "Transpose", "Mul"]


def test_gates_stay() -> None:
    """A product with another tensor."""
    net = inputs()
    y = net.conv(net.node("Mul", image(net), "r"), C, C)
    assert ops(net, y) == ["MatMul", "Transpose", "Mul", "Conv"]
