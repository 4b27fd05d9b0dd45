"""`optimize --tune` of a directory: one run of the tuner measures the kernels of all models, and
the budget is for everything."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest

from onnxbolt import directory, pipeline
from onnxbolt.cli import main
from onnxbolt.directory import jobs_in, optimize_all
from onnxbolt.errors import InputError
from onnxbolt.options import Options
from onnxbolt.tune.summary import Tuning
from tests.support import Net
from tests.tune.local_gpu import Gpu, net

FLAGS = ("--tune", "--no-library", "--no-verify", "--quiet")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A model with two problems, one with one of these, and one that is none."""
    path = tmp_path / "models"
    path.mkdir()
    onnx.save(net(), path / "a.onnx")
    other = Net({"x": (512, 528)})
    onnx.save(other.model(other.node("Relu", other.linear("x", 528, 544))), path / "b.onnx")
    (path / "broken.onnx").write_bytes(b"")
    return path


def test_kernels_of_all_models_are_measured_in_one_run(
    models: Path, tmp_path: Path, gpu: Gpu
) -> None:
    tuning = pipeline.tune_together(sorted(models.iterdir()), Options(tune=True))
    assert {task.name.split(",")[0]: task.occurrences for task in tuning.tasks} == {
        "gemm 512x528x528": 2,
        "gemm 512x544x528": 2,
    }
    assert tuning.ended_by == "done"
    assert gpu.compared == []  # regions belong to single models
    before = gpu.measured
    assert main(["optimize", str(models), str(tmp_path / "out"), *FLAGS]) == 1
    assert gpu.measured == before > 0
    assert len(gpu.compared) >= 2
    reports = [json.loads((tmp_path / "out" / f"{n}.onnxbolt.json").read_text()) for n in "ab"]
    assert all(report["tuning"]["trials"] == 0 for report in reports)
    regions = [region for report in reports for region in report["regions"]]
    assert all(found["measured"] for region in regions for found in region["comparisons"])


def test_the_budget_is_for_all_models(
    models: Path, tmp_path: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(directory, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    budgets: list[float | None] = []

    def optimize(source: Path, out: Path, *, options: Options, **_: object) -> None:
        budgets.append(options.budget)
        clock[0] += 20.0

    def together(sources: object, options: Options, watch: object) -> object:
        budgets.append(options.budget)
        clock[0] += 30.0
        return Tuning()

    monkeypatch.setattr(pipeline, "tune_together", together)
    monkeypatch.setattr(pipeline, "optimize", optimize)
    jobs = jobs_in(models, tmp_path / "out")
    optimize_all(jobs, Options(tune=True, budget=90.0, library=False), write=False)
    # 0.6 of 90 s; then a third of the 60 s that are left, a half of 40 s, all of 20 s
    assert budgets == [54.0, 20.0, 20.0, 20.0]
    budgets.clear()
    optimize_all(jobs, Options(tune=True, library=False), write=False)
    assert budgets == [None] * 4
    budgets.clear()
    optimize_all(jobs, Options(tune=True, target=1e-3, library=False), write=False)
    assert budgets == [None] * 3  # each model by itself


def test_after_an_interrupt_all_models_get_the_best_so_far(
    models: Path, tmp_path: Path, gpu: Gpu, capsys: pytest.CaptureFixture[str]
) -> None:
    (models / "broken.onnx").unlink()
    gpu.interrupt_after = 5
    flags = ("--tune", "--no-library", "--no-verify")
    assert main(["optimize", str(models), str(tmp_path / "out"), *flags]) == 130
    together, *each = gpu.profilers
    assert len(together.measured) == gpu.measured > 0 == sum(len(own.measured) for own in each)
    assert [budget < 0.01 for _, budget in gpu.compared] == [True] * len(gpu.compared)
    out = capsys.readouterr().out
    assert out.splitlines()[-1].endswith("; tuning was interrupted")
    assert "2 of 2 models optimized" in out
    for name in "ab":
        onnx.checker.check_model(tmp_path / "out" / f"{name}.onnx")


def test_without_a_gpu_nothing_is_tuned(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxbolt.gpu.local_arch", lambda: None)
    with pytest.raises(InputError, match="tune=True needs an NVIDIA GPU"):
        optimize_all(jobs_in(models, tmp_path / "out"), Options(tune=True))
    assert not (tmp_path / "out").exists()
