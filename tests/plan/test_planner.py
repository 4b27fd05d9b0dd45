"""Planning by dynamic programming: never slower than the greedy plan by its own measure, and faster
where decisions depend on each other."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import models
import onnxbolt
from onnxbolt.errors import FrozenError
from onnxbolt.measurements.timings import NOTHING, Choice, Comparison, Timings
from onnxbolt.options import Options
from onnxbolt.plan import phases
from onnxbolt.plan.choose import Plan
from onnxbolt.plan.cost import predict
from onnxbolt.plan.cuts import cover, cover_as
from onnxbolt.plan.planner import planned
from onnxbolt.plan.regions import regions
from onnxbolt.plan.schedule import cheapest
from onnxbolt.tune.subject import Subject
from tests.support import Net, prepare
from tests.zoo.stored import load, names

ROOT = Path(__file__).parents[2]
ZOO = sorted(path.stem for path in (ROOT / "tests/zoo").glob("*.onnx"))
QUICK = ("unet_odd_channels.ts", "squeezenet1_1.dynamo")  # in every test run


def blocks(batch: int = 8) -> onnx.ModelProto:
    """Two residual blocks of a ResNet. The first one's shortcut is computed last, as in exports by
    TorchScript, so that it adds the residual."""
    net = Net({"x": (batch, 64, 56, 56)})
    x = net.node("Relu", net.conv("x", 64, 64))
    inner = net.node("Relu", net.conv(x, 64, 64, 3, pads=[1, 1, 1, 1]))
    result = net.conv(inner, 64, 256)
    y = net.node("Relu", net.node("Add", result, net.conv(x, 64, 256)))
    inner = net.node("Relu", net.conv(y, 256, 64))
    inner = net.node("Relu", net.conv(inner, 64, 64, 3, pads=[1, 1, 1, 1]))
    z = net.node("Relu", net.node("Add", net.conv(inner, 64, 256), y))
    return net.model(net.node("Relu", net.conv(z, 256, 128)))


def subject(model: onnx.ModelProto, **options: object) -> Subject:
    return Subject.of(model, Options(**options))  # type: ignore[arg-type]


def rules(plan: Plan) -> list[str]:
    return [candidate.rule for candidate in plan.candidates]


def assert_no_worse(plan: Plan) -> None:
    assert plan.totals is not None
    assert plan.totals.dynamic_us <= plan.totals.greedy_us < math.inf
    assert (plan.totals.otherwise > 0) == (plan.totals.dynamic_us < plan.totals.greedy_us)


# --- equal parts, other parts -----------------------------------------------------------------


def test_one_kernel_computes_two_convolutions_if_the_shortcut_adds_the_residual() -> None:
    """The greedy plan wants a kernel to end with all steps that its last product could compute, so
    that the second and third convolution have a kernel each."""
    plan = subject(blocks()).plan([90], "winning", NOTHING)
    assert rules(plan)[:3] == [
        "conv+Bias+Relu",
        "conv+Bias+Relu+Gemm+Bias",
        "conv+Bias+Add+Relu+Store+Gemm+Bias+Relu",
    ]
    assert plan.totals is not None
    assert plan.totals.otherwise == 1
    assert plan.totals.dynamic_us < 0.9 * plan.totals.greedy_us
    graph = prepare(blocks(), "fp16")
    greedy = [candidate.rule for candidate in cover(graph, [90]).candidates]
    assert greedy[:3] == ["conv+Bias+Relu", "conv+Bias+Relu", "conv+Bias"]


def test_what_dynamic_programming_plans_is_right() -> None:
    report = onnxbolt.optimize(blocks(), archs="sm_90a", library=False)
    assert report.planning is not None
    assert report.planning.otherwise == 1
    assert report.passed


def test_the_report_has_both_totals() -> None:
    report = onnxbolt.optimize(blocks(), archs="sm_90a", library=False, verify=False)
    totals = report.planning
    assert totals is not None
    line = (
        f"planned by dynamic programming: {totals.dynamic_us:.1f} us, greedily:"
        f" {totals.greedy_us:.1f} us (1 of 1 parts of the graph planned otherwise; 1 distinct"
        " parts)"
    )
    assert line in report.text()
    assert line in report.markdown()
    assert json.loads(report.json())["planning"] == dataclasses.asdict(totals)


def test_equal_layers_are_planned_once(zoo: Callable[[str], onnx.ModelProto]) -> None:
    """BERT-base has twelve equal encoder layers."""
    cheapest.cache_clear()
    plan = subject(zoo("bert_base.ts")).plan([90], "winning", NOTHING)
    assert plan.totals is not None
    assert plan.totals.scopes > 12 * 4
    assert plan.totals.distinct < 12
    # each work once with all options, once for the greedy plan, once for what that leaves over
    assert cheapest.cache_info().misses <= 4 * plan.totals.distinct


def test_layers_that_onnx_runtime_computes_faster_are_left_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only where both sides are predicted: a measured kernel is compared with a measured ONNX
    Runtime alone, and --fuse all leaves nothing."""
    monkeypatch.setattr(phases, "ort_us", lambda problem, arch: 0.1)
    net = Net({"x": (128, 256)})
    ours = subject(net.model(net.node("Relu", net.linear("x", 256, 512))))
    left, everything = (ours.plan([90], fuse, NOTHING) for fuse in ("winning", "all"))
    assert left.candidates == []
    (refusal,) = left.refusals
    assert refusal.reason.startswith("predicted slower than ONNX Runtime, planned together")
    assert refusal.values["ours_us"] > refusal.values["ort_us"] > 0
    assert rules(everything) == ["gemm+Bias+Relu+CastF32"]
    (problem,) = everything.problems.values()
    measured = Timings({(problem, 90): Choice(predict(problem, 90)[0], 3.0)})
    assert rules(ours.plan([90], "winning", measured)) == rules(everything)


