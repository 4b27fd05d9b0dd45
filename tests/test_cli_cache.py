"""`onnxbolt cache`: what was measured is shown, carried to other machines and deleted."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from onnxbolt.archs import get
from onnxbolt.cli import main
from onnxbolt.dtypes import DType
from onnxbolt.families import KernelConfig, config_from, named
from onnxbolt.families.gemm_2x import Gemm2xConfig
from onnxbolt.measurements.keys import canonical, kernel_key
from onnxbolt.measurements.records import Machine, Measurement, Status
from onnxbolt.problems import GemmProblem, Problem
from onnxbolt.tune.database import Database
from tests.tune.fakes import CONV

H200 = Machine("NVIDIA H200", 90, 700, "13.0", "4.2.0", "t0")
A100 = Machine("NVIDIA A100", 80, 400, "13.0", "4.2.0", "t0")
GEMM = GemmProblem(1024, 1000, 1000, DType.F16, DType.F16, ("Bias",))


def config(stages: int, arch: int = 90) -> KernelConfig:
    return Gemm2xConfig(
        arch=arch,
        tile=(128, 128, 32),
        warp=(64, 64, 32),
        instruction=(16, 8, 16),
        stages=stages,
    )


CONV_2X = named("conv_2x").candidates(CONV, get(90))[0]


def digest(problem: Problem, machine: Machine) -> str:
    return hashlib.sha256(kernel_key(problem, machine).encode()).hexdigest()


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """Two tasks on an H200, one on an A100, and a session of ONNX Runtime."""
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(tmp_path / "cache"))
    database = Database()
    database.add(
        Measurement(kernel_key(GEMM, H200), config(3), Status.OK, 10.24, 0.1, 20, 1e-4, 1980),
        Measurement(
            kernel_key(GEMM, H200), config(4), Status.CRASHED, detail="illegal address [/x]"
        ),
        Measurement(kernel_key(CONV, H200), CONV_2X, Status.OK, 7.5, 0.1, 20, 1e-4, 1980),
        Measurement(kernel_key(GEMM, A100), config(3, 80), Status.OK, 25.0, 0.1, 20, 1e-4, 1410),
        Measurement(
            canonical({"session": "ort", "region": "abc", "machine": {"gpu": "NVIDIA H200"}}),
            None,
            Status.OK,
            99.0,
        ),
    )
    return database


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["cache", *arguments]) == 0
    return capsys.readouterr().out


def test_list_describes_every_task(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "list").splitlines()
    (line,) = [line for line in lines if digest(GEMM, H200)[:10] in line]
    for part in (
        "gemm 1024x1000x1000, f16, Bias",
        "NVIDIA H200",
        "2 (1 failed)",
        "10.24",
        " 200 ",
        "sm_90 gemm_2x tile 128x128x32",
    ):
        assert part in line
    assert any("region abc, ort" in line and "99.00" in line for line in lines)
    assert lines[-1] == "4 tasks, 5 measurements"


def test_list_has_tasks_of_versions_with_other_problems(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    key = kernel_key(GEMM, H200).replace("GemmProblem", "GemmNormProblem")
    database.add(Measurement(key, config(3), Status.OK, 4.5, 0.1, 20, 1e-4, 1980))
    digest = hashlib.sha256(key.encode()).hexdigest()
    (line,) = [line for line in printed(capsys, "list").splitlines() if digest[:10] in line]
    assert "unknown GemmNormProblem" in line
    assert "4.50" in line
    (row,) = [row for row in json.loads(printed(capsys, "list", "--json")) if row["id"] == digest]
    assert (row["what"], row["best_us"], row["tflops"]) == ("unknown GemmNormProblem", 4.5, None)
    assert "4.50" in printed(capsys, "show", digest[:10])


def test_list_as_json(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(printed(capsys, "list", "--json"))
    (row,) = [row for row in rows if row["id"] == digest(GEMM, H200)]
    assert (row["measurements"], row["failures"], row["best_us"], row["tflops"]) == (
        2,
        1,
        10.24,
        pytest.approx(200),
    )
    assert config_from(row["config"]) == config(3)
    assert row["key"]["machine"]["gpu"] == "NVIDIA H200"


def test_list_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(tmp_path))
    assert printed(capsys, "list").splitlines()[-1] == "0 tasks, 0 measurements"
    assert json.loads(printed(capsys, "list", "--json")) == []


def test_show_has_every_measurement_failures_too(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "show", digest(GEMM, H200)[:8])
    assert "gemm 1024x1000x1000" in text
    assert "10.24" in text
    assert "illegal address [/x]" in text
    shown = json.loads(printed(capsys, "show", digest(GEMM, H200), "--json"))
    assert [row["status"] for row in shown["measurements"]] == ["ok", "crashed"]


@pytest.mark.parametrize(("prefix", "what"), [("xyz", "no task"), ("", "4 tasks")])
def test_show_needs_one_task(
    database: Database, capsys: pytest.CaptureFixture[str], prefix: str, what: str
) -> None:
    assert main(["cache", "show", prefix]) == 1
    assert what in capsys.readouterr().err


def test_export_and_merge_carry_everything(
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "measurements.jsonl"
    assert printed(capsys, "export", str(path)) == f"5 measurements in {path}\n"
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(tmp_path / "another machine"))
    assert "5 new measurements" in printed(capsys, "merge", str(path))
    assert "0 new measurements" in printed(capsys, "merge", str(database.path))
    again = tmp_path / "again.jsonl"
    printed(capsys, "export", str(again))
    assert again.read_bytes() == path.read_bytes()


def test_clear_by_gpu_by_age_and_all(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        printed(capsys, "clear", "--gpu", "NVIDIA A100", "--yes")
        == "1 measurements deleted; 4 left\n"
    )
    assert (
        printed(capsys, "clear", "--older-than", "1", "--yes") == "0 measurements deleted; 4 left\n"
    )
    assert printed(capsys, "clear", "--yes") == "4 measurements deleted; 0 left\n"


@pytest.mark.parametrize("days", ["800000", "1e400", "inf", "nan", "-1"])
def test_days_beyond_the_calendar_are_wrong_usage(
    days: str, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "clear", "--yes", "--older-than", days]) == 2
    assert "--older-than" in capsys.readouterr().err
    assert len(database) == 5


def test_clear_asks(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "clear"]) == 2
    assert "--yes" in capsys.readouterr().err
    assert len(database) == 5


def test_quiet_prints_nothing(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "x")
    for arguments in (
        ["list"],
        ["show", digest(CONV, H200)],
        ["export", file],
        ["merge", file],
        ["clear", "--yes"],
    ):
        assert printed(capsys, *arguments, "--quiet") == ""
