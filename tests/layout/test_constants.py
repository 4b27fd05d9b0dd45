"""Constants with the shape of an image, which a convolution's epilogue adds: they are stored as
the result is, and nothing converts them at run time."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import onnxbolt
from tests.support import Net

BATCH, SIZE = 2, 8


@pytest.mark.parametrize("precision", ["keep", "fp16"])
@pytest.mark.parametrize(("axes", "channels"), [(1, 32), (1, 20), (2, 32), (2, 20), (3, 32)])
def test_a_constant_is_added_as_it_lies(
    axes: int, channels: int, precision: str, tmp_path: Path
) -> None:
    """Also where its channels are padded."""
    image = (BATCH, channels, *[SIZE] * axes)
    kernel = (channels, channels, *[3] * axes)
    net = Net({"x": image})

    def convolved(x: str) -> str:
        return net.node("Conv", x, net.normal(*kernel, scale=0.05), pads=[1] * 2 * axes)

    values = net.node("Relu", net.node("Add", convolved("x"), net.normal(*image)))
    source, out = net.model(convolved(values)), tmp_path / "out.onnx"
    report = onnxbolt.optimize(
        source, out, archs="sm_90a", precision=precision, fuse="all", library=False
    )
    assert report.passed
    assert "_Add_" in report.fused[0].op
    read = [node.input[0] for node in onnx.load(out).graph.node if "ToNhwc" in node.op_type]
    assert read == ["x"]
