"""The stage: planning and measuring take turns, within one budget; without --tune what is
remembered is used."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxbolt import pipeline
from onnxbolt.cli import main
from onnxbolt.errors import InputError, OnnxboltError
from onnxbolt.measurements.timings import NOTHING, Choice, Comparison, Timings
from onnxbolt.options import Options
from onnxbolt.plan.choose import Plan
from onnxbolt.tune import stage
from onnxbolt.tune.cuda import CudaError
from onnxbolt.tune.database import Database
from onnxbolt.tune.subject import Subject
from onnxbolt.tune.summary import WholeModel
from tests.support import Net, prepare
from tests.tune import fakes
from tests.tune.local_gpu import Gpu, net

MODEL_ALONE = ("--no-library", "--no-verify")


def test_tuning_decides_the_plan_and_is_remembered(gpu: Gpu) -> None:
    report = pipeline.optimize(net(), library=False, verify=False, tune=True)
    assert report.tuning is not None
    assert report.tuning.ended_by == "done"
    assert [task.occurrences for task in report.tuning.tasks] == [2, 1]
    assert report.tuning.trials == gpu.measured > 0
    assert {node.predicted[0].measured_us for node in report.fused} == {
        task.best_us for task in report.tuning.tasks
    }
    assert all(region.measured and region.fused for region in report.regions)
    before = gpu.measured
    again = pipeline.optimize(net(), library=False, verify=False, tune=True)
    assert gpu.measured == before
    assert again.tuning is not None
    assert (again.tuning.trials, again.fused) == (0, report.fused)
    assert "tuned: 2 problems" in report.text()
    assert json.loads(report.json())["tuning"]["quality"][0]["kind"] == "gemm"


def test_all_ranges_of_a_symbolic_dimension_are_tuned(gpu: Gpu) -> None:
    symbolic = Net({"x": ("batch", 256)})
    model = symbolic.model(symbolic.node("Relu", symbolic.linear("x", 256, 512)))
    least, most = {"x": (128, 256)}, {"x": (1024, 256)}
    report = pipeline.optimize(
        model, library=False, verify=False, tune=True, min_shapes=least, max_shapes=most
    )
    assert report.tuning is not None
    assert {task.name.split(",")[0]: task.occurrences for task in report.tuning.tasks} == {
        "gemm 128x512x256": 1,
        "gemm 256x512x256": 1,
        "gemm 512x512x256": 1,
        "gemm 1024x512x256": 3,
    }
    (node,) = report.fused
    best = {task.name.split(",")[0]: task.config for task in report.tuning.tasks}
    assert [config.split(" m ")[0] for config in node.configs][-1] == best["gemm 1024x512x256"]
    assert [region.region.split(",")[0] for region in report.regions] == ["gemm 1024x512x256"]
    before = gpu.measured
    assert (
        pipeline.optimize(
            model, library=False, verify=False, tune=True, min_shapes=least, max_shapes=most
        ).fused
        == report.fused
    )
    assert gpu.measured == before


def test_without_tune_what_is_remembered_is_used(gpu: Gpu) -> None:
    tuned = pipeline.optimize(net(), library=False, verify=False, tune=True)
    before = gpu.measured
    plain = pipeline.optimize(net(), library=False, verify=False)
    assert gpu.measured == before
    assert plain.tuning is None
    assert plain.fused == tuned.fused
    assert gpu.compared[-1][1] < 0  # asked for what is known, not to measure


def test_what_was_not_compared_is_judged_alike_with_and_without_tune(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tuning whose budget ends before anything is compared leaves fused what is predicted to be
    faster."""
    large = Net({"x": (4096, 1024)})
    model = large.model(large.linear("x", 1024, 1024))
    unknown = pipeline.optimize(model, library=False, verify=False)
    assert 1 < unknown.regions[0].gain < 1.5  # so little that measuring might find otherwise
    assert unknown.fused
    monkeypatch.setattr(stage, "compare", lambda *_: {})
    tuned = pipeline.optimize(model, library=False, verify=False, tune=True)
    plain = pipeline.optimize(model, library=False, verify=False)
    assert [node.name for node in tuned.fused] == [node.name for node in unknown.fused]
    assert (plain.fused, plain.regions, plain.refusals) == (
        tuned.fused,
        tuned.regions,
        tuned.refusals,
    )


