"""Fusions that a user rules out: which nodes stay, and what the lock file and the report record."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import onnxbolt
from onnxbolt.cli import main
from onnxbolt.errors import FrozenError, InputError
from onnxbolt.graph.inlining import with_inner
from onnxbolt.library import metadata
from onnxbolt.ops.functions import DOMAIN
from onnxbolt.report import Report
from tests.e2e import bodies
from tests.support import Net

FIRST, SECOND = "conv+Bias+Relu", "conv+Bias+Add+Relu"


def net(last: str = "relu7") -> onnx.ModelProto:
    """Two convolutions with a residual, a pooling, a convolution and a GEMM; `last` is the name of
    a node."""
    net = Net({"x": [2, 16, 14, 14]})
    a = net.node("Relu", net.conv("x", 16, 32, 3, pads=[1, 1, 1, 1]))
    b = net.node("Relu", net.node("Add", net.conv(a, 32, 32, 3, pads=[1, 1, 1, 1]), a))
    pooled = net.node("MaxPool", b, kernel_shape=[2, 2], strides=[2, 2])
    c = net.node("Relu", net.conv(pooled, 32, 64, 1))
    net.nodes[-1].name = last
    mean = net.node("Flatten", net.node("GlobalAveragePool", c))
    return net.model(net.linear(mean, 64, 16))


def optimized(tmp_path: Path, **choices: object) -> tuple[Report, onnx.ModelProto]:
    out = tmp_path / "out.onnx"
    options = {"fuse": "all", "archs": "sm_80", "library": False, **choices}
    report = onnxbolt.optimize(net(), out, **options)  # type: ignore[arg-type]
    return report, onnx.load(out)


def replaced(report: Report) -> set[str]:
    return {name for row in report.fused for name in row.source_nodes}


def left(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node if node.domain != DOMAIN]


def test_nothing_is_skipped_without_being_asked(tmp_path: Path) -> None:
    report, model = optimized(tmp_path)
    assert report.skips == ""
    assert report.skipped == ()
    assert not {"Conv", "Relu", "MaxPool", "MatMul"} & set(left(model))


@pytest.mark.parametrize(
    ("name", "stays"),
    [
        ("conv2", ("conv2",)),  # Add and Relu behind it become a run of elementwise nodes
        ("relu4", ("relu4",)),  # the end of an epilogue: the rest is fused
        ("maxpool5", ("maxpool5",)),
        ("relu1/FusedConv_Bias_Relu_f16", ("conv0", "relu1")),
    ],
)
def test_a_source_node_a_tensor_or_a_fused_node_stays(
    tmp_path: Path, name: str, stays: tuple[str, ...]
) -> None:
    report, model = optimized(tmp_path, skip_nodes=name)
    assert report.passed
    assert replaced(report).isdisjoint(stays)
    assert replaced(report) >= {"conv6", "matmul10"}
    ops = {"conv": "Conv", "relu": "Relu", "add": "Add", "maxpool": "MaxPool"}
    assert {ops[each.rstrip("0123456789")] for each in stays} <= set(left(model))


def test_the_reason_names_the_options(tmp_path: Path) -> None:
    report, _ = optimized(tmp_path, skip_nodes=["conv2", "relu7"])
    reasons = {row.node: row.reason for row in report.refusals if "--skip-node" in row.reason}
    assert set(reasons) == {"conv2", "relu7"}
    assert report.skips == "--skip-node conv2 --skip-node relu7"
    assert report.skipped == ("conv2", "relu7")
    assert "skipped (--skip-node conv2 --skip-node relu7): 2 source nodes" in report.text()
    assert json.loads(report.json())["skipped"] == ["conv2", "relu7"]


def test_a_product_that_stays_is_listed_once() -> None:
    net = Net({"x": [1, 16, 16, 16]})
    a = net.node("Relu", net.conv("x", 16, 16, 3, pads=[1, 1, 1, 1]))
    y = net.node("Add", net.conv(a, 16, 16, 1), a)  # one kernel could compute both and store a
    report = onnxbolt.optimize(
        net.model(y), fuse="all", archs="sm_90a", library=False, skip_nodes="conv2", verify=False
    )
    assert [row.node for row in report.refusals if row.op == "Conv"] == ["conv2"]


def test_one_node_is_counted_as_one(tmp_path: Path) -> None:
    report, _ = optimized(tmp_path, skip_nodes="conv2", verify=False)
    assert "skipped (--skip-node conv2): 1 source node\n" in report.text()


def test_a_tensor_stands_for_the_node_that_computes_it(tmp_path: Path) -> None:
    model = net(last="the last one")
    tensor = next(node.output[0] for node in model.graph.node if node.name == "the last one")
    for name in (tensor, "the last one"):
        report = onnxbolt.optimize(
            model, fuse="all", archs="sm_80", library=False, skip_nodes=name, verify=False
        )
        assert "the last one" not in replaced(report)
        assert "conv6" in replaced(report)


def test_the_nodes_of_a_rule_stay(tmp_path: Path) -> None:
    report, model = optimized(tmp_path, skip_rules=FIRST)
    assert report.passed
    rules = {row.rule for row in report.fused}
    assert FIRST not in rules
    assert SECOND in rules
    assert replaced(report).isdisjoint({"conv0", "relu1", "conv6", "relu7"})
    assert left(model).count("Conv") == 2


def test_a_rule_s_first_word_stands_for_all_that_begin_with_it(tmp_path: Path) -> None:
    report, model = optimized(tmp_path, skip_rules="conv")
    assert left(model).count("Conv") == 3
    assert [row.rule.partition("+")[0] for row in report.fused] == ["gemm"]


def test_only_the_fusions_of_a_rule_are_made(tmp_path: Path) -> None:
    report, _ = optimized(tmp_path, only_rules=(SECOND, "gemm"))
    assert {row.rule for row in report.fused} == {SECOND, "gemm+Bias+CastF32"}


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"skip_nodes": "conv3"}, "skip_nodes='conv3': the model has no such node.*Near: conv"),
        ({"skip_nodes": ["conv0", "qqqqqq"]}, "skip_nodes='qqqqqq'.*no such fused node$"),
        ({"skip_rules": "conv+Bias+Rulu"}, "skip_rules=.*Near: conv.Bias.Relu"),
        ({"only_rules": "qqqqqq"}, "only_rules='qqqqqq'.*Its rules: .*conv.Bias.Relu"),
        ({"skip_nodes": "x_f16/NchwToNhwc_CastF16_f32"}, r"replaces no node.*NCHW to NHWC"),
        ({"skip_nodes": "\x1b[31m"}, "no such node"),
    ],
)
def test_unknown_names_are_one_error(
    tmp_path: Path, choices: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        optimized(tmp_path, **choices)
    assert not (tmp_path / "out.onnx").exists()


def test_names_of_bodies(tmp_path: Path) -> None:
    """A node in a body of control flow is skipped by its own name."""
    model = bodies.in_branches(net())
    convs = [node for node in with_inner(model.graph.node) if node.op_type in ("Conv", "MatMul")]
    inner = next(node for node in convs if node not in list(model.graph.node))
    choices = {"fuse": "all", "archs": "sm_80", "library": False, "verify": False}
    name = inner.output[0]
    before = onnxbolt.optimize(model, **choices)  # type: ignore[arg-type]
    after = onnxbolt.optimize(model, **choices, skip_nodes=name)  # type: ignore[arg-type]
    key = inner.name or name
    assert key in replaced(before)
    assert key not in replaced(after)


def test_a_frozen_run_repeats_the_skips_and_refuses_others(tmp_path: Path) -> None:
    lock = tmp_path / "onnxbolt.lock"
    choices = {"skip_rules": FIRST, "skip_nodes": "maxpool5"}
    _, first = optimized(tmp_path, lock=lock, **choices)
    assert json.loads(lock.read_text())["skips"] == [
        "--skip-node maxpool5 --skip-rule conv+Bias+Relu"
    ]
    _, again = optimized(tmp_path, lock=lock, frozen=True, **choices)
    assert metadata(again) == metadata(first)
    assert again.graph.node == first.graph.node
    for others in ({}, {"skip_nodes": "maxpool5"}):
        with pytest.raises(FrozenError, match="was written with --skip-node maxpool5 --skip-rule"):
            optimized(tmp_path, lock=lock, frozen=True, **others)


def test_a_lock_without_skips_says_nothing_of_them(tmp_path: Path) -> None:
    lock = tmp_path / "onnxbolt.lock"
    optimized(tmp_path, lock=lock)
    assert "skips" not in json.loads(lock.read_text())
    optimized(tmp_path, lock=lock, frozen=True)
    with pytest.raises(FrozenError, match="no nodes skipped, but this run has --skip-node conv2"):
        optimized(tmp_path, lock=lock, frozen=True, skip_nodes="conv2")
    optimized(tmp_path, lock=lock, skip_nodes="conv2")
    assert json.loads(lock.read_text())["skips"] == ["", "--skip-node conv2"]
    optimized(tmp_path, lock=lock, frozen=True)  # both runs are in the file now
    optimized(tmp_path, lock=lock, frozen=True, skip_nodes="conv2")


@pytest.mark.parametrize("name", ["</script>", "a b", "--help", "Größe \x1b[2J", "x,y:z'\""])
def test_hostile_names(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    source, out, lock = tmp_path / "in.onnx", tmp_path / "out.onnx", tmp_path / "l.lock"
    onnx.save(net(last=name), source)
    arguments = [str(source), str(out), "--no-library", "--arch", "sm_80", "--fuse", "all"]
    arguments += ["--lock", str(lock), f"--skip-node={name}", "--no-verify"]
    assert main(["optimize", *arguments]) == 0
    assert main(["optimize", *arguments, "--frozen"]) == 0
    assert left(onnx.load(out)).count("Relu") == 1
    assert "\x1b" not in "".join(capfd.readouterr())


def test_the_command_line_names_its_flags(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.onnx"
    onnx.save(net(), source)
    arguments = ["optimize", str(source), str(tmp_path / "out.onnx"), "--no-library"]
    assert main([*arguments, "--skip-node", "conv22", "--only-rule", "convs"]) == 1
    error = capfd.readouterr().err
    assert error.startswith("error: --skip-node conv22: ")
    assert "; --only-rule convs: " in error
    assert len(error.splitlines()) == 1
