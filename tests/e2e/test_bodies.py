"""Bodies of control flow from import to the written file: what lies in them is fused like a main
graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import GraphProto, ModelProto, numpy_helper

import onnxbolt
from onnxbolt.graph.inlining import with_inner
from onnxbolt.graph.scopes import subgraphs
from onnxbolt.inspection import inspect_model
from onnxbolt.ops.functions import DOMAIN
from onnxbolt.verify import verify
from tests.e2e.bodies import in_branches, in_loop, in_scan
from tests.e2e.random_graphs import random_model
from tests.support import Net

Form = Callable[[ModelProto], ModelProto]
OPTIONS: dict[str, Any] = {"library": False, "archs": ("sm_90a",), "fuse": "all"}
FORMS: dict[str, Form] = {
    "if": in_branches,
    "loop": in_loop,
    "scan": in_scan,
    "if in a loop": lambda model: in_loop(in_branches(model)),
    "loop in an if": lambda model: in_branches(in_loop(model)),
    "if in a scan": lambda model: in_scan(in_branches(model)),
}
PLACES = {
    "if": {"then_branch of If if", "else_branch of If if"},
    "loop": {"body of Loop loop"},
    "scan": {"body of Scan scan"},
    "if in a loop": {
        f"{branch}_branch of If if_loop, in body of Loop loop" for branch in ("then", "else")
    },
    "loop in an if": {
        f"body of Loop loop_{branch}, in {branch}_branch of If if" for branch in ("then", "else")
    },
    "if in a scan": {
        f"{branch}_branch of If if_scan, in body of Scan scan" for branch in ("then", "else")
    },
}


def network(batch: int | str = 2, opset: int = 17) -> ModelProto:
    """Convolutions, a residual, a pooling and a product."""
    net = Net({"x": (batch, 16, 8, 8)}, opset=opset)
    a = net.node("Relu", net.conv("x", 16, 32, 3, pads=[1, 1, 1, 1]))
    b = net.node("Add", net.conv(a, 32, 32, 3, pads=[1, 1, 1, 1]), a)
    rows = net.node("Flatten", net.node("GlobalAveragePool", net.node("Relu", b)))
    return net.model(net.linear(rows, 32, 16))


def _answers(model: ModelProto, choose: bool, batch: int = 2) -> list[np.ndarray]:
    """The results of plain ONNX Runtime."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(5)
    feeds = {
        value.name: rng.standard_normal(
            [size if isinstance(size, int) else batch for size in value.shape]
        ).astype(np.float32)
        if value.name != "choose"
        else np.array(choose)
        for value in session.get_inputs()
    }
    return session.run(None, feeds)


@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
@pytest.mark.parametrize("form", FORMS)
def test_all_of_a_body_is_fused(form: str, precision: str, tmp_path: Path) -> None:
    model, path = FORMS[form](network()), tmp_path / "out.onnx"
    report = onnxbolt.optimize(model, path, precision=precision, **OPTIONS)
    assert report.coverage == 1
    assert {node.body for node in report.fused} == PLACES[form]
    assert report.verification is not None
    assert report.verification.judged
    assert {row.body for row in report.verification.rows} >= PLACES[form]
    result = onnx.load(path)
    onnx.checker.check_model(result, full_check=True)
    assert {node.body for node in inspect_model(result).nodes} == PLACES[form]
    if precision != "bf16":  # ONNX Runtime's CPU provider has hardly any kernels for it
        for choose in (True, False):
            for before, after in zip(
                _answers(model, choose), _answers(result, choose), strict=True
            ):
                np.testing.assert_allclose(after, before, rtol=0.02, atol=0.02 * abs(before).max())


@pytest.mark.parametrize("form", FORMS)
def test_sizes_that_are_not_known(form: str, tmp_path: Path) -> None:
    model, path = FORMS[form](network("n")), tmp_path / "out.onnx"
    report = onnxbolt.optimize(model, path, precision="keep", **OPTIONS)
    assert report.passed
    assert report.coverage == 1
    for batch in (1, 5):
        before, after = (_answers(m, True, batch)[-1] for m in (model, onnx.load(path)))
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("opset", [11, 13, 21])
def test_opsets(opset: int, tmp_path: Path) -> None:
    model = in_branches(network(opset=opset))
    report = onnxbolt.optimize(model, tmp_path / "out.onnx", **OPTIONS)
    assert report.passed
    assert report.coverage == 1


def test_weights_that_both_branches_read_are_packed_once(tmp_path: Path) -> None:
    sizes = []
    for number, model in enumerate((network(), in_branches(network()))):
        path = tmp_path / f"{number}.onnx"
        onnxbolt.optimize(model, path, **OPTIONS)
        graph = onnx.load(path).graph
        sizes.append(sorted(list(tensor.dims) for tensor in graph.initializer))
        for node in with_inner(graph.node):
            assert not any(attribute.g.initializer for attribute in node.attribute)
    assert sizes[0] == sizes[1]


