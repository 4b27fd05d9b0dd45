"""The rules of the candidates, and the layers that stay apart from the previous layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxbolt
from onnxbolt.candidates import Refusal
from onnxbolt.families import named
from onnxbolt.plan.cuts import cover
from onnxbolt.verify import verify
from onnxbolt.verify.result import Row
from tests.support import Net, assert_same, fused, prepare

EXPANSION = "conv+Bias+Add+Relu+Store+Gemm+Bias+Relu"


def found(
    net: Net, *outputs: str, archs: tuple[int, ...] = (90,)
) -> tuple[list[str], list[Refusal]]:
    """The rules of the candidates, and who is apart from the layer before."""
    candidates, refusals, *_ = cover(prepare(net.model(*outputs), "fp16"), archs)
    return [candidate.rule.removesuffix("+CastF32") for candidate in candidates], [
        refusal for refusal in refusals if refusal.apart
    ]


def block(
    c: int = 64,
    wide: int = 256,
    narrow: int = 64,
    size: int = 56,
    batch: int = 32,
    **reduction: Any,
) -> tuple[Net, str, str]:
    """The end of a residual block and the 1x1 convolution that begins the next; what lies
    between, and the result."""
    net = Net({"x": (batch, c, size, size), "r": (batch, wide, size, size)})
    end = net.node("Relu", net.node("Add", net.conv("x", c, wide), "r"))
    return net, end, net.node("Relu", net.conv(end, wide, narrow, **reduction))


@pytest.mark.parametrize("shape", [(64, 256, 64, 56), (64, 256, 128, 56), (128, 512, 128, 28)])
def test_the_end_of_a_residual_block_is_stored_beside_the_next_block_s_first_layer(
    shape: tuple[int, int, int, int],
) -> None:
    net, end, y = block(*shape)
    rules, refusals = found(net, y, net.node("Softmax", end))
    assert (rules, refusals) == ([EXPANSION], [])
    assert found(net, y, end)[0] == [EXPANSION]  # a graph output, too


def test_a_value_with_one_reader_is_not_stored() -> None:
    net, _, y = block()
    assert found(net, y) == ([EXPANSION.replace("+Store", "")], [])


def test_where_storing_does_not_pay_both_times_are_reported() -> None:
    net, end, y = block(256, 1024, 256, 14)
    rules, (refusal,) = found(net, y, end)
    assert rules == ["conv+Bias+Add+Relu", "conv+Bias+Relu"]
    assert refusal.op == "Conv"
    assert "stored for other consumers, is predicted to be slower" in refusal.reason
    assert refusal.values["together_us"] >= refusal.values["apart_us"] > 0


@pytest.mark.parametrize("changes", [{"strides": [2, 2]}, {"group": 2}])
def test_only_products_of_every_pixel_follow_a_stored_result(changes: dict[str, Any]) -> None:
    net, end, y = block(**changes)
    assert found(net, y, end) == (["conv+Bias+Add+Relu", "conv+Bias+Relu"], [])


def test_without_a_kernel_on_all_architectures_nothing_is_stored() -> None:
    net, end, y = block()
    assert found(net, y, end, archs=(80, 90))[0] == ["conv+Bias+Add+Relu", "conv+Bias+Relu"]


def test_a_residual_behind_the_second_layer_is_not_for_this_kernel() -> None:
    net, end, y = block(narrow=64)
    assert found(net, net.node("Add", y, "x"), end)[0] == [
        "conv+Bias+Add+Relu",
        "conv+Bias+Relu+Add",
    ]


def models() -> dict[str, tuple[Net, tuple[str, ...], str]]:
    """Models with a stored result, their outputs and the op type."""
    made: dict[str, tuple[Net, tuple[str, ...], str]] = {}
    net, end, y = block(16, 64, 24, 9, 2)
    made["residual"] = (
        net,
        (y, net.node("Softmax", end)),
        "FusedConv_Bias_Add_Relu_Store_Gemm_Bias_Relu",
    )
    net, end, y = block(16, 64, 20, 9, 2)  # the last layer's channels are padded
    third = net.conv(y, 20, 16, 3, pads=[1] * 4)
    made["padded"] = net, (third, end), "FusedConv_Bias_Add_Relu_Store_Gemm_Bias_Relu"
    net, end, y = block(16, 64, 24, 9, 2)
    early = net.node("Relu", net.node("Neg", end))  # between both layers, in the graph's order
    net.nodes[3:] = [*net.nodes[5:], *net.nodes[3:5]]
    made["read early"] = net, (y, early), "FusedConv_Bias_Add_Relu_Store_Gemm_Bias_Relu"
    net = Net({"x": (2, 50, 64)})
    inner = net.node("Relu", net.linear("x", 64, 128))
    made["rows"] = net, (net.linear(inner, 128, 32), inner), "FusedGemm_Bias_Relu_Store_Gemm_Bias"
    return made


# ONNX Runtime has no other operators in bf16
@pytest.mark.parametrize(
    ("name", "precision"),
    [*((name, "fp16") for name in models()), ("padded", "bf16"), ("rows", "bf16")],
)
def test_bodies_compute_what_the_original_does(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # so few pixels take no longer together than apart
    monkeypatch.setattr("onnxbolt.families.b2b_stored_sm90._LAUNCH_US", 0.0)
    net, outputs, op = models()[name]
    optimized = assert_same(
        net.model(*outputs), 2e-3 if precision == "fp16" else 2e-2, precision, arch=90
    )
    (node,) = [node for node in optimized.graph.node if "Store" in node.op_type]
    assert node.op_type.startswith(op)
    assert len(node.output) == 2
    (function,) = [function for function in optimized.functions if function.name == node.op_type]
    assert list(function.output) == ["y", "stored"]


def checked(model: onnx.ModelProto, optimized: onnx.ModelProto, node: onnx.NodeProto) -> list[Row]:
    """The verdicts of verification on both outputs of a fused node, by the original's tensors."""
    rows = [
        row
        for row in verify(model, optimized).rows
        if (row.node, row.level) == (node.name, "segment")
    ]
    assert len(rows) == 2
    return rows


def test_both_outputs_are_verified_against_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxbolt.families.b2b_stored_sm90._LAUNCH_US", 0.0)
    net, end, y = block(16, 64, 24, 9, 2)
    model = net.model(y, net.node("Softmax", end))
    onnxbolt.optimize(
        model,
        tmp_path / "fused.onnx",
        precision="fp16",
        archs=("sm_90a",),
        fuse="all",
        library=False,
    )
    optimized = onnx.load(tmp_path / "fused.onnx")
    (node,) = [node for node in optimized.graph.node if "Store" in node.op_type]
    assert {row.name: row.passed for row in checked(model, optimized, node)} == {y: True, end: True}
    (function,) = [function for function in optimized.functions if function.name == node.op_type]
    index = next(i for i, inner in enumerate(function.node) if inner.output[0] == "stored")
    function.node[index].output[0] = "right"
    twice = onnx.helper.make_node("Add", ["right", "right"], ["stored"])
    function.node.insert(index + 1, twice)
    assert {row.name: row.passed for row in checked(model, optimized, node)} == {
        y: True,
        end: False,
    }


def test_a_stored_result_is_computed_by_its_own_family() -> None:
    net, end, y = block()
    optimized = fused(net.model(y, end), "fp16", arch=90)
    (node,) = [node for node in optimized.graph.node if "Store" in node.op_type]
    values = {
        attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute
    }
    assert values["configs"][3] == named("b2b_stored_sm90").number
