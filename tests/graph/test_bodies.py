from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from onnxbolt.canonicalize.known_conditions import resolved
from onnxbolt.graph.bodies import Body, Changed, Value, bodies_of, import_within, placed, put_back
from onnxbolt.graph.exporter import export_model
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer

Shape = Sequence[int | str | None] | None


def _parsed(signature: str, body: str) -> ModelProto:
    """A model in ONNX's notation, with a constant w [8, 8] that it may read."""
    text = f'<ir_version: 8, opset_import: ["": 18]> graph {signature} {{ {body} }}'
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model


def _value(name: str, shape: Shape = None, kind: int = TensorProto.FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _found(model: ModelProto) -> tuple[gs.Graph, list[Body], list[str]]:
    graph = import_model(model)
    infer(graph)
    bodies, left = bodies_of(graph)
    return graph, bodies, [f"{each.place}: {each.reason}" for each in left]


def _shapes(body: Body) -> dict[str, list[int | str]]:
    return {
        value.name: [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.HasField("shape")
        else ["no rank"]
        for value in body.model.graph.input
    }


def _loop(
    operators: Sequence[tuple[str, list[str], list[str]]],
    states: dict[str, tuple[Shape, Shape]],
    rows: int | str = "n",
) -> ModelProto:
    """A loop over `states`: their shapes in the graph around, and as the body declares them; s
    becomes `s_next`. Around it are x [rows, 8] and the constant w [8, 8]."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["goes"])]
        + [helper.make_node(*operator) for operator in operators],
        "body",
        [
            _value("i", [], TensorProto.INT64),
            _value("go", [], TensorProto.BOOL),
            *(_value(name, declared) for name, (_, declared) in states.items()),
        ],
        [_value("goes", [], TensorProto.BOOL), *(_value(f"{name}_next") for name in states)],
    )
    graph = helper.make_graph(
        [
            helper.make_node(
                "Loop",
                ["count", "", *(f"{name}_first" for name in states)],
                [f"{name}_last" for name in states],
                name="loop",
                body=body,
            )
        ],
        "graph",
        [_value("x", [rows, 8]), *(_value(f"{name}_first", s) for name, (s, _) in states.items())],
        [_value(f"{name}_last", shape) for name, (shape, _) in states.items()],
        [
            numpy_helper.from_array(np.array(3), "count"),
            numpy_helper.from_array(np.ones((8, 8), np.float32), "w"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


PRODUCT = ("MatMul", ["s", "w"], ["s_next"])


def test_a_loop_s_body() -> None:
    _, (body,), left = _found(_loop([PRODUCT], {"s": ((4, 8), None)}))
    assert not left
    assert (body.place, body.owner, body.attribute) == ("body of Loop loop", "s_last", "body")
    assert body.inputs == ("i", "go", "s")
    assert set(body.constants) == {"w"}
    assert body.values == {"i": Value(), "go": Value(), "s": Value("s_first")}
    assert body.states == {"go": "goes", "s": "s_next"}
    assert _shapes(body) == {"i": [], "go": [], "s": [4, 8]}


@pytest.mark.parametrize(
    ("operators", "around", "declared", "expected"),
    [
        ([PRODUCT], (4, 8), None, [4, 8]),
        ([PRODUCT], ("n", 8), None, ["n", 8]),
        ([PRODUCT], (4, 8), ("rows", 8), [4, 8]),
        ([PRODUCT], None, None, ["no rank"]),
        ([("Concat", ["s", "x"], ["s_next"])], (4, 8), None, ["", 8]),
        ([("Concat", ["s", "x"], ["s_next"])], (4, 8), (4, 8), [4, 8]),
        ([("Add", ["s", "x"], ["s_next"])], (1, 8), None, ["", 8]),
        ([("Add", ["s", "x"], ["s_next"])], ("n", 8), None, ["n", 8]),
        ([("Unsqueeze", ["s", "i"], ["s_next"])], (4, 8), None, ["no rank"]),
        ([("Transpose", ["s"], ["s_next"])], (4, 8), None, ["", ""]),
        ([("Transpose", ["s"], ["s_next"])], (8, 8), None, [8, 8]),
    ],
)
def test_sizes_that_a_state_keeps(
    operators: Sequence[tuple[str, list[str], list[str]]],
    around: Shape,
    declared: Shape,
    expected: list[int | str],
) -> None:
    """A declared size counts unless inference contradicts it: n + 4 rows are any number."""
    attributes = {"Concat": {"axis": 0}, "Unsqueeze": {}}
    model = _loop(operators, {"s": (around, declared)})
    node = model.graph.node[0].attribute[0].g.node[1]
    for name, value in attributes.get(node.op_type, {}).items():
        node.attribute.append(helper.make_attribute(name, value))
    _, (body,), _ = _found(model)
    assert _shapes(body)["s"] == expected


def test_states_that_follow_each_other() -> None:
    """Exchanged states have the sizes that both have."""
    swap = [("Identity", ["a"], ["b_next"]), ("Identity", ["b"], ["a_next"])]
    _, (body,), _ = _found(_loop(swap, {"a": ((4, 8), None), "b": ((5, 8), None)}))
    assert [_shapes(body)[name] for name in "ab"] == [["", 8], ["", 8]]


def _scan() -> ModelProto:
    body = """z = Scan <num_scan_inputs = 2, scan_input_axes = [1, -1],
      scan_input_directions = [0, 1], body = step (float[n,8] s, float[n,8] a, float[n,8] b)
      => (float[n,8] t, float[n,8] u)
      { m = MatMul(a, w) t = Add(m, s) u = Mul(t, b) }>(first, p, q)"""
    model = _parsed(
        "(float[n,8] first, float[n,5,8] p, float[n,8,5] q) => (float[n,8] last, float[5,n,8] z)",
        body.replace("z =", "last, z ="),
    )
    for value in model.graph.node[0].attribute[-1].g.input:
        value.type.tensor_type.ClearField("shape")
    return model


def test_a_scan_s_body() -> None:
    _, (body,), left = _found(_scan())
    assert not left
    assert body.values == {
        "s": Value("first"),
        "a": Value("p", 1),
        "b": Value("q", -1, reverse=True),
    }
    assert _shapes(body) == {"s": ["n", 8], "a": ["n", 8], "b": ["n", 8]}
    assert body.states == {"s": "t"}


def _branches(other: str = "x") -> ModelProto:
    """Both branches of an If multiply x by the weight w."""
    branches = ", ".join(
        f"{name}_branch = {name} () => (float[4,8] {name}) {{ {name}_m = MatMul({x}, w)"
        f" {name} = {op}({name}_m) }}"
        for name, x, op in (("then", "x", "Relu"), ("else", other, "Tanh"))
    )
    return _parsed("(float[4,8] x, bool c) => (float[4,8] y)", f"y = If(c) <{branches}>")


def test_branches_of_an_if() -> None:
    _, (then, other), left = _found(_branches())
    assert not left
    assert [then.place, other.place] == ["then_branch of If y", "else_branch of If y"]
    assert then.values == other.values == {"x": Value("x")}
    assert (then.inputs, then.states) == ((), {})
    assert placed(("body of Loop l", then.place)) == "then_branch of If y, in body of Loop l"
    assert placed(()) == ""


def test_what_is_no_model_of_its_own() -> None:
    """A type that nothing tells, and operators of other kinds."""
    model = _branches(other="strange")
    model.graph.node.insert(0, helper.make_node("Strange", ["x"], ["strange"], domain="other"))
    model.opset_import.append(helper.make_opsetid("other", 1))
    _, (body,), left = _found(model)
    assert body.attribute == "then_branch"
    assert left == ["else_branch of If y: the type of a tensor that it reads is not known: strange"]
    mapped = _parsed(
        "(seq(float[4]) x) => (seq(float[4]) y)",
        "y = SequenceMap(x) <body = b (float[4] a) => (float[4] b) { b = Relu(a) }>",
    )
    _, bodies, left = _found(mapped)
    assert not bodies
    assert left == ["body of SequenceMap y: only bodies of If, Loop and Scan are optimized"]


def test_untouched_bodies_go_back_as_they_were() -> None:
    for model in (_branches(), _scan(), _loop([PRODUCT], {"s": ((4, 8), None)})):
        graph, bodies, _ = _found(model)
        put_back(graph, [Changed(body, import_within(body.model, graph)) for body in bodies])
        result = export_model(graph)
        onnx.checker.check_model(result)
        assert [t.name for t in result.graph.initializer] == [
            t.name for t in model.graph.initializer
        ]
        for before, after in zip(_graphs(model), _graphs(result), strict=True):
            assert list(before.node) == list(after.node)
            assert not after.initializer
            assert [v.name for v in before.input] == [v.name for v in after.input]


def _graphs(model: ModelProto) -> list[onnx.GraphProto]:
    return [attribute.g for attribute in model.graph.node[0].attribute if attribute.HasField("g")]


def test_new_constants_lie_around_and_equal_ones_once() -> None:
    """Both branches change w: in the same way, and in different ones."""
    for factors, count in (((2, 2), 1), ((2, 3), 2), ((1, 2), 2)):
        graph, bodies, _ = _found(_branches())
        inner = [import_within(body.model, graph) for body in bodies]
        for own, factor in zip(inner, factors, strict=True):
            if factor > 1:
                own.constants["w"].values = factor * own.constants["w"].values
        put_back(graph, list(map(Changed, bodies, inner)))
        result = export_model(graph)
        onnx.checker.check_model(result, full_check=True)
        values = {t.name: numpy_helper.to_array(t) for t in result.graph.initializer}
        read = [own.node[0].input[1] for own in _graphs(result)]
        assert len(values) == len(set(read)) == count
        assert ("w" in values) == (1 in factors)
        weight = numpy_helper.to_array(_branches().graph.initializer[0])
        for name, factor in zip(read, factors, strict=True):
            np.testing.assert_array_equal(values[name], factor * weight)


def test_a_branch_that_is_chosen_before_keeps_its_constants() -> None:
    """Both bodies have an If with a known condition, whose branches have equal constants."""
    branches = ", ".join(
        f"{name}_branch = {name} () => (float[4,8] {name}_out) {{"
        f" {name}_true = Constant <value = bool {{1}}> ()"
        f" {name}_out = If({name}_true) <"
        f"then_branch = {name}_a () => (float[4,8] {name}_sum) {{"
        f" {name}_one = Constant <value = float[1] {{1.0}}> () {name}_sum = Add(x, {name}_one) }},"
        f"else_branch = {name}_b () => (float[4,8] {name}_same) {{ {name}_same = Identity(x) }}> }}"
        for name in ("then", "else")
    )
    model = _parsed("(float[4,8] x, bool c) => (float[4,8] y)", f"y = If(c) <{branches}>")
    graph, bodies, _ = _found(model)
    inner = [import_within(resolved(body.model)[0], graph) for body in bodies]
    assert [node.op for own in inner for node in own.nodes] == ["Add", "Add"]
    put_back(graph, list(map(Changed, bodies, inner)))
    result = export_model(graph)
    assert not [tensor.name for tensor in result.graph.initializer if tensor.name != "w"]
    assert [node.op_type for node in result.graph.node] == ["If"]
    session = ort.InferenceSession(result.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    for condition in (True, False):
        np.testing.assert_array_equal(
            session.run(None, {"x": x, "c": np.array(condition)})[0], x + 1
        )
