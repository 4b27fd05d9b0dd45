"""In bf16, convolutions that are not fused run in fp32: ONNX Runtime has no bf16 kernels for
them."""

from __future__ import annotations

from pathlib import Path

import onnx

import onnxbolt
from tests.support import Net, ops


def test_unfused_convolutions_and_poolings_go_back_to_fp32(tmp_path: Path) -> None:
    net = Net({"x": (8, 64, 56, 56)})
    y = net.node("Softmax", net.conv(net.node("Softmax", "x", axis=1), 64, 64), axis=1)
    path = tmp_path / "out.onnx"
    source = net.model(net.node("MaxPool", y, kernel_shape=[2, 2]))
    report = onnxbolt.optimize(source, path, precision="bf16", archs=("sm_90a",), library=False)
    model = onnx.load(path)
    # raises where a type is not allowed
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    assert ops(inferred).count("Conv") == 1
    assert {kept.op for kept in report.kept} >= {"Conv", "MaxPool"}
