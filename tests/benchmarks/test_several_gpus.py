"""The row of a model has all of its runs; the tuner of these tests only leaves traces."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from benchmarks import several_gpus
from onnxbolt.measurements.keys import canonical
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.options import Options, cache_directory
from onnxbolt.tune.database import Database, default_path
from onnxbolt.tune.summary import TunedTask, Tuning

Rows = Callable[..., list[dict[str, Any]]]


class Tuner:
    """Compiles one kernel and measures it, where the cache has none; `calls` says with how many
    GPUs, and what the cache had: compiled kernels, and measurements."""

    def __init__(self) -> None:
        self.calls: list[tuple[int | str, bool, bool]] = []
        self.models: list[onnx.ModelProto] = []

    def __call__(self, model: onnx.ModelProto, *, options: Options, **__: object) -> Tuning:
        self.models.append(model)
        kernel = cache_directory() / "candidates" / "kernel.so"
        known = default_path().exists()
        self.calls.append((options.gpus, kernel.exists(), known))
        kernel.parent.mkdir(parents=True, exist_ok=True)
        kernel.touch()
        if not known:
            with Database() as database:
                database.add(Measurement(canonical({}), None, Status.OK, 1.0))
        task = TunedTask("gemm", "gemm", 12, 1, 0, 2.0, 1.5, 100.0, "tile")
        return Tuning(tasks=(task,), trials=int(not known))


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch) -> Tuner:
    # put back what main changes
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", os.environ.get("ONNXBOLT_CACHE_DIR", ""))
    monkeypatch.setattr("onnxbolt.gpu.local_arch", lambda: "sm_90a")
    monkeypatch.setattr("onnxbolt.gpu.uuids", lambda: tuple("abcd"))
    monkeypatch.setattr(several_gpus, "isolated", lambda function, *given: function(*given))
    found = Tuner()
    monkeypatch.setattr("onnxbolt.pipeline.tune", found)
    return found


@pytest.fixture
def run(tmp_path: Path) -> Rows:
    def rows(*arguments: str) -> list[dict[str, Any]]:
        out = tmp_path / "results.json"
        batch = () if "--batch" in arguments else ("--batch", "32")
        assert several_gpus.main(["dlrm_mlp", *batch, *arguments, "--out", str(out)]) == 0
        return list(json.loads(out.read_text())["rows"])

    return rows


def test_cold_runs_begin_empty_and_others_have_the_kernels(tuner: Tuner, run: Rows) -> None:
    (row,) = run("--gpus", "1", "4", "--cold", "4", "1")
    values = row["values"]
    assert tuner.calls == [
        (4, False, False),  # cold
        (1, True, False),
        (4, True, False),
        (1, True, True),  # the same database
        (4, True, True),
        (1, False, False),  # cold
    ]
    assert values["cold"].keys() == values["compiled"].keys() == {"1", "4"}
    for what, compiled in (("cold", 1), ("compiled", 0)):
        for found in values[what].values():
            assert (found["compiled"], found["trials"], found["us"]) == (compiled, 1, 18.0)
            assert found["measuring"] == 0.0  # a single measurement
    assert values["again"] == {"measured": 0, "same": True}


def test_kernels_of_another_cache_need_no_cold_run_first(
    tuner: Tuner, run: Rows, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    (cache / "candidates").mkdir(parents=True)
    (cache / "candidates" / "kernel.so").touch()
    (row,) = run("--gpus", "4", "1", "--cold", "--cache", str(cache))
    assert tuner.calls == [(4, True, False), (1, True, False), (1, True, True), (4, True, True)]
    assert "cold" not in row["values"]
    tuner.calls.clear()
    run("--gpus", "2", "--cold", "2", "--cache", str(cache))
    assert tuner.calls == [(2, True, False), (1, True, True), (2, True, True), (2, False, False)]


def test_a_run_that_compiles_is_repeated(
    tuner: Tuner, run: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_kernels(*given: onnx.ModelProto, options: Options, **more: Any) -> Tuning:
        (cache_directory() / f"kernels of {options.gpus}.so").touch()
        return tuner(*given, options=options, **more)

    monkeypatch.setattr("onnxbolt.pipeline.tune", other_kernels)
    (row,) = run("--gpus", "1", "--cold", "4")
    assert row["values"]["cold"]["4"]["compiled"] == 2
    assert row["values"]["compiled"]["1"]["compiled"] == 0
    assert tuner.calls[:3] == [(4, False, False), (1, True, False), (1, True, False)]


def test_an_open_batch_is_a_job_of_its_own(tuner: Tuner, run: Rows) -> None:
    batched, one = run("--batch", "open", "8", "--gpus", "1", "--cold", "4")
    assert (batched["name"], batched["batch"]) == ("dlrm_mlp, batches from 1", 64)
    assert (one["name"], one["batch"]) == ("dlrm_mlp", 8)
    assert tuner.calls[: len(tuner.calls) // 2] == tuner.calls[len(tuner.calls) // 2 :]
    shapes = [
        [
            axis.dim_param or axis.dim_value
            for axis in model.graph.input[0].type.tensor_type.shape.dim
        ]
        for model in tuner.models
    ]
    assert {shape[0] for shape in shapes} == {"open", 8}


def test_no_run_begins_when_the_time_is_over(tuner: Tuner, run: Rows) -> None:
    (row,) = run("--within", "0.000001s")
    assert tuner.calls == []
    assert row["values"].keys() == {"cores", "fuse"}


def test_a_failure_is_noted(run: Rows, tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Tuning:
        raise RuntimeError("no GPU answers")

    monkeypatch.setattr("onnxbolt.pipeline.tune", fail)
    (row,) = run()
    assert row["values"]["failure"] == "RuntimeError: no GPU answers"


def test_as_many_gpus_are_needed(
    tuner: Tuner, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxbolt.gpu.uuids", lambda: ("a", "b"))
    assert several_gpus.main([]) == 1
    assert "4 GPUs of a supported architecture are needed" in capsys.readouterr().err
