from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

import onnxbolt
from onnxbolt.canonicalize.known_conditions import resolved
from onnxbolt.verify import verify
from tests.canonicalize.compare import outputs_of

_LINE = "known_conditions: {} (Ifs replaced by the branch that they always take)"


def _branch(factor: float, result: str = "y", initializer: bool = False) -> GraphProto:
    """x times a matrix, then ReLU; both branches use the same names."""
    weight = np.random.default_rng(int(factor)).standard_normal((64, 64)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Relu", ["h"], [result], name="activation"),
    ]
    tensor = numpy_helper.from_array(factor * weight, "w")
    if not initializer:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], value=tensor))
    return helper.make_graph(
        nodes,
        "branch",
        [],
        [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)],
        [tensor] if initializer else [],
    )


def _model(*conditions: str, rows: int | str = 4, opset: int = 17) -> ModelProto:
    """Ifs one behind another, with conditions from `true`, `false` (constants), `four` (whether x
    has four rows), `columns` (whether it has 64 columns) and `asked` (an input)."""
    nodes = [
        helper.make_node("Shape", ["input"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Gather", ["shape", "one"], ["width"]),
        helper.make_node("Equal", ["rows", "number"], ["four"]),
        helper.make_node("Equal", ["width", "size"], ["columns"]),
        helper.make_node("Identity", ["input"], ["x"]),
    ]
    for i, condition in enumerate(conditions):
        branches = (_branch(1, initializer=bool(i % 2)), _branch(2))
        for branch in branches:
            for node in branch.node:
                node.input[:] = [f"x{i}" if name == "x" and i else name for name in node.input]
        named = {"then_branch": branches[0], "else_branch": branches[1]}
        nodes.append(helper.make_node("If", [condition], [f"x{i + 1}"], name=f"if{i}", **named))
    constants = {
        "zero": np.array(0),
        "one": np.array(1),
        "number": np.array(4),
        "size": np.array(64),
        "true": np.array(True),
        "false": np.array([False]),
    }
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info("input", TensorProto.FLOAT, [rows, 64]),
            helper.make_tensor_value_info("asked", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info(f"x{len(conditions)}", TensorProto.FLOAT, [rows, 64])],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def _answer(model: ModelProto, rows: int = 4) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((rows, 64)).astype(np.float32)
    return session.run(None, {"input": x, "asked": np.array(True)})[0]


@pytest.mark.parametrize("opset", [11, 13, 17, 21])
@pytest.mark.parametrize(
    ("conditions", "rows", "left"),
    [
        (["true"], 4, 0),
        (["false"], 4, 0),
        (["four"], 4, 0),
        (["four"], 5, 0),
        (["four"], "N", 1),
        (["columns"], "N", 0),
        (["asked"], 4, 1),
        (["true", "four", "columns", "false"], 4, 0),
        (["true", "asked", "false", "asked", "true"], "N", 2),
    ],
)
def test_conditions(conditions: list[str], rows: int | str, left: int, opset: int) -> None:
    source = _model(*conditions, rows=rows, opset=opset)
    model, lines = resolved(source)
    onnx.checker.check_model(model, full_check=True)
    assert sum(node.op_type == "If" for node in model.graph.node) == left
    replaced = len(conditions) - left
    assert lines == ([_LINE.format(replaced)] if replaced else [])
    assert (model is source) == (not replaced)
    sizes = [rows] if isinstance(rows, int) else [4, 5]
    for size in sizes:
        np.testing.assert_array_equal(_answer(model, size), _answer(source, size))


def test_branches_that_compute_nothing() -> None:
    """A result may be an initializer of the branch, or an inner tensor of another one."""
    model = _model("true")
    node = model.graph.node[-1]
    node.output[:] = ["x1", "inner", "twice"]
    for branch in (attribute.g for attribute in node.attribute):
        branch.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "three"))
        for name in ("three", "h"):
            branch.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    for name in ("inner", "twice"):
        shape = [1] if name == "inner" else [4, 64]
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    found, _ = resolved(model)
    onnx.checker.check_model(found, full_check=True)
    assert not any(node.op_type == "If" for node in found.graph.node)
    feeds = {"input": np.ones((4, 64), np.float32), "asked": np.array(True)}
    names = [value.name for value in model.graph.output]
    # ONNX Runtime's own replacement of such Ifs fails where one result is computed from another
    answers = (outputs_of(m, names, feeds) for m in (model, found))
    for before, after in zip(*answers, strict=True):
        np.testing.assert_array_equal(before, after)


def test_an_if_inside_a_branch() -> None:
    """Names inside of bodies follow, and what a body reads is known as well."""
    inner = _model("columns").graph.node[-1]
    for attribute in inner.attribute:
        constant, product, activation = attribute.g.node
        constant.output[:] = ["w2"]
        product.input[:], product.output[:] = ["h", "w2"], ["h2"]
        activation.input[:], activation.output[:] = ["h2"], ["z"]
        attribute.g.output[0].name = "z"
    model = _model("true", "asked")
    for branch in (attribute.g for attribute in model.graph.node[-2].attribute):
        branch.node[-1].CopyFrom(inner)
        branch.node[-1].output[:] = ["y"]
    onnx.checker.check_model(model)
    found, lines = resolved(model)
    onnx.checker.check_model(found, full_check=True)
    assert [node.op_type for node in found.graph.node].count("If") == 1
    assert lines == [_LINE.format(2)]
    np.testing.assert_array_equal(_answer(found), _answer(model))


def test_condition_that_a_body_reads() -> None:
    """A tensor of a condition's computation that bodies read is known all the same."""
    model = _model("asked", "four")
    for branch in (attribute.g for attribute in model.graph.node[-2].attribute):
        branch.node.insert(0, helper.make_node("Cast", ["rows"], ["count"], to=TensorProto.FLOAT))
        branch.node.insert(1, helper.make_node("Mul", ["count", "x"], ["scaled"]))
        branch.node[3].input[0] = "scaled"
    found, lines = resolved(model)
    assert lines == [_LINE.format(1)]
    np.testing.assert_array_equal(_answer(found), _answer(model))


@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
def test_what_a_branch_computes_is_fused(precision: str, tmp_path: object) -> None:
    model = _model("true", "four")
    path = f"{tmp_path}/out.onnx"
    report = onnxbolt.optimize(
        model, path, precision=precision, fuse="all", archs=("sm_90a",), library=False
    )
    assert report.passed
    assert report.coverage == 1
    assert _LINE.format(2) in report.changes
    found = verify(model, onnx.load(path))
    assert found.passed
    assert {row.level for row in found.rows} == {"model", "segment", "node"}


def test_the_original_is_what_is_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """A branch that was chosen wrongly is found, since whole models are compared as given."""
    model = _model("true")
    monkeypatch.setattr(
        "onnxbolt.canonicalize.known_conditions._BRANCHES", ("then_branch", "else_branch")
    )
    with pytest.raises(onnxbolt.AccuracyError) as caught:
        onnxbolt.optimize(model, f"{tmp_path}/out.onnx", archs=("sm_90a",), library=False)
    found = caught.value.report.verification
    assert found is not None
    assert [row.level for row in found.failures] == ["model"]