def test_a_chain_whose_result_is_read_in_both_layouts_is_planned() -> None:
    """The last layer's own kernel could write both, and no kernel for both layers can."""
    net = Net({"x": (8, 128, 14, 14)})
    y = net.conv(net.node("LeakyRelu", net.conv("x", 128, 64, 3, pads=[1, 1, 1, 1])), 64, 24)
    model = net.model(y, net.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]))
    for fuse in ("winning", "all"):
        assert_no_worse(subject(model).plan([90], fuse, NOTHING))


# --- decisions that are kept ------------------------------------------------------------------


def test_a_plan_is_made_again_from_its_decisions() -> None:
    ours = subject(blocks())
    plan = ours.plan([90], "winning", NOTHING)
    again = ours.again().plan([90], "winning", plan.used)
    assert rules(again) == rules(plan)
    assert again.used.schedules == plan.used.schedules
    assert again.totals is None  # nothing was compared
    frozen = dataclasses.replace(plan.used, frozen=True)
    assert rules(ours.again().plan([90], "winning", frozen)) == rules(plan)


def test_a_lock_file_keeps_what_is_not_planned_greedily(tmp_path: Path) -> None:
    lock, out = tmp_path / "lock", tmp_path / "out.onnx"
    options = Options(archs=("sm_90a",), library=False, verify=False, lock=lock)
    onnxbolt.optimize(blocks(), out, options=options)
    first = out.read_bytes()
    (row,) = json.loads(lock.read_text())["scopes"]
    assert row["phases"]
    assert row["scope"].endswith("nodes from conv+Bias+Relu")
    onnxbolt.optimize(blocks(), out, options=options, frozen=True)
    assert out.read_bytes() == first
    wrong = json.loads(lock.read_text())
    wrong["scopes"][0]["phases"][0] = len(row["phases"]) + 99
    lock.write_text(json.dumps(wrong))
    with pytest.raises(FrozenError, match=r"lacks phases of 18 nodes .* each node once"):
        onnxbolt.optimize(blocks(), out, options=options, frozen=True)


def test_another_plan_s_ends_are_kept() -> None:
    """A region's small model is cut where the plan has the region's kernels end."""
    graph = prepare(blocks(), "fp16")
    plan = planned(graph, [90], "winning")
    ends = {candidate.output.name for candidate in plan.candidates}
    assert [candidate.rule for candidate in cover_as(graph, [90], ends)] == rules(plan)


def test_a_plan_that_was_measured_to_lose_more_is_not_taken() -> None:
    """The dynamic plan's region was measured, and is slower than ONNX Runtime; the greedy plan's
    was not."""
    ours = subject(blocks())
    plan = ours.plan([90], "all", NOTHING)
    (region,) = regions(plan.assignment, 90, ours.ranges.opt)
    lost = Timings(comparisons={region.key: Comparison(50.0, 0.1, 40.0, 0.1)})
    chosen = ours.plan([90], "winning", lost)
    assert chosen.totals is not None
    assert chosen.totals.otherwise == 0
    assert rules(chosen)[1:3] == ["conv+Bias+Relu", "conv+Bias"]


# --- every model ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.zoo) for n in ZOO]
)
def test_no_plan_of_the_zoo_is_slower(zoo: Callable[[str], onnx.ModelProto], name: str) -> None:
    assert_no_worse(subject(zoo(name)).plan([90], "winning", NOTHING))


@pytest.mark.zoo
@pytest.mark.parametrize("name", names())
def test_no_plan_of_an_export_is_slower(name: str) -> None:
    assert_no_worse(subject(load(name)).plan([90], "winning", NOTHING))


@pytest.mark.zoo
@pytest.mark.parametrize("name", models.NAMES)
def test_no_plan_of_a_model_is_slower(name: str) -> None:
    assert_no_worse(subject(models.build(name, batch=1)).plan([80, 90], "winning", NOTHING))
