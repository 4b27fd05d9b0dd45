"""Inspection reads back what the rewriter writes on a fused node."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxbolt
from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError
from onnxbolt.families.base import Schedule
from onnxbolt.families.gemm_2x import Gemm2xConfig
from onnxbolt.families.gemm_3x import Gemm3xConfig
from onnxbolt.families.halo_sm90 import HaloSm90Config
from onnxbolt.inspection import Flops, Inspection, describe, inspect_model
from onnxbolt.opspec import OpSpec, ops_to_json
from tests.support import Net

SM80 = Gemm2xConfig(
    arch=80,
    min_m=1,
    tile=(128, 128, 32),
    warp=(64, 64, 32),
    instruction=(16, 8, 16),
    stages=3,
    swizzle=2,
)
SM90 = Gemm3xConfig(
    arch=90,
    min_m=1,
    max_m=64,
    tile=(128, 128, 64),
    cluster=(2, 1),
    schedule=Schedule.COOPERATIVE,
)


def fused_model(format: int = 1) -> onnx.ModelProto:
    """One FusedGemm of x [batch, 10, 64] and weight [32, 64] before an untouched Relu."""
    fused = helper.make_node(
        "FusedGemm_f16",
        ["x", "w"],
        ["y"],
        name="fc",
        domain="com.onnxbolt",
        format=format,
        configs=SM80.row() + SM90.row(),
        config_source="predicted",
        source_nodes=["fc/MatMul", "fc/Cast"],
        rule="gemm",
        tensor="fc_out",
        layout="",
    )
    body = [
        helper.make_node("Transpose", ["weight"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["y"]),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.onnxbolt", 1)]
    graph = helper.make_graph(
        [fused, helper.make_node("Relu", ["y"], ["z"])],
        "fused",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["batch", 10, 64])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT16, ["batch", 10, 32])],
        [helper.make_tensor("w", TensorProto.FLOAT16, [32, 64], bytes(2 * 32 * 64), raw=True)],
    )
    function = helper.make_function(
        "com.onnxbolt", "FusedGemm_f16", ["x", "weight"], ["y"], body, opsets[:1]
    )
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=8)
    ops = ops_to_json([OpSpec("FusedGemm_f16", "gemm", DType.F16, DType.F16)])
    helper.set_model_props(
        model, {"onnxbolt.precision": "fp16", "onnxbolt.ops": ops, "author": "someone"}
    )
    return model


def test_fused_nodes_are_read_back_whole() -> None:
    inspection = inspect_model(fused_model())
    (node,) = inspection.nodes
    assert inspection.metadata == {"onnxbolt.precision": "fp16"}
    assert node.configs == (SM80, SM90)
    assert node.shape == ("batch", 10, 32)
    assert node.flops == Flops(2 * 10 * 32 * 64, ("batch",))
    assert node.source_nodes == ("fc/MatMul", "fc/Cast")
    assert (node.rule, node.tensor, node.config_source) == ("gemm", "fc_out", "predicted")


def test_flops_of_a_mean_are_those_of_the_convolution_before_it(tmp_path: Path) -> None:
    net = Net({"x": ("N", 64, 14, 14)})
    model = net.model(
        net.node(
            "GlobalAveragePool",
            net.node("Relu", net.conv("x", 64, 256, 3, pads=[1] * 4, strides=[2, 2])),
        )
    )
    onnxbolt.optimize(model, tmp_path / "y.onnx", archs=("sm_90a",), library=False, verify=False)
    node = next(
        node for node in inspect_model(onnx.load(tmp_path / "y.onnx")).nodes if "Mean" in node.rule
    )
    assert (node.shape, node.flops) == (("N", 1, 1, 256), Flops(2 * 7 * 7 * 64 * 9 * 256, ("N",)))


def test_flops_are_those_of_all_layers_and_of_a_node_s_own_channels(tmp_path: Path) -> None:
    net = Net({"x": (32, 64, 56, 56)})
    stored = net.node("Relu", net.conv("x", 64, 256))
    first = net.node("Relu", net.conv(stored, 256, 64))
    joined = net.node(
        "Concat", first, net.node("Relu", net.conv(first, 64, 64, 3, pads=[1] * 4)), axis=1
    )
    model = net.model(net.node("GlobalAveragePool", stored), net.conv(joined, 128, 7))
    report = onnxbolt.optimize(
        model, tmp_path / "fused.onnx", archs=("sm_90a",), fuse="all", library=False, verify=False
    )
    flops = {
        node.op_type: node.flops.count
        for node in inspect_model(onnx.load(tmp_path / "fused.onnx")).nodes
        if node.flops
    }
    assert flops == {node.op: node.flops for node in report.fused if node.flops}
    assert [op.split("f16")[1] for op in flops] == ["_part", "_sliced_into", "_to_nchw"]
    assert "Store_Gemm" in next(iter(flops))


def test_json_names_the_fields_of_a_configuration() -> None:
    (node,) = json.loads(inspect_model(fused_model()).json())["nodes"]
    assert [config["family"] for config in node["configs"]] == ["gemm_2x", "gemm_3x"]
    assert node["configs"][1]["schedule"] == "cooperative"


def test_text_has_a_line_per_configuration() -> None:
    lines = inspect_model(fused_model()).text().splitlines()
    assert any(
        "FusedGemm_f16" in line and describe(SM80) in line and "41 K x batch" in line
        for line in lines
    )
    assert any(describe(SM90) in line for line in lines)


@pytest.mark.parametrize("name", ["[/decoder]", "[dec]/y", "layer:key:0"])
def test_names_are_shown_letter_by_letter(name: str) -> None:
    model = fused_model()
    next(a for a in model.graph.node[0].attribute if a.name == "tensor").s = name.encode()
    helper.set_model_props(model, {"onnxbolt.precision": name})
    text = inspect_model(model).text()
    assert text.startswith(f"onnxbolt.precision: {name}")
    assert f" {name} " in text


def test_unknown_format_is_refused() -> None:
    with pytest.raises(InputError, match="format 7"):
        inspect_model(fused_model(format=7))


@pytest.mark.parametrize(
    ("flops", "text"),
    [(Flops(0), "0"), (Flops(999), "999"), (Flops(4_100_000_000, ("N",)), "4.1 G x N")],
)
def test_flops_are_written_in_thousands(flops: Flops, text: str) -> None:
    assert str(flops) == text


def test_describe_tells_what_differs() -> None:
    assert describe(SM80) == (
        "sm_80 gemm_2x tile 128x128x32 warp 64x64x32 instruction 16x8x16 stages 3 swizzle 2"
    )
    assert describe(SM90) == (
        "sm_90 gemm_3x tile 128x128x64 cluster 2x1 schedule cooperative m 1..64"
    )
    halo = HaloSm90Config(
        arch=90,
        channels=64,
        positions=64,
        k_block=64,
        image_tile=(8, 8, 1),
        schedule=Schedule.PINGPONG,
        consumers=2,
        resident=True,
        access_out=1,
    )
    assert describe(halo) == (
        "sm_90 halo_sm90 channels 64 positions 64 k block 64 image tile 8x8x1 schedule pingpong"
        " consumers 2 resident yes access out 1"
    )


def test_a_plain_model_is_said_to_be_one() -> None:
    plain = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    assert (
        inspect_model(plain).text()
        == "not optimized by onnxbolt: `onnxbolt optimize` writes an optimized model"
    )
    assert "no fused nodes" in Inspection({"onnxbolt.version": "1"}, ()).text()


def test_flops_leave_out_padded_channels(tmp_path: Path) -> None:
    body = (
        "a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) c = Conv<pads=[1,1,1,1]>(b, v) d = Relu(c) y ="
        " Transpose<perm=[0,1,2,3]>(d)"
    )
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2,16,8,8] x) => (float[2,20,8,8] y) {'
        f" {body} }}"
    )
    rng = np.random.default_rng(0)
    for name, shape in (("w", (13, 16, 3, 3)), ("v", (20, 13, 3, 3))):
        model.graph.initializer.append(
            onnx.numpy_helper.from_array((rng.standard_normal(shape) / 12).astype(np.float32), name)
        )
    report = onnxbolt.optimize(
        model, tmp_path / "out.onnx", archs="sm_80", fuse="all", library=False
    )
    counts = [
        node.flops.count
        for node in inspect_model(onnx.load(tmp_path / "out.onnx")).nodes
        if node.flops
    ]
    assert (
        counts
        == [2 * 2 * 64 * 9 * 16 * 13, 2 * 2 * 64 * 9 * 13 * 20]
        == [node.flops for node in report.fused if node.flops]
    )


@pytest.mark.parametrize("field", ["input", "output"])
def test_a_node_that_lacks_what_its_op_type_has_is_one_clear_error(field: str) -> None:
    model = fused_model()
    del getattr(model.graph.node[0], field)[:]
    with pytest.raises(InputError, match="the model's fused nodes are damaged"):
        inspect_model(model)
