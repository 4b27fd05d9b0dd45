"""The run over all benchmarks: in parts, on several GPUs, at one commit."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from benchmarks import all as everything
from benchmarks import documents, machine
from benchmarks.all import STATE, Schedule, Task, checked, lanes_of, main
from benchmarks.common import Row
from benchmarks.targets import TARGETS
from onnxbolt.errors import InputError
from onnxbolt.options import cache_directory

# a benchmark that takes no time: its row's name is its argument; "fail" fails, "hang" does not end
SCRIPT = """
import os, sys, time
from benchmarks import machine
from benchmarks.common import Row
from benchmarks.documents import write_results
machine.commit, machine.sources = lambda: "0123456789ab", lambda: "digest"
write_results("gemm", [Row(sys.argv[1], 1, "fp16", 1.0)], append=True)
print("measured", sys.argv[1], os.environ["ONNXBOLT_CACHE_DIR"], flush=True)
print('[Task 1/2] 3 TFLOP/s\\n{"engineId":7,"knobChoices":{}}')
print("Warning: CUDNN_STATUS_NOT_SUPPORTED_SHAPE; Reason: none")
print("[W:onnxruntime:Default, conv.cc:1 UpdateState] OP Conv(c) running in Fallback mode. May be")
if sys.argv[1] == "hang":
    time.sleep(600)
sys.exit(sys.argv[1] == "fail")
"""


class Quick(Task):
    @property
    def command(self) -> list[str]:
        return [sys.executable, "-c", SCRIPT, self.arguments]


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        everything,
        "TASKS",
        tuple(Quick("gemm", seconds, name) for name, seconds in (("a", 1), ("fail", 1), ("b", 1))),
    )
    monkeypatch.setattr(machine, "commit", lambda root=None: "0123456789ab")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setattr(machine, "sources", lambda root=None: "digest")


def rows(directory: Path) -> set[str]:
    (path,) = directory.glob("gemm-*.json")
    return {row["name"] for row in json.loads(path.read_text())["rows"]}


def test_parts_go_on_where_the_last_one_ended(
    tasks: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "part.zip"
    assert (
        main(
            [
                "--into",
                str(tmp_path / "one"),
                "--bundle",
                str(bundle),
                "--only",
                "gemm a,fail",
                "--gpus",
                "2",
            ]
        )
        == 1
    )
    said = capsys.readouterr().out
    assert "gemm a: done in" in said
    assert "gemm fail: ended with 1" in said
    # builds in one cache would wait for each other
    caches = {line.split()[-1] for line in said.splitlines() if "] measured " in line}
    assert caches
    assert caches <= {str(cache_directory() / f"gpu{gpu}") for gpu in range(2)}
    assert said.endswith("not measured: gemm fail\n")
    with zipfile.ZipFile(bundle) as found:
        assert json.loads(found.read(STATE)) == ["gemm a"]
    one = tmp_path / "one"
    assert rows(one) == {"a", "fail"}
    assert Schedule(one, 1e18).missing == ["gemm fail", "gemm b"]


def test_tasks_run_in_the_order_in_which_they_are_given(
    tasks: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--into", str(tmp_path), "--only", "gemm b,gemm a,gemm b"]) == 0
    begun = [line for line in capsys.readouterr().out.splitlines() if ": begun, " in line]
    assert [line.split(":")[0] for line in begun] == ["[gpu 0] gemm b", "[gpu 0] gemm a"]


def test_logs_leave_out_what_cudnn_refuses(
    tasks: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--into", str(tmp_path), "--only", "gemm a"]) == 0
    said = [line.partition("] ")[2].split()[0] for line in capsys.readouterr().out.splitlines()]
    assert said == ["gemm", "measured", "gemm"]


def test_rows_of_another_commit_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(documents.DIRECTORY, str(tmp_path))
    monkeypatch.setattr(everything, "TASKS", (Task("gemm", 1),))
    path = documents.write_results("gemm", [Row("a", 1, "fp16")])
    (tmp_path / STATE).write_text('["gemm"]')
    other = tmp_path / "gemm-another-gpu.json"
    other.write_text(path.read_text())
    assert Schedule(tmp_path, 1e18).missing == []
    assert path.exists()
    monkeypatch.setattr(machine, "commit", lambda root=None: "another")
    assert Schedule(tmp_path, 1e18).missing == ["gemm"]
    assert not path.exists()
    assert other.exists()  # another GPU's file: not measured here


def test_a_task_that_cannot_end_in_time_is_not_begun_and_one_that_hangs_is_ended(
    tasks: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(everything, "TASKS", (Quick("gemm", 1e6, "long"), Quick("gemm", 1, "hang")))
    monkeypatch.setattr(everything, "_GRACE", 0.0)
    killed: list[int] = []
    monkeypatch.setattr(
        "threading.Timer", lambda seconds, end, arguments: Timer(end, arguments, killed)
    )
    assert main(["--into", str(tmp_path), "--minutes", "2"]) == 1
    said = capsys.readouterr().out
    assert "gemm long: begun" not in said
    assert "gemm hang: ended with -9" in said
    assert len(killed) == 1


class Timer:
    """Ends the process as soon as it has said something, whatever the machine's load."""

    def __init__(self, end, arguments, killed: list[int]) -> None:  # type: ignore[no-untyped-def]
        self._end, (self._process,), self._killed = end, arguments, killed

    def start(self) -> None:
        assert self._process.stdout.readline().startswith("measured hang")
        self._end(self._process)
        self._killed.append(self._process.pid)

    def cancel(self) -> None:
        pass