def test_planning_goes_on_while_cuda_starts(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    plan, measuring = Subject.plan, stage._Measuring.__init__

    def planning(self: Subject, *given: Any) -> Plan:
        done.append("plan")
        return plan(self, *given)

    def started(self: stage._Measuring, *given: Any) -> None:
        done.append("measure")
        measuring(self, *given)

    monkeypatch.setattr(Subject, "plan", planning)
    monkeypatch.setattr(stage._Measuring, "__init__", started)
    monkeypatch.setattr(fakes.Profiler, "begin", lambda _: done.append("begin"))
    pipeline.tune(net(), fuse="all")
    assert done[:3] == ["begin", "plan", "measure"]


def test_a_machine_that_is_unknown_or_another_one_is_a_soft_miss(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = pipeline.optimize(net(), library=False, verify=False, tune=True, fuse="all")
    monkeypatch.setattr(fakes, "MACHINE", dataclasses.replace(fakes.MACHINE, gpu="Another"))
    other = pipeline.optimize(net(), library=False, verify=False, fuse="all")
    assert all(p.measured_us is None for node in other.fused for p in node.predicted)

    def unknown(arch: int) -> None:
        raise OnnxboltError("no driver")

    monkeypatch.setattr(stage, "Profiler", unknown)
    assert (
        pipeline.optimize(net(), library=False, verify=False, fuse="all").fused
        == other.fused
        != tuned.fused
    )


def test_the_whole_model_has_the_last_word(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    report = pipeline.optimize(net(), library=False, verify=False, tune=True)
    assert report.tuning is not None
    assert report.tuning.whole == WholeModel(10.0, 1e6)
    assert (
        "whole model: 10.0 us, ONNX Runtime's CUDA execution provider at its best 1000000.0 us"
        in report.text()
    )
    seen = len(gpu.settled)
    pipeline.optimize(net(), library=False, verify=False, tune=True, fuse="all")
    assert len(gpu.settled) == seen
    monkeypatch.setattr(stage, "settle", lambda *arguments: (arguments[4], None))
    report = pipeline.optimize(net(), library=False, verify=False, tune=True)
    assert "the whole model was not compared with ONNX Runtime" in report.text()


def test_a_lost_device_ends_comparing_and_the_predictions_hold(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*arguments: Any) -> dict[str, Comparison]:
        if arguments[3].deadline > 0:
            raise CudaError("cuStreamSynchronize failed with CUresult 700")
        return {}

    monkeypatch.setattr(stage, "compare", lost)
    report = pipeline.optimize(net(), library=False, verify=False, tune=True)
    assert report.regions
    assert not any(region.measured for region in report.regions)
    assert all(region.fused == (region.gain > 1) for region in report.regions)
    assert report.tuning is not None
    assert (
        report.tuning.notes[0]
        == "comparing with ONNX Runtime ended early: cuStreamSynchronize failed with CUresult 700"
    )


def test_what_is_locked_stays_unless_it_is_tuned_anew(gpu: Gpu) -> None:
    tuned = pipeline.optimize(net(), library=False, verify=False, tune=True, fuse="all")
    subject_of = _planned_with(gpu)
    problem, config = subject_of
    locked = Timings({(problem, 90): Choice(config, 1.0)})
    chosen, _ = stage.plan_with_timings(_subject(), [90], Options(fuse="all"), locked)
    assert chosen.used.choices[problem, 90] == locked.choices[problem, 90]
    chosen, _ = stage.plan_with_timings(_subject(), [90], Options(fuse="all", tune=True), locked)
    assert tuned.tuning is not None
    assert chosen.used.choices[problem, 90].us in {task.best_us for task in tuned.tuning.tasks}


def _subject() -> Subject:
    return Subject(prepare(net(), "fp16"), net(), "fp16")


def _planned_with(gpu: Gpu) -> Any:
    chosen, _ = stage.plan_with_timings(_subject(), [90], Options(fuse="all"), NOTHING)
    problem = next(iter(chosen.problems.values()))
    worst = gpu.profilers[0].measured[-1][1]
    return problem, worst


def test_no_gpu_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxbolt.gpu.local_arch", lambda: None)
    with pytest.raises(InputError, match="tune=True needs an NVIDIA GPU"):
        pipeline.optimize(net(), tune=True)
    monkeypatch.setattr("onnxbolt.gpu.local_arch", lambda: "sm_90a")
    with pytest.raises(InputError, match="sm_90a is not among those of archs"):
        pipeline.tune(net(), archs=("sm_80",))


def test_the_budget_is_for_kernels_and_comparisons(gpu: Gpu) -> None:
    pipeline.optimize(net(), library=False, verify=False, tune=True, budget=30.0)
    assert 0 < gpu.compared[0][1] <= 30
    report = pipeline.optimize(net(), library=False, verify=False, tune=True, budget=1e-9)
    assert report.tuning is not None
    assert report.tuning.ended_by == "budget"
    assert not report.tuning.notes  # all kernels were measured before


def test_a_budget_that_ends_before_the_first_kernel_is_told(gpu: Gpu) -> None:
    report = pipeline.optimize(net(), library=False, verify=False, tune=True, budget=1e-9)
    assert report.tuning is not None
    assert (report.tuning.trials, report.tuning.notes) == (0, (stage.NOTHING_MEASURED,))


def test_an_interrupt_writes_the_best_so_far_and_exits_130(
    gpu: Gpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.interrupt_after = 5
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(net(), source)
    assert main(["optimize", str(source), str(out), "--tune", *MODEL_ALONE]) == 130
    onnx.checker.check_model(out)
    assert "interrupted" in capsys.readouterr().out
    gpu.interrupt_after, gpu.interrupts_comparison = None, True
    assert main(["tune", str(source)]) == 130
    assert gpu.compared[-1][1] < 0  # earlier comparisons are used


def test_tune_writes_no_model_and_prints_the_table(
    gpu: Gpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.onnx"
    onnx.save(net(), source)
    before = sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".onnx")
    assert (
        main(["tune", str(source), "--budget", "10m", "--trials", "6", "--log-format", "json"]) == 0
    )
    printed = capsys.readouterr()
    (tuning,) = [json.loads(line) for line in printed.out.splitlines()]
    assert tuning["event"] == "tuning"
    assert any("gemm 512x528x528" in task["name"] for task in tuning["tasks"])
    events = [json.loads(line)["event"] for line in printed.err.splitlines()]
    assert {"task", "total"} <= set(events)
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".onnx") == before
    with Database() as database:
        assert len(database) == gpu.measured
    assert main(["tune", str(source), "--budget", "10m", "--trials", "6"]) == 0
    printed = capsys.readouterr()
    assert "gemm 512x528x528" in printed.out
    assert "rank correlation" in printed.out


@pytest.mark.parametrize(
    "flags",
    [
        ("--tune", "--budget", "soon"),
        ("--tune", "--budget", "0s"),
        ("--budget", "1m"),
        ("--tune", "--trials", "0"),
        ("--tune", "--dry-run"),
        ("--tune", "--frozen", "--lock", "x"),
    ],
)
def test_wrong_usage(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "in.onnx", "out.onnx", *flags]) == 2
    assert capsys.readouterr().err.startswith("error: ")
