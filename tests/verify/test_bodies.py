"""Faults planted in the bodies of control flow: verification finds each of them, in the body."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, numpy_helper

from onnxbolt.graph.inlining import with_inner
from onnxbolt.pipeline import optimize
from onnxbolt.verify import verify
from onnxbolt.verify.result import VerifyResult
from tests.e2e.bodies import in_branches, in_loop, in_scan
from tests.support import Net


def _network() -> ModelProto:
    net = Net({"x": (4, 64)})
    return net.model(net.linear(net.node("Relu", net.linear("x", 64, 96)), 96, 32))


def _recurrent(declared: bool = True) -> ModelProto:
    """A Loop that begins with zeros: state = tanh(x w + state v + b)."""
    text = """<ir_version: 8, opset_import: ["": 17]>
      recurrent (float[4,64] x, float[4,64] zeros) => (float[4,64] y) {
        y = Loop (count, yes, zeros) <body = step (int64 i, bool go, float[4,64] state)
          => (bool goes, float[4,64] next)
          { a = MatMul(x, w) c = MatMul(state, v) s = Add(a, c) r = Add(s, b) next = Tanh(r)
            goes = Identity(go) }> }"""
    model = onnx.parser.parse_model(text)
    model.graph.node[0].name = "loop"
    rng = np.random.default_rng(0)
    for name, values in {
        "count": np.array(5),
        "yes": np.array(True),
        "zeros": np.zeros((4, 64), np.float32),
        "w": (rng.standard_normal((64, 64)) / 8).astype(np.float32),
        "v": (rng.standard_normal((64, 64)) / 8).astype(np.float32),
        "b": rng.standard_normal(64).astype(np.float32),
    }.items():
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    del model.graph.input[1]
    return model


def _optimized(model: ModelProto, path: Path, precision: str = "fp16") -> ModelProto:
    optimize(
        model, path, precision=precision, fuse="all", library=False, archs=("sm_90a",), verify=False
    )
    return onnx.load(path)


def _double(model: ModelProto, node: NodeProto, index: int) -> None:
    """Give a node another weight, which is twice as large."""
    (weight,) = (t for t in model.graph.initializer if t.name == node.input[index])
    values = numpy_helper.to_array(weight)
    double = (values + values).astype(values.dtype)
    model.graph.initializer.append(numpy_helper.from_array(double, f"{weight.name}_wrong"))
    node.input[index] = f"{weight.name}_wrong"


def _fused(model: ModelProto) -> list[NodeProto]:
    nodes = with_inner(model.graph.node)
    return [node for node in nodes if node.op_type.startswith("FusedGemm")]


def _failures(found: VerifyResult) -> set[tuple[str, str]]:
    return {(row.level, row.body) for row in found.failures}


@pytest.mark.parametrize(
    ("form", "place"),
    [
        (in_branches, "else_branch of If if"),
        (in_loop, "body of Loop loop"),
        (in_scan, "body of Scan scan"),
        (lambda m: in_loop(in_branches(m)), "else_branch of If if_loop, in body of Loop loop"),
    ],
)
@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
def test_a_wrong_weight(
    form: Callable[[ModelProto], ModelProto], place: str, precision: str, tmp_path: Path
) -> None:
    model = form(_network())
    wrong = _optimized(model, tmp_path / "out.onnx", precision)
    assert verify(model, wrong).passed
    _double(wrong, _fused(wrong)[0], 1)
    assert ("segment", place) in _failures(verify(model, wrong))


def test_a_branch_that_the_inputs_do_not_choose(tmp_path: Path) -> None:
    model = in_branches(_network())
    wrong = _optimized(model, tmp_path / "out.onnx")
    places = []
    for node in wrong.graph.node[-1].attribute:
        for inner in node.g.node:
            if inner.op_type.startswith("FusedGemm"):
                _double(wrong, inner, 1)
                places.append(f"{node.name} of If if")
                break
    found = verify(model, wrong)
    assert {place for level, place in _failures(found) if level == "segment"} == set(places)
    assert len(set(places)) == 2


def test_a_loop_that_begins_with_zeros(tmp_path: Path) -> None:
    """The weight of the state counts from the second iteration on."""
    model = _recurrent()
    wrong = _optimized(model, tmp_path / "out.onnx")
    assert verify(model, wrong).passed
    states = [node for node in _fused(wrong) if "MatMul_c" in str(node) or "state" in str(node)]
    assert states
    _double(wrong, states[0], 1)
    assert ("segment", "body of Loop loop") in _failures(verify(model, wrong))


def test_a_body_that_does_not_run_on_what_it_reads(tmp_path: Path) -> None:
    """A branch for another shape than the inputs': a note says that it was not compared."""
    net = Net({"x": ("n", 64)})
    y = net.node("Relu", net.linear("x", 64, 32))
    model = in_branches(net.model(y))
    (other,) = (a.g for a in model.graph.node[-1].attribute if a.name == "else_branch")
    shape = numpy_helper.from_array(np.array([7, 64]), "seven")
    other.initializer.append(shape)
    other.node.insert(0, onnx.helper.make_node("Reshape", ["x", "seven"], ["x_seven"]))
    for node in list(other.node)[1:]:
        node.input[:] = ["x_seven" if name == "x" else name for name in node.input]
    result = _optimized(model, tmp_path / "out.onnx")
    inputs = tmp_path / "x.npz"
    np.savez(inputs, x=np.ones((4, 64), np.float32), choose=np.array(True))
    found = verify(model, result, inputs=inputs)
    assert found.passed
    assert any("else_branch of If if: not compared by itself" in note for note in found.notes)
    assert {row.body for row in found.rows} == {"", "then_branch of If if"}


def test_a_body_that_is_gone(tmp_path: Path) -> None:
    model = in_branches(_network())
    result = _optimized(model, tmp_path / "out.onnx")
    result.graph.node[-1].output[0] = "renamed"
    result.graph.node.append(
        onnx.helper.make_node("Identity", ["renamed"], [model.graph.output[0].name])
    )
    found = verify(model, result)
    assert any("the optimized model has no such body" in note for note in found.notes)


def test_a_branch_that_the_inputs_do_not_fit(tmp_path: Path) -> None:
    """At these sizes the branch that is not taken is no valid graph; ONNX Runtime refuses it if it
    knows them before the run."""
    text = """<ir_version: 8, opset_import: ["": 17]>
      conditional (float[n,4,m] x, bool all) => (float[n,64,m] y) {
        axes = Constant <value = int64[1] {2}> ()
        z = If (all) <
          then_branch = every () => (float[n,64,m] every_z) { every_z = Conv(x, v) },
          else_branch = last () => (float[n,64,m] last_z) {
            row = Squeeze(x, axes) column = Unsqueeze(row, axes) last_z = Conv(column, v) }>
        y = Conv(z, w) }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("v", (64, 4, 1)), ("w", (64, 64, 1))):
        values = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, x=rng.standard_normal((2, 4, 8)).astype(np.float32), all=np.array(True))
    result = verify(model, _optimized(model, tmp_path / "out.onnx"), inputs=inputs)
    assert result.passed, result.text()
    assert {"y", "z"} <= {row.name.removesuffix("__nhwc") for row in result.at("segment")}
    assert any("else_branch of If z: not compared by itself" in note for note in result.notes)
