"""Functions of a model: chains go on through their calls, and the tensors that they are compared
by are found again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, numpy_helper, parser

from onnxbolt import optimize
from onnxbolt.graph.inlining import calls, inlined, left
from onnxbolt.verify import verify
from tests.graph.planted import everything
from tests.support import ops


def block(opset: int = 17, domain: str = "net") -> ModelProto:
    """A convolution and its activation, each in a function of its own."""
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "{domain}": 1]>
        g (float[2,8,9,9] x) => (float[2,8,7,7] y) {{ y = {domain}.layer(x, w) }}
        <domain: "{domain}", opset_import: ["": {opset}, "{domain}": 1]>
        layer (x, w) => (y) {{ c = Conv(x, w) y = {domain}.act<a=0.3>(c) }}
        <domain: "{domain}", opset_import: ["": {opset}]>
        act<a: float = 0.1>(x) => (y) {{ y = LeakyRelu<alpha: float = @a>(x) }}"""
    )
    weight = np.random.default_rng(0).standard_normal((8, 8, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model


def test_chains_go_on_through_calls(tmp_path: Path) -> None:
    model, out = block(), tmp_path / "out.onnx"
    report = optimize(model, out, archs=("sm_90a",), precision="keep", fuse="all", library=False)
    assert [op.split("_")[:3] for op in ops(onnx.load(out)) if op.startswith("FusedConv")] == [
        ["FusedConv", "LeakyRelu", "f32"]
    ]
    assert report.passed
    assert verify(model, out).passed
    # the caller's model is as it was
    assert [function.domain for function in model.functions] == ["net", "net"]


def test_calls_leave_attributes_to_their_functions_defaults(tmp_path: Path) -> None:
    """Also calls within functions, and within branches."""
    model = block()
    (call,) = [node for node in model.functions[0].node if node.op_type == "act"]
    del call.attribute[:]
    slopes = [
        a.f
        for node in inlined(model).graph.node
        if node.op_type == "LeakyRelu"
        for a in node.attribute
    ]
    assert slopes == [pytest.approx(0.1)]
    out = tmp_path / "out.onnx"
    optimize(model, out, archs=("sm_90a",), precision="keep", fuse="all", library=False)
    x = {"x": np.random.default_rng(1).standard_normal((2, 8, 9, 9)).astype(np.float32)}
    (expected,), (answer,) = (
        ort.InferenceSession(m, providers=["CPUExecutionProvider"]).run(None, x)
        for m in (model.SerializeToString(), out.read_bytes())
    )
    assert np.allclose(answer, expected, atol=1e-5)


def test_a_function_named_as_a_standard_operator_is_not_what_runs() -> None:
    model = block()
    model.functions[1].domain = ""
    model.functions[1].name = "LeakyRelu"
    model.functions[0].node[1].domain, model.functions[0].node[1].op_type = "", "LeakyRelu"
    assert [function.name for function in model.functions if function not in calls(model)] == [
        "LeakyRelu"
    ]


def test_functions_of_another_opset_are_reported(tmp_path: Path) -> None:
    model = block(opset=16)
    assert inlined(model) is model
    report = optimize(
        model, tmp_path / "out.onnx", archs=("sm_90a",), precision="keep", library=False
    )
    assert report.passed
    assert any("act, layer" in line for line in report.changes)


@pytest.mark.parametrize("domain", ["com.microsoft", "com.onnxbolt"])
def test_functions_that_have_kernels_stay(domain: str) -> None:
    model = block(domain=domain)
    assert inlined(model) is model
    assert left(model) == []


def test_everything_else_stays() -> None:
    model = everything()
    result = inlined(model)
    assert "Twice" not in ops(result)
    del result.graph.node[:], model.graph.node[:], model.functions[:]
    assert sorted(field.name for field, _ in result.ListFields()) == sorted(
        field.name for field, _ in model.ListFields()
    )
    assert result.graph.initializer == model.graph.initializer
    assert result.graph.sparse_initializer == model.graph.sparse_initializer
    assert result.training_info == model.training_info


def test_new_names_are_not_those_of_initializers_that_nobody_reads() -> None:
    model = block()
    model.graph.initializer.extend(
        numpy_helper.from_array(np.ones(3, np.float32), f"c__{i}") for i in range(4)
    )
    result = inlined(model)
    assert not {t.name for t in result.graph.initializer} & {
        name for node in result.graph.node for name in node.output
    }
    assert result.graph.initializer == model.graph.initializer
