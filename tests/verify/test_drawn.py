"""Models that draw tensors at random: these are not compared, and all that is computed of them
is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import onnxbolt
from onnxbolt.graph.drawn import drawn
from onnxbolt.verify import verify
from tests.support import Net

WIDTH = 64


def _source(op: str) -> onnx.ModelProto:
    """A variational autoencoder's sample between two products."""
    net = Net({"x": (2, 32, WIDTH)})
    both = net.node("MatMul", "x", net.normal(WIDTH, 2 * WIDTH, scale=0.1))
    sizes = net.const([WIDTH, WIDTH], np.int64)
    mean, deviation = net.several("Split", both, sizes, outputs=2, axis=-1)
    noise = net.node(op, mean)
    sample = net.node("Add", mean, net.node("Mul", net.node("Exp", deviation), noise))
    return net.model(net.node("MatMul", sample, net.normal(WIDTH, WIDTH, scale=0.1)))


@pytest.mark.parametrize("precision", ["keep", "fp16", "bf16"])
@pytest.mark.parametrize("op", ["RandomNormalLike", "RandomUniformLike"])
def test_what_is_drawn_at_random_raises_no_alarm(op: str, precision: str, tmp_path: Path) -> None:
    report = onnxbolt.optimize(
        _source(op), tmp_path / "out.onnx", archs="sm_90a", precision=precision, library=False
    )
    found = report.verification
    assert found is not None
    assert found.passed
    assert [row.unjudged for row in found.at("model")] == [
        "the model draws at random what it depends on"
    ]
    assert [row for row in found.at("segment") if row.passed]
    assert any("draws them at random" in note for note in found.notes) == (precision != "keep")


def test_bodies_draw_for_their_nodes() -> None:
    body = "g () => (float[4] y) { y = RandomNormal<shape = [4]>() }"
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    agraph (bool c, float[4] x) => (float[4] out)
    {{
      drawn = If(c) <then_branch = {body}, else_branch = {body}>
      out = Add(x, drawn)
    }}"""
    assert drawn(onnx.parser.parse_model(text)) == {"drawn"}


def test_a_fault_beside_it_is_found(tmp_path: Path) -> None:
    source, out = _source("RandomNormalLike"), tmp_path / "out.onnx"
    onnxbolt.optimize(source, out, archs="sm_90a", precision="fp16", fuse="all", library=False)
    model = onnx.load(out)
    weight = next(t for t in model.graph.initializer if len(t.dims) == 2)
    values = numpy_helper.to_array(weight).copy()
    values[0] += 1
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    assert not verify(source, model).passed