def test_large_weights_of_bodies_lie_in_the_main_graph(tmp_path: Path) -> None:
    net = Net({"x": (4, 1024)})
    source, path = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(in_branches(net.model(net.node("Relu", net.linear("x", 1024, 1024)))), source)
    report = onnxbolt.optimize(source, path, save_as_external_data=True, **OPTIONS)
    assert report.passed
    result = onnx.load(path, load_external_data=False)
    assert [tensor.data_location for tensor in result.graph.initializer if tensor.dims[0] > 1000]
    assert verify(source, path).passed
    assert path.stat().st_size < 100_000


def test_nothing_fused_leaves_a_body_as_it_was(tmp_path: Path) -> None:
    net = Net({"x": (4, 8)})
    model = in_loop(net.model(net.node("Exp", net.node("Tanh", "x"))))
    path = tmp_path / "out.onnx"
    report = onnxbolt.optimize(model, path, **OPTIONS)
    assert not report.fused
    assert {kept.op for kept in report.kept} == {"Loop"}
    before, after = (m.graph.node[-1].attribute for m in (model, onnx.load(path)))
    assert list(before) == list(after)


def test_lock_and_dry_run(tmp_path: Path) -> None:
    """A lock file repeats the kernels of bodies; a run that writes nothing tells the same."""
    model, lock = in_loop(in_branches(network())), tmp_path / "onnxbolt.lock"
    paths = [tmp_path / name for name in ("a.onnx", "b.onnx")]
    options = OPTIONS | {"lock": lock, "verify": False}
    first = onnxbolt.optimize(model, paths[0], **options)
    again = onnxbolt.optimize(model, paths[1], frozen=True, **options)
    assert first.fused
    assert paths[0].read_bytes() == paths[1].read_bytes()
    dry = onnxbolt.optimize(model, **OPTIONS, verify=False)
    assert first.fused == again.fused == dry.fused


def test_reports_name_the_place(tmp_path: Path) -> None:
    net = Net({"x": (4, 64)})
    images = net.node("Reshape", "x", net.const([4, 8, 8], np.int64))
    product = net.node("MatMul", images, images)
    model = in_loop(net.model(net.node("Relu", net.linear("x", 64, 64)), product))
    report = onnxbolt.optimize(model, tmp_path / "out.onnx", **OPTIONS)
    place = "body of Loop loop"
    assert [(r.body, r.reason) for r in report.refusals if r.op == "MatMul"] == [
        (place, "both operands are computed at run time")
    ]
    assert f"in {place}" in report.text()
    assert report.markdown().count(f"in {place}") > 3
    assert any(line.endswith(f"({place})") for line in report.changes)
    assert f"in {place}" in inspect_model(onnx.load(tmp_path / "out.onnx")).text()


@pytest.mark.parametrize("seed", range(12))
def test_random_bodies(seed: int, tmp_path: Path) -> None:
    form = list(FORMS.values())[seed % len(FORMS)]
    model = form(random_model(seed))
    report = onnxbolt.optimize(
        model, tmp_path / "out.onnx", precision=["fp16", "bf16", "keep"][seed % 3], **OPTIONS
    )
    assert report.passed


def nested() -> ModelProto:
    """Convolutions of one kind in the main graph, in a branch, and in a branch in that one."""
    layer, image = "Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>", "float[2,16,8,8]"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        net ({image} x, bool choose) => ({image} y) {{
            a = {layer}(x, w) b = Relu(a)
            y = If(choose) <
                then_branch = outer () => ({image} outer_y) {{
                    c = {layer}(b, w) d = Relu(c)
                    outer_y = If(choose) <
                        then_branch = inner () => ({image} inner_y) {{
                            e = {layer}(d, w) inner_y = Relu(e)
                        }},
                        else_branch = kept () => ({image} kept_y) {{ kept_y = Identity(d) }}
                    >
                }},
                else_branch = other () => ({image} other_y) {{
                    f = {layer}(b, w) other_y = Relu(f)
                }}
            >
        }}"""
    )
    weight = np.random.default_rng(0).standard_normal((16, 16, 3, 3)) / 12
    model.graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), "w"))
    return model


@pytest.mark.parametrize("precision", ["fp16", "keep"])
def test_no_body_has_an_op_type_of_a_graph_around_it(precision: str, tmp_path: Path) -> None:
    """ONNX Runtime names the tensors within functions alike in both, and in fp16 it then takes one
    for the other."""
    model, path = nested(), tmp_path / "out.onnx"
    report = onnxbolt.optimize(model, path, precision=precision, **OPTIONS)
    assert report.coverage == 1
    optimized = onnx.load(path)

    def check(graph: GraphProto, around: set[str]) -> None:
        here = {node.op_type for node in graph.node if node.domain == DOMAIN}
        assert here.isdisjoint(around)
        for node in graph.node:
            for attribute in node.attribute:
                for body in subgraphs(attribute):
                    check(body, around | here)

    check(optimized.graph, set())
    for choose in (True, False):
        (expected,), (got,) = (_answers(each, choose) for each in (model, optimized))
        np.testing.assert_allclose(got, expected, atol=2e-2 if precision == "fp16" else 1e-5)
