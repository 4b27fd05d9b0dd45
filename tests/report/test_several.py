"""The table of several models: which exit code is the worst, and what the cells hold."""

from __future__ import annotations

import dataclasses
import json

import pytest

from onnxbolt.measurements.benchmark import Benchmark, Side
from onnxbolt.plan.whole import Estimate
from onnxbolt.report import Report
from onnxbolt.report.markdown import code, table
from onnxbolt.report.several import Outcome, Several

REPORT = dataclasses.replace(
    Report.unchanged("", [80, 90]), whole=(Estimate(80, 10.0, 40.0), Estimate(90, 5.0, 5.0))
)


def outcome(name: str, code: int = 0, report: Report | None = REPORT) -> Outcome:
    return Outcome(name, code, f"code {code}" if code else "", 1.5, report)


@pytest.mark.parametrize(
    ("codes", "interrupted", "worst"),
    [
        ([0, 0], False, 0),
        ([0, 5, 4, 3], False, 3),
        ([5, 4], False, 4),
        ([3, 1, 5], False, 1),
        ([0, 0], True, 130),
        ([0, 5], True, 5),
    ],
)
def test_the_worst_code_counts(codes: list[int], interrupted: bool, worst: int) -> None:
    found = Several(tuple(outcome(str(code), code) for code in codes), interrupted)
    assert found.code == json.loads(found.json())["code"] == worst


def test_gains_are_those_of_the_models_that_were_optimized() -> None:
    other = dataclasses.replace(REPORT, whole=(Estimate(80, 10.0, 10.0),))
    bad = dataclasses.replace(REPORT, whole=(Estimate(80, 1.0, 99.0),))
    found = Several((outcome("a"), outcome("b", 0, other), outcome("c", 3, bad)))
    assert found.verdict == (
        "2 of 3 models optimized; predicted gain, geometric mean: 2.00 on sm_80, 1.00 on sm_90"
    )
    assert found.text().splitlines()[-1] == found.verdict


def test_measured_times_have_columns_of_their_own() -> None:
    speed = Benchmark(Side("ours", "", 2.0, 0.1), (Side("peer", "", 5.0, 0.1),), {})
    timed = dataclasses.replace(REPORT, speed=speed)
    found = Several((outcome("a"), outcome("b", 0, timed), outcome("c", 1, None)))
    header, _, *rows = found.markdown().splitlines()[2:-2]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (header, *rows)]
    where = cells[0].index("measured gain")
    assert [row[where] for row in cells[1:]] == ["", "2.50", ""]
    assert cells[3] == ["`c`", "error", *[""] * (len(cells[0]) - 3), "`code 1`"]
    assert json.loads(found.json())["models"][1]["measured"] == {"ours_us": 2.0, "ort_us": 5.0}
    assert "measured gain" not in Several((outcome("a"),)).text()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("conv/1", "`conv/1`"),
        ("a`b``c", "``` a`b``c ```"),
        ("`", "`` ` ``"),
        ("two\nlines\x1b[0m", "`two\\nlines\\x1b[0m`"),
        ("a\\|b", "`a\\\\x7cb`"),
    ],
)
def test_a_code_span_holds_any_name(text: str, shown: str) -> None:
    assert code(text) == shown
    line = table(["name", "x"], [[code(text), "1"]]).splitlines()[-1]
    assert line == f"| {shown} | 1 |"


def test_bars_are_escaped_in_cells() -> None:
    assert table(["x"], [[code("a|b")]]).splitlines()[-1] == "| `a\\|b` |"


def test_control_characters_are_spelled_out_in_cells() -> None:
    assert table(["x"], [["a\x1b[31m\nb"]]).splitlines()[-1] == r"| a\x1b[31m b |"
