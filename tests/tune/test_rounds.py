"""The stage's rounds: what loses makes room for other problems, until nothing new is asked; what
was decided is decided again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from onnxbolt import pipeline
from onnxbolt.measurements import timings as timings_module
from onnxbolt.measurements.records import Status
from onnxbolt.measurements.timings import Comparison
from onnxbolt.plan.regions import Region
from onnxbolt.tune import baseline, parts, stage, whole
from onnxbolt.tune.database import Database
from tests.support import Net
from tests.tune import fakes
from tests.tune.local_gpu import Gpu, net


def test_a_region_that_loses_is_not_fused(gpu: Gpu) -> None:
    gpu.ort_us = 1.0
    report = pipeline.optimize(net(), library=False, verify=False, tune=True)
    assert not report.fused
    reasons = {refusal.reason.partition(":")[0] for refusal in report.refusals}
    assert reasons == {"measured slower than ONNX Runtime, counting its layout conversions"}


def test_layers_whose_kernel_loses_are_tuned_and_compared_in_the_next_round(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel for two layers loses, while each layer by itself wins, though it is not predicted
    to."""
    rounds: list[list[int]] = []

    def compared(regions: Sequence[Region], *_: Any) -> dict[str, Comparison]:
        layers = {region.key: len(region.candidates[0].widths) for region in regions}
        rounds.append(sorted(layers.values()))
        return {
            key: Comparison(10.0, 0.1, 1.0 if several > 1 else 100.0, 0.1)
            for key, several in layers.items()
        }

    monkeypatch.setattr(stage, "compare", compared)
    narrow = Net({"x": (16384, 256)})
    y = narrow.node("Relu", narrow.linear("x", 256, 64))
    model = narrow.model(narrow.node("Relu", narrow.linear(y, 64, 16)))
    report = pipeline.optimize(model, library=False, tune=True)
    assert report.passed
    assert rounds[:2] == [[2], [1, 1, 2]]
    assert [node.rule for node in report.fused] == ["gemm+Bias+Relu", "gemm+Bias+Relu+CastF32"]
    assert report.tuning is not None
    assert {task.name for task in report.tuning.tasks} == {
        "gemm 16384x64-16x256, f16 to f32, Bias+Relu+Gemm+Bias+Relu",
        "gemm 16384x64x256, f16, Bias+Relu",
        "gemm 16384x16x64, f16 to f32, Bias+Relu",
    }
    assert pipeline.optimize(model, library=False, verify=False).fused == report.fused


@pytest.mark.parametrize("optimistic", [False, True])
def test_everything_but_the_kernels_with_sessions_on_the_cpu(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, optimistic: bool
) -> None:
    """Regions, parts and the whole model run for real, with function bodies in the place of
    kernels: nothing wins, or everything does."""
    if optimistic:
        monkeypatch.setattr(timings_module.Comparison, "certain_gain", 2.0)
        monkeypatch.setattr(whole, "wins", lambda *_: False)
        monkeypatch.setattr(parts, "_HOPELESS", 1e9)
    for name, real in (
        ("compare", baseline.compare),
        ("settle", whole.settle),
        ("Stream", lambda: None),
    ):
        monkeypatch.setattr(stage, name, real)
    small = Net({"x": (2, 16, 12, 12)})
    y = small.node("Relu", small.conv("x", 16, 32, 3, pads=[1, 1, 1, 1]))
    y = small.node(
        "Relu", small.node("Add", small.conv(small.node("Relu", small.conv(y, 32, 16)), 16, 32), y)
    )
    y = small.node(
        "Flatten",
        small.node("GlobalAveragePool", small.node("Softmax", small.conv(y, 32, 64), axis=1)),
    )
    model = small.model(small.linear(y, 64, 32))
    said: list[str] = []
    report = pipeline.optimize(model, library=False, verify=False, tune=True, progress=said.append)
    assert report.tuning is not None
    assert report.tuning.ended_by == "done"
    assert any(line.startswith("sm_90 ") and "fused" in line for line in said)
    if optimistic:
        assert report.fused
        assert report.tuning.whole is not None
        assert any(region.region.endswith("of them") for region in report.regions)
    before, rows = gpu.measured, database_rows()
    said.clear()
    again = pipeline.optimize(model, library=False, verify=False, tune=True, progress=said.append)
    assert (gpu.measured, database_rows(), said) == (before, rows, [])
    assert (again.fused, again.regions) == (report.fused, report.regions)
    plain = pipeline.optimize(model, library=False, verify=False)
    assert plain.fused == report.fused


def database_rows() -> int:
    with Database() as database:
        return len(database)


def test_a_chain_is_cut_by_what_its_kernels_take_and_compared_so(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every kernel that may be in a cover is measured; the whole of it fails, so that no plan
    has it, nor the one from the lock file."""
    for name, real in (
        ("compare", baseline.compare),
        ("settle", whole.settle),
        ("Stream", lambda: None),
    ):
        monkeypatch.setattr(stage, name, real)
    monkeypatch.setattr(timings_module.Comparison, "certain_gain", 2.0)
    monkeypatch.setattr(whole, "wins", lambda *_: False)
    net = Net({"x": (1024, 256)})
    y = "x"
    for k, n in ((256, 64), (64, 16), (16, 8)):
        y = net.node("Relu", net.linear(y, k, n))
    model, lock = net.model(y), tmp_path / "onnxbolt.lock"
    whole_chain = [
        len(node.rule.split("Gemm"))
        for node in pipeline.optimize(model, library=False, verify=False).fused
    ]
    assert whole_chain == [3]
    working = fakes.Profiler._measurement

    def measurement(profiler: Any, problem: Any, config: Any) -> Any:
        found = working(profiler, problem, config)
        return (
            dataclasses.replace(found, status=Status.WRONG) if len(problem.layers) == 3 else found
        )

    monkeypatch.setattr(fakes.Profiler, "_measurement", measurement)
    report = pipeline.optimize(
        model, tmp_path / "out.onnx", library=False, verify=False, tune=True, lock=lock
    )
    assert report.tuning is not None
    assert sorted(task.kind for task in report.tuning.tasks) == ["gemm"] * 3 + ["gemm chain"] * 2
    assert sorted(len(node.rule.split("Gemm")) for node in report.fused) in ([1, 2], [1, 1, 1])
    assert all(region.measured for region in report.regions)
    assert pipeline.optimize(model, library=False, verify=False).fused == report.fused
    frozen = pipeline.optimize(
        model, library=False, verify=False, lock=lock, frozen=True, archs=("sm_90a",)
    )
    assert [node.configs for node in frozen.fused] == [node.configs for node in report.fused]
