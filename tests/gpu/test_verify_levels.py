"""Segments and nodes on a GPU: right kernels pass with limits for each element, and a fault in
operands is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from onnxbolt.graph.importer import load_model
from onnxbolt.pipeline import optimize
from onnxbolt.runtime import get_library_path
from onnxbolt.verify import verify
from onnxbolt.verify.session import CUDA
from tests.support import Net
from tests.verify.test_body_faults import subject

pytestmark = pytest.mark.gpu


def mlp() -> ModelProto:
    """Products that one kernel computes, and activations that it approximates."""
    net = Net({"x": (256, 64)})
    a = net.node("Relu", net.linear("x", 64, 128))
    b = net.node("Mul", c := net.linear(a, 128, 64), net.node("Sigmoid", c))
    return net.model(net.node("Softplus", net.linear(b, 64, 32)))


@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
@pytest.mark.parametrize("build", [subject, mlp], ids=["convolutions", "products"])
def test_kernels_stay_within_their_limits(build: object, precision: str, tmp_path: Path) -> None:
    source, out = build(), tmp_path / "out.onnx"  # type: ignore[operator]
    optimize(source, out, precision=precision, fuse="all", verify=False)
    result = verify(source, out, providers=[CUDA])
    assert result.passed, result.text()
    assert result.verdict.startswith("PASSED: kernels on")
    fused = sum(node.domain == "com.onnxbolt" for node in onnx.load(out).graph.node)
    assert len(result.at("node")) >= fused
    assert max(row.error for row in result.at("node")) > 1e-3  # limits are not idle


def test_a_wrong_weight_is_found_by_segment_alone(tmp_path: Path) -> None:
    """The kernel is right about what it was given."""
    source, out = subject(), tmp_path / "out.onnx"
    optimize(source, out, fuse="all", verify=False)
    model = load_model(out)
    node = next(
        node for node in model.graph.node if node.op_type.startswith("FusedConv_Bias_HardSwish")
    )
    tensor = next(t for t in model.graph.initializer if t.name == node.input[1])
    values = numpy_helper.to_array(tensor).copy()
    values[[3, 4]] = values[[4, 3]]
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), tensor.name))
    failures = verify(source, model, library=get_library_path(out), providers=[CUDA]).failures
    assert {row.node for row in failures if row.level == "segment"} == {node.name}
    assert not [row for row in failures if row.level == "node"]
