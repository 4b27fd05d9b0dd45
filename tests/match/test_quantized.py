"""Products of 8 bits: which are recognized, and the reasons for others. Without kernels that read
codes, models are written as if nothing had been recognized."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxbolt import optimize
from onnxbolt.candidates import Refusal
from onnxbolt.match import quantized
from onnxbolt.match.quantized import NO_KERNEL
from onnxbolt.report import Report
from onnxbolt.tune import subject
from tests.quantized import kernels, stored
from tests.support import Net

ARCH = ("sm_90a",)
_PRODUCTS = ("Conv", "Gemm", "MatMul", "QLinearConv", "QLinearMatMul", "QGemm")
_CODES = ("QuantizeLinear", "DequantizeLinear")


@pytest.fixture(autouse=True)
def _none() -> Iterator[None]:
    with kernels.absent():
        yield


def reported(model: onnx.ModelProto, **options: Any) -> Report:
    return optimize(model, None, archs=ARCH, library=False, verify=False, **options)


def refusals(model: onnx.ModelProto, **options: Any) -> dict[str, Refusal]:
    return {refusal.node: refusal for refusal in reported(model, **options).refusals}


@pytest.mark.parametrize("name", stored.names())
def test_all_products_are_recognized(name: str) -> None:
    model = stored.graph(name)
    found = refusals(model, precision="keep")
    products = [node for node in model.graph.node if node.op_type in _PRODUCTS]
    assert products
    # weights of uint8 that are not symmetric
    expected = "its quantized weight has zero points" if "u8u8" in name else f"{NO_KERNEL}: "
    for node in products:
        assert found[node.name].reason.startswith(expected), found[node.name]
        assert found[node.name].op == node.op_type


@pytest.mark.parametrize("name", [n for n in stored.names() if "qdq" in n or "brevitas" in n])
def test_no_pair_is_left_unmentioned(name: str) -> None:
    """Each has a row of its own, or belongs to a product or to a constant, or repeats another."""
    model = stored.graph(name)
    found = refusals(model, precision="keep")
    named = {part for row in found.values() for part in row.reason.replace(",", " ").split()}
    constants = {tensor.name for tensor in model.graph.initializer}
    made = {node.output[0]: node for node in model.graph.node}
    for node in (node for node in model.graph.node if node.op_type in _CODES):
        bias = node.input[0] in constants
        before = made.get(node.input[0])
        # its DequantizeLinear moved, met another pair, and both were removed
        moved = {"Concat", "Flatten", "MaxPool", "Reshape", "Resize"}
        readers = {other.op_type for other in model.graph.node if node.output[0] in other.input}
        at_move = bool(moved & {*readers, *([before.op_type] if before else [])})
        beside = before is not None and before.op_type in _CODES and not at_move
        assert node.name in found or node.name in named or bias or at_move or beside, node.name


CHAINS = {
    "cnn.ort.qdq.u8s8.channel": {
        "conv0": "uint8 by int8 with scales of channels to uint8, conv+Bias,",
        "conv5": "uint8 by int8 with scales of channels to uint8, conv+Bias+Requantize+Add,",
        "gemm16": "uint8 by int8 with scales of channels to uint8, gemm+Bias,",
    },
    "cnn.ort.qdq.s8s8.tensor": {"conv0": "int8 by int8 with a scale to int8, conv+Bias,"},
    "cnn.modelopt.int8": {
        "conv5": "int8 by int8 with scales of channels to float32, conv+Bias+Add+Relu,"
    },
    "cnn.modelopt.fp8": {
        "conv3": "float8_e4m3fn by float8_e4m3fn with a scale to float8_e4m3fn, conv+Bias+Relu,"
    },
    "mobile.brevitas.int8": {
        "conv0": "int8 by int8 with scales of channels to int8, conv+Bias+HardSwish+Clip,"
    },
    "mobile.ort.qoperator.s8s8.tensor": {
        "conv0_quant": "int8 by int8 with a scale to int8, conv+Bias+Requantize+HardSwish,"
    },
    "mlp.ort.qdq.s8s8.tensor": {
        "matmul3": "int8 by int8 with a scale to int8, gemm+Requantize+Bias+Requantize+Sigmoid,"
    },
}


@pytest.mark.parametrize("name", CHAINS)
def test_types_and_steps_of_chains(name: str) -> None:
    found = refusals(stored.graph(name), precision="keep")
    for node, words in CHAINS[name].items():
        assert found[node].reason.startswith(f"{NO_KERNEL}: {words} between "), found[node].reason


def test_the_pairs_of_a_chain_are_named() -> None:
    (reason,) = [
        row.reason
        for row in reported(stored.graph("cnn.ort.qdq.u8s8.channel"), precision="keep").refusals
        if row.node == "conv5"
    ]
    assert reason.partition(" between ")[2].split(", ") == [
        "relu4_DequantizeLinear",  # x
        "c4_DequantizeLinear",  # the weight
        "relu1_DequantizeLinear",  # the residual, in front of the pooling
        "conv5_QuantizeLinear",  # a pair within
        "conv5_DequantizeLinear",
        "relu7_QuantizeLinear",
    ]


@pytest.mark.parametrize("precision", ["keep", "fp16"])
@pytest.mark.parametrize("name", ["cnn.ort.qdq.u8s8.channel", "mobile.ort.qoperator.u8u8.tensor"])
def test_the_model_is_written_as_before(
    name: str, precision: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "recognized.onnx", tmp_path / "before.onnx"]
    for path in paths:
        optimize(
            stored.graph(name), path, archs=ARCH, verify=False, library=False, precision=precision
        )
        monkeypatch.setattr(subject, "is_quantized", lambda graph: False)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_models_of_values_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(graph: Any) -> list[Refusal]:
        raise AssertionError

    monkeypatch.setattr(quantized, "refusals", refuse)
    net = Net({"x": (1, 8, 6, 6)})
    assert reported(net.model(net.conv("x", 8, 8))).fused


def test_one_of_two_products_takes_their_sum_and_reads_the_others_codes() -> None:
    net = Net({"x": (1, 16, 6, 6)})
    x = pair(net, "x")
    first, second = (
        net.node("Conv", x, weight(net, (16, 16, 3, 3), axis=0), pads=[1, 1, 1, 1])
        for _ in range(2)
    )
    one, other = pair(net, first), pair(net, second)
    y = pair(net, net.node("Relu", net.node("Add", one, other)))
    rows = reported(net.model(y), precision="keep").refusals
    reasons = {row.node: row.reason for row in rows}
    assert ", conv, between " in reasons[first]
    assert ", conv+Requantize+Add+Relu, between " in reasons[second]
    assert one in reasons[second]
    assert {row.node for row in rows if row.op == "DequantizeLinear"} == {y}


def test_a_pair_in_front_of_a_step_that_no_product_takes_keeps_its_reader() -> None:
    found = refusals(stored.graph("mobile.ort.qdq.u8s8.channel"), precision="keep")
    gate = found["hardsigmoid8_DequantizeLinear"].reason
    assert gate == "no product of 8 bits reads it: in front of Mul"
    assert "hardsigmoid8_QuantizeLinear" in found["conv7"].reason


# --- products that are none, each with its reason -------------------------------------------------


def pair(net: Net, x: str, scale: Any = 0.05, zero: Any = 0, dtype: Any = np.int8) -> str:
    numbers = net.const(scale), net.const(np.broadcast_to(zero, np.shape(scale)), dtype)
    codes = net.node("QuantizeLinear", x, *numbers, axis=1)
    return net.node("DequantizeLinear", codes, *numbers, axis=1)


def weight(net: Net, shape: Any, scale: Any = 0.01, zero: Any = 0, axis: int = 1) -> str:
    codes = net.const(net.rng.integers(-127, 128, shape), np.int8)
    zeros = net.const(np.broadcast_to(zero, np.shape(scale)), np.int8)
    return net.node("DequantizeLinear", codes, net.const(scale), zeros, axis=axis)


def reason(net: Net, y: str) -> str:
    found = refusals(net.model(y), precision="keep")
    return found[y].reason


def test_a_weight_of_codes_alone() -> None:
    net = Net({"x": (4, 8)})
    y = net.node("MatMul", "x", weight(net, (8, 6)))
    assert reason(net, y) == "only its weight is quantized"


def test_a_product_of_values_behind_a_pair_is_fused_as_others() -> None:
    net = Net({"x": (128, 64)})
    x = pair(net, "x")
    y = net.node("MatMul", x, net.normal(64, 64))
    report = reported(net.model(y), precision="keep", fuse="all")
    assert [fused.source_nodes for fused in report.fused] == [(y,)]
    assert {row.node: row.reason for row in report.refusals}[x] == (
        "no product of 8 bits reads it: in front of MatMul"
    )
    assert y not in {row.node for row in report.refusals}


def test_scales_that_kernels_will_not_take() -> None:
    net = Net({"x": (4, 8)})
    y = net.node("MatMul", pair(net, "x", np.full(8, 0.1)), weight(net, (8, 6)))
    assert reason(net, y) == "its quantized input has a scale for each channel"
    net = Net({"x": (4, 8)})
    y = net.node("MatMul", pair(net, "x"), weight(net, (8, 6), np.full(8, 0.1), axis=0))
    assert "another axis" in reason(net, y)
    net = Net({"x": (4, 8)})
    y = net.node("MatMul", pair(net, "x"), weight(net, (8, 6), zero=3))
    assert reason(net, y).startswith("its quantized weight has zero points")
    net = Net({"x": (4, 8), "s": ()})
    codes = net.node("QuantizeLinear", "x", "s")
    y = net.node("MatMul", net.node("DequantizeLinear", codes, "s"), weight(net, (8, 6)))
    assert reason(net, y) == "its scale is computed at run time, or given for blocks"


def test_weights_of_uint8_around_128_are_symmetric() -> None:
    net = Net({"x": (4, 8)})
    numbers = net.const(0.1), net.const(128, np.uint8)
    codes = net.const(net.rng.integers(0, 256, (8, 6)), np.uint8)
    y = net.node("MatMul", pair(net, "x"), net.node("DequantizeLinear", codes, *numbers))
    assert reason(net, y).startswith(f"{NO_KERNEL}: int8 by int8 with a scale to float32, gemm,")


def test_two_activations() -> None:
    net = Net({"x": (4, 8), "w": (8, 6)})
    y = net.node("MatMul", pair(net, "x"), pair(net, "w"))
    assert reason(net, y) == "both operands are computed at run time"


def test_types_that_do_not_go_together() -> None:
    net = Net({"x": (4, 8)}, opset=21)
    y = net.node("MatMul", pair(net, "x", dtype=np.int16), weight(net, (8, 6)))
    assert reason(net, y) == "no kernel for its types: int16 by int8"


def test_a_product_that_no_kernel_computes_in_floats_either() -> None:
    net = Net({"x": (1, 6, 6, 6)})
    y = net.node("Conv", pair(net, "x"), weight(net, (4, 3, 3, 3)), group=2)
    assert reason(net, y) == "grouped convolutions of such widths stay with ONNX Runtime"


def test_dynamic_quantization() -> None:
    net = Net({"x": (4, 8)})
    codes, scale, zero = net.several("DynamicQuantizeLinear", "x", outputs=3)
    sums = net.node("MatMulInteger", codes, net.const(np.ones((8, 6)), np.int8), zero)
    y = net.node("Mul", net.node("Cast", sums, to=TensorProto.FLOAT), scale)
    found = refusals(net.model(y), precision="keep")
    for node in (codes, sums):
        assert found[node].reason.startswith("it rounds within, or its scales are computed")


def test_pairs_beside_no_product() -> None:
    net = Net({"x": (4, 8)})
    y = net.node("Softmax", pair(net, net.node("Softmax", pair(net, "x"))))
    rows = reported(net.model(y), precision="keep").refusals
    assert [(row.op, row.reason.partition(": ")[2]) for row in rows] == [
        ("QuantizeLinear", "behind an input of the graph"),
        ("DequantizeLinear", "in front of Softmax"),
        ("QuantizeLinear", "behind Softmax"),
        ("DequantizeLinear", "in front of Softmax"),
    ]


def test_a_node_that_is_to_stay_says_so() -> None:
    model = stored.graph("cnn.modelopt.int8")
    found = refusals(model, precision="keep", skip_nodes=("conv0",))
    assert "--skip-node" in found["conv0"].reason
    assert found["conv3"].reason.startswith(NO_KERNEL)


def test_a_product_in_a_body_names_its_place() -> None:
    net = Net({"x": (4, 8), "c": ()}, types={"c": TensorProto.BOOL})
    product = net.node("MatMul", pair(net, "x"), weight(net, (8, 6)))
    nodes, net.nodes = net.nodes, []
    then = helper.make_graph(nodes, "then", [], [_value(product)])
    other = net.normal(4, 6)
    otherwise = helper.make_graph(
        [helper.make_node("Identity", [other], ["same"], "same")], "else", [], [_value("same")]
    )
    y = net.node("If", "c", then_branch=then, else_branch=otherwise)
    (row,) = [r for r in reported(net.model(y), precision="keep").refusals if r.op == "MatMul"]
    assert row.reason.startswith(NO_KERNEL)
    assert row.body


def _value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 6])