def test_each_gpu_has_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(32)))
    assert lanes_of(2) == [(0, set(range(16))), (1, set(range(16, 32)))]


def test_every_model_and_every_table_is_renewed() -> None:
    named = {
        name
        for task in everything.TASKS
        if task.benchmark == "end_to_end"
        for name in task.arguments.split()[1].split(",")
    }
    assert {target.name for target in TARGETS if not named & {target.name, target.model}} == set()
    assert all("--append" in task.arguments for task in everything.TASKS)
    assert len({task.name for task in everything.TASKS}) == len(everything.TASKS)


def test_what_is_installed_was_measured_from_the_sources_of_its_commit(tmp_path: Path) -> None:
    path = documents.write_results("gemm", [Row("a", 1, "fp16")], tmp_path / "gemm-any.json")
    found = json.loads(path.read_text())
    checked(found, "gemm", lambda commit: found["sources"])
    with pytest.raises(InputError, match="not measured from the sources of commit"):
        checked(found, "gemm", lambda commit: "")
    with pytest.raises(InputError, match="digest does not fit"):
        checked({**found, "commit": "another"}, "gemm", lambda commit: found["sources"])


def test_results_of_another_commit_stay_where_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = tmp_path / "installed"
    for name in ("RESULTS", "plots", "tables", "checked"):
        monkeypatch.setattr(everything, name, installed if name == "RESULTS" else Mock())
    old = documents.write_results("gemm", [Row("a", 1, "fp16")], installed / "gemm-any.json")
    kept, bundle = old.read_bytes(), tmp_path / "bundle.zip"
    with zipfile.ZipFile(bundle, "w") as archive:
        archive.writestr("gemm-any.json", json.dumps({"commit": "0123456789abcdef"}))
    everything.install(bundle, beside=True)
    assert old.read_bytes() == kept
    assert json.loads((installed / "gemm-any-0123456789ab.json").read_text())
    everything.install(bundle)
    assert old.read_bytes() != kept


def test_a_changed_checkout_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "commit", lambda: "0123456789ab-dirty")
    assert main(["--into", str(tmp_path)]) == 1
    assert "commit the changes first" in capsys.readouterr().err
