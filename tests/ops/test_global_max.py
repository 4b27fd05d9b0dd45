"""An op of an extension takes the place of ordinary nodes whose images are stored as NHWC."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import onnxbolt
from onnxbolt.errors import InputError
from onnxbolt.extensions import Extension, register
from onnxbolt.library import manifest_of_model
from onnxbolt.ops.base import FusedOp
from tests.extending import extended_by
from tests.ops.global_max import EXTENSION
from tests.support import Net


def _source() -> onnx.ModelProto:
    """A pooling of images of open sizes; for known ones there is a kernel (max_form.py)."""
    net = Net({"x": (2, 8, "h", "w")})
    y = net.node("GlobalMaxPool", net.node("Relu", net.conv("x", 8, 16, 3)))
    return net.model(net.conv(y, 16, 8))


def _optimized(out: Path) -> list[str]:
    """The op types of the model's nodes."""
    report = onnxbolt.optimize(
        _source(), out, archs="sm_80", precision="fp16", fuse="all", library=False
    )
    assert report.passed
    return [node.op_type for node in onnx.load(out).graph.node]


def test_it_takes_the_place_of_ordinary_nodes(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    with extended_by(EXTENSION):
        assert "GlobalMaxPool_nhwc_f16" in _optimized(out)
        manifest = manifest_of_model(onnx.load(out))
    assert {op.kind for op in manifest.ops} >= {"conv", "global_max_pool"}
    assert manifest.extensions == ("maxima",)


def test_without_it_onnx_runtime_reduces(tmp_path: Path) -> None:
    types = _optimized(tmp_path / "out.onnx")
    assert "ReduceMax" in types
    assert not any("GlobalMaxPool" in each for each in types)


class _AnotherMaxPool(FusedOp):
    """An op that would take nodes of the package's."""

    name, op_type, operators = "other_max", "OtherMax", ("MaxPool",)


def test_one_op_takes_the_place_of_an_operators_nodes() -> None:
    message = "its fused op other_max takes the place of MaxPool, and so does onnxbolt's own"
    with pytest.raises(InputError, match=message):
        register(Extension(name="others", ops=(_AnotherMaxPool(),)))
