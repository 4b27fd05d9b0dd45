"""Progress: AutoTVM's lines, plain, in place, and as JSON."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from onnxbolt.tune.progress import Json, Plain, Silent, TaskLine, Terminal, TotalLine, reporter

TASK = TaskLine(3, 12, "gemm 1280x3072x768, f16, Bias", 512.0, 640.0, 18, 24, 4.2)
TOTAL = TotalLine(120, 288, 84.4, 40.0)


def test_lines_read_as_autotvm_users_know_them() -> None:
    assert (
        str(TASK)
        == "[Task  3/12] Current/Best:  512.0/ 640.0 TFLOP/s | 18/24 | 4.2 s | gemm 1280x3072x768,"
        " f16, Bias"
    )
    assert str(TOTAL) == "[Total] 120/288 | 84 s, about 40 s left"
    assert str(TotalLine(0, 288, 1.0, None)) == "[Total] 0/288 | 1 s"


def test_plain_lines_for_every_task_and_now_and_then_for_the_whole() -> None:
    lines: list[str] = []
    now = [0.0]
    with Plain(lines.append, lambda: now[0]) as progress:
        for second in range(12):
            now[0] = float(second)
            progress.show(TASK)
            progress.show(TOTAL)
    assert lines.count(str(TASK)) == 12
    assert lines.count(str(TOTAL)) == 3


def test_json_has_one_object_per_event() -> None:
    lines: list[str] = []
    with Json(lines.append) as progress:
        progress.show(TASK)
        progress.show(TOTAL)
    task, total = map(json.loads, lines)
    assert (task["event"], task["best_tflops"], task["tried"]) == ("task", 640.0, 18)
    assert (total["event"], total["seconds_left"]) == ("total", 40.0)


def test_a_terminal_shows_the_latest_state_of_each_task_and_can_be_used_again() -> None:
    out = io.StringIO()
    terminal = Terminal(Console(file=out, force_terminal=True, width=60))
    for best in (600.0, 640.0):
        with terminal as progress:
            for number in range(1, 41):
                progress.show(
                    TaskLine(
                        number,
                        40,
                        "a problem whose name is longer than the line",
                        1.0,
                        best,
                        1,
                        2,
                        0.1,
                    )
                )
            progress.show(TOTAL)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    last = plain[plain.rindex("[Task 25/40]") :].splitlines()
    assert [line.split("]")[0] for line in last if line.startswith("[")] == [
        *(f"[Task {i}/40" for i in range(25, 41)),
        "[Total",
    ]
    assert max(map(len, last)) <= 60  # cut, and not wrapped


def test_the_reporter_fits_where_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    assert type(reporter(quiet=True)) is Silent
    assert isinstance(reporter("json"), Json)
    with reporter() as progress:
        assert isinstance(progress, Plain)
        progress.show(TASK)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"{TASK}\n")
