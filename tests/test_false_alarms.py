"""The command that verifies right models (tests/false_alarms.py): what it runs, in which order,
and what it says at the end."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.false_alarms import Table, Task, run, summary, tasks


def _entry(
    seconds: float = 1.0,
    code: str = "new",
    verdict: str = "PASSED: function bodies only: no GPU here",
) -> dict[str, Any]:
    return {"code": code, "seconds": seconds, "verdict": verdict}


def test_entries_of_older_code_are_run_again_unless_they_are_kept() -> None:
    table: Table = {"a fp16 0": _entry(), "a fp16 1": _entry(code="old")}
    assert tasks(table, ["a"], ["fp16"], 3, "new") == [Task("a", "fp16", (1, 2))]
    assert tasks(table, ["a"], ["fp16"], 3, None) == [Task("a", "fp16", (2,))]
    assert tasks(table, ["a"], ["fp16"], 1, "new") == []


def test_the_longest_models_come_first_and_before_them_those_that_never_ran() -> None:
    table: Table = {
        "short fp16 0": _entry(2, "old"),
        "long fp16 0": _entry(9, "old"),
        "long keep 0": _entry(5, "old"),
    }
    found = tasks(table, ["short", "long", "unknown"], ["bf16", "keep"], 1, "new")
    assert [(task.name, task.precision) for task in found] == [
        ("unknown", "bf16"),
        ("unknown", "keep"),
        ("long", "bf16"),
        ("long", "keep"),
        ("short", "bf16"),
        ("short", "keep"),
    ]


@pytest.mark.parametrize(
    ("verdicts", "line", "passed"),
    [
        (["PASSED: kernels", "PASSED: kernels"], "2 runs, 2 PASSED; 0 missing", True),
        (["PASSED: kernels"], "1 runs, 1 PASSED; 1 missing", False),
        (["FAILED: kernels", "PASSED: kernels"], "2 runs, 1 FAILED, 1 PASSED; 0 missing", False),
        (
            ["PASSED by segment; whole model not judged (give --inputs): kernels"] * 2,
            "2 runs, 2 PASSED by segment; whole model not judged (give --inputs); 0 missing",
            False,
        ),
    ],
)
def test_the_last_line_counts_verdicts_and_what_is_missing(
    verdicts: list[str], line: str, passed: bool
) -> None:
    table: Table = {
        f"a fp16 {seed}": _entry(verdict=verdict) for seed, verdict in enumerate(verdicts)
    }
    assert summary(table, [Task("a", "fp16", (0, 1))], "new") == (line, passed)
    assert not summary(table, [Task("a", "fp16", (0, 1))], "newer")[1]


def _work(task: Task, results: Connection) -> None:
    """Stands for a run: one that was killed for memory says nothing more."""
    for seed in task.seeds:
        if task.name == "dies":
            os._exit(9)
        results.send((task.key(seed), _entry()))


def _start(task: Task, results: Connection) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("spawn").Process(
        target=_work, args=(task, results), daemon=True
    )
    process.start()
    return process


def test_a_process_that_dies_takes_no_other_with_it(capfd: pytest.CaptureFixture[str]) -> None:
    saved: Table = {}
    run(
        [Task("dies", "fp16", (0,)), Task("a", "fp16", (0, 1)), Task("b", "keep", (2,))],
        2,
        math.inf,
        _start,
        saved.__setitem__,
    )
    assert sorted(saved) == ["a fp16 0", "a fp16 1", "b keep 2"]
    assert "dies fp16: the process ended with 9" in capfd.readouterr().out


def test_nothing_begins_when_the_time_is_over() -> None:
    def start(task: Task, results: Connection) -> multiprocessing.process.BaseProcess:
        raise AssertionError("begun too late")

    saved: Table = {}
    run([Task("a", "fp16", (0,))], 1, time.time() - 1, start, saved.__setitem__)


def test_a_table_is_made_in_parts(tmp_path: Path) -> None:
    """Two seeds of a small model: the second call runs what is of another code alone."""
    table = tmp_path / "table.json"

    def called(*more: str) -> list[str]:
        command = [
            sys.executable,
            "-m",
            "tests.false_alarms",
            "--only",
            "models/dcn_v2",
            "--precision",
            "fp16",
            "--seeds",
            "2",
        ]
        done = subprocess.run(
            [*command, "--into", str(table), *more],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert called("--jobs", "2")[-1] == "2 runs, 2 PASSED; 0 missing"
    found = json.loads(table.read_text())
    assert all(
        one["segment"]["tensors"] and one["node"]["tensors"] and one["model"]["tensors"]
        for one in found.values()
    )
    found["models/dcn_v2 fp16 1"]["code"] = "old"
    table.write_text(json.dumps(found))
    assert called("--keep-old") == ["2 runs, 2 PASSED; 0 missing"]
    assert [line for line in called() if line.startswith("models/")] == ["models/dcn_v2 fp16 1"]
