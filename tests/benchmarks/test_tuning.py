"""The tuning benchmark's logic, with a tuner that only leaves traces in the cache directory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import onnx
import pytest

from benchmarks import tuning
from benchmarks.exports import BY_NAME, STORED, load
from onnxbolt.library import Manifest
from onnxbolt.measurements.keys import canonical
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.options import cache_directory
from onnxbolt.tune.database import Database, default_path
from onnxbolt.tune.summary import Quality, Tuning


def fake_tune(*_: object, **__: object) -> Tuning:
    """Compiles one kernel and measures it, where the cache is empty."""
    cold = not default_path().exists()
    if cold:
        (cache_directory() / "candidates").mkdir(parents=True)
        (cache_directory() / "candidates" / "kernel.so").touch()
        with Database() as database:
            database.add(Measurement(canonical({}), None, Status.OK, 1.0))
    return Tuning(
        quality=(Quality("conv", 3, 1.08, 0.7), Quality("gemm", 1, 1.0, None)),
        trials=int(cold),
        kernels=int(cold),
    )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    # put back what main changes
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", os.environ.get("ONNXBOLT_CACHE_DIR", ""))
    monkeypatch.setattr("onnxbolt.gpu.local_arch", lambda: "sm_90a")
    monkeypatch.setattr("onnxbolt.pipeline.tune", fake_tune)
    monkeypatch.setattr(tuning, "isolated", lambda function, *arguments: function(*arguments))

    def rows(*arguments: str) -> list[dict[str, Any]]:
        assert tuning.main([*arguments, "--out", str(tmp_path / "tuning.json")]) == 0
        return list(json.loads((tmp_path / "tuning.json").read_text())["rows"])

    return rows


def test_each_model_begins_cold_and_the_second_time_finds_everything(run: Any) -> None:
    rows = run("dlrm_mlp", "resnet50", "--batch", "4")
    assert [(row["name"], row["batch"], row["dtype"]) for row in rows] == [
        ("dlrm_mlp", 4, "fp16"),
        ("resnet50", 4, "fp16"),
    ]
    for row in rows:
        values = row["values"]
        assert (
            values["trials"],
            values["kernels"],
            values["warm_compiled"],
            values["warm_measured"],
        ) == (1, 1, 0, 0)
        assert values["regret"] == {"conv": 1.08, "gemm": 1.0}
        assert values["rank_correlation"] == {"conv": 0.7}
        assert values["seconds_warm"] >= 0


def test_an_export_has_a_batch_of_its_own(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned: list[onnx.ModelProto] = []

    def tune(model: onnx.ModelProto, **_: object) -> Tuning:
        tuned.append(model)
        return fake_tune()

    monkeypatch.setattr("onnxbolt.pipeline.tune", tune)
    (row,) = run("detr_mha-1", "--batch", "4")
    assert (row["name"], row["batch"]) == ("detr_mha", 1)
    assert row["values"]["trials"] == 1
    cold, warm = tuned
    assert cold == warm == load(STORED, BY_NAME["detr_mha-1"])


def test_the_library_of_the_tuners_objects_is_compared_with_one_compiled_anew(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def optimize(model: onnx.ModelProto, out: Path, **_: object) -> None:
        onnx.save(model, out)

    def link(manifest: Manifest, path: Path, compiled: object = None) -> None:
        path.write_bytes(b"with others" if compiled is not None else b"alone")

    monkeypatch.setattr("onnxbolt.pipeline.optimize", optimize)
    monkeypatch.setattr("onnxbolt.library.build", link)
    monkeypatch.setattr(tuning, "compiled", lambda instances: {})
    (row,) = run("dlrm_mlp", "--batch", "4", "--libraries")
    assert (row["values"]["bytes_linked"], row["values"]["bytes_anew"]) == (11, 5)
    assert row["values"]["seconds_linked"] >= 0 <= row["values"]["seconds_anew"]


def test_caches_are_kept_together(run: Any, tmp_path: Path) -> None:
    run("dlrm_mlp", "--batch", "4", "--cache", str(tmp_path / "kept"))
    run("dlrm_mlp", "--batch", "8", "--cache", str(tmp_path / "kept"), "--append")
    assert (tmp_path / "kept" / "candidates" / "kernel.so").exists()
    with Database(tmp_path / "kept" / default_path().name) as database:
        assert len(database) == 2


def test_a_model_that_fails_costs_its_row_alone(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Tuning:
        raise RuntimeError("broken")

    monkeypatch.setattr("onnxbolt.pipeline.tune", fail)
    first, second = run("dlrm_mlp", "resnet50", "--batch", "4")
    assert first["values"] == second["values"] == {"failure": "RuntimeError: broken"}


def test_processes_are_fresh() -> None:
    assert tuning.isolated(os.getpid) != os.getpid()
