"""The nodes of both models, as reports hold them."""

from __future__ import annotations

import onnx
import pytest
from onnx import ModelProto

from onnxbolt.pipeline import optimize
from onnxbolt.report import Report
from onnxbolt.report.blocks import Block
from tests.support import Net


def parsed(text: str) -> ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')


def report_of(model: ModelProto, precision: str = "fp16") -> Report:
    return optimize(
        model,
        precision=precision,
        fuse="all",
        library=False,
        verify=False,
        archs=("sm_80", "sm_90a"),
    )


def before_and_after(report: Report) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
    assert report.before is not None
    assert report.after is not None
    return report.before.blocks, report.after.blocks


def test_blocks_say_what_they_read_and_write() -> None:
    net = Net({"x": (2, 16, 8, 8)})
    y = net.node("Relu", net.conv("x", 16, 16, 3, pads=[1, 1, 1, 1]))
    before, after = before_and_after(report_of(net.model(net.node("Exp", net.node("Add", y, "x")))))
    assert [(block.op, block.inputs) for block in before] == [
        ("Conv", ()),
        ("Relu", (0,)),
        ("Add", (1,)),
        ("Exp", (2,)),
    ]
    assert {tuple(block.shape) for block in before} == {(2, 16, 8, 8)}
    assert {block.element for block in before} == {"float32"}
    assert all(not block.us and not block.sources for block in before)
    for place, block in enumerate(after):
        assert all(read < place for read in block.inputs)


def test_times_and_sources_of_what_is_not_fused() -> None:
    net = Net({"x": (16, 64)})
    report = report_of(net.model(net.node("Exp", net.linear("x", 64, 64))))
    _, after = before_and_after(report)
    fused = {row.name for row in report.fused}
    others = [block for block in after if block.name not in fused]
    assert {len(block.us) for block in others} == {2}
    assert all(us > 0 for block in others for us in block.us)
    (exp,) = (block for block in others if block.op == "Exp")
    assert exp.sources == (exp.name,)
    (own,) = (block for block in after if block.name in fused)
    assert (own.domain, own.us, own.sources) == ("com.onnxbolt", (), ())


def test_constants_and_what_is_computed_from_them_are_no_blocks() -> None:
    model = parsed(
        """g (float[2,4] x) => (float[2,4] y) {
             c = Constant<value = float[4] {1, 2, 3, 4}>() d = Neg(c) e = Exp(d) y = Add(x, e) }"""
    )
    before, _ = before_and_after(report_of(model, "keep"))
    assert [(block.name, block.op, block.inputs) for block in before] == [("y", "Add", ())]


def test_bodies_follow_the_main_graph() -> None:
    model = parsed(
        """g (float[2,8] x, bool c) => (float[2,8] y) { y = If (c) <
             then_branch = t () => (float[2,8] p) { q = Exp(x) p = Neg(q) },
             else_branch = e () => (float[2,8] r) { r = Abs(x) }> }"""
    )
    before, _ = before_and_after(report_of(model, "keep"))
    assert [(block.op, block.body, block.inputs) for block in before] == [
        ("If", "", ()),
        ("Exp", "then_branch of If y", ()),
        ("Neg", "then_branch of If y", (1,)),
        ("Abs", "else_branch of If y", ()),
    ]


@pytest.mark.parametrize("text", ["g (float[2] x) => (float[2] x) { }"])
def test_a_model_without_nodes(text: str) -> None:
    before, _ = before_and_after(report_of(parsed(text)))
    assert before == ()


def test_types_that_numpy_lacks() -> None:
    model = parsed("g (bfloat16[2,4] x) => (bfloat16[2,4] y) { y = Add(x, x) }")
    before, _ = before_and_after(report_of(model, "keep"))
    assert before[0].element == "bfloat16"


def test_sizes_of_files_are_told(small_model: object) -> None:
    report = optimize(small_model, library=False, verify=False, archs=("sm_90a",))  # type: ignore[arg-type]
    assert report.before is not None
    assert report.after is not None
    assert report.before.bytes > report.after.bytes > 0
    assert report.library_bytes == 0
