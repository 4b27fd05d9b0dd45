"""The summary: names are code spans, long lists are cut, and a file that GitHub would not take is
shortened."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from onnxbolt import ci
from onnxbolt.ci.comparing import CHANGED, NEW, Compared
from onnxbolt.ci.differences import Differences, ErrorChange, TimeChange
from onnxbolt.ci.summary import markdown, text
from onnxbolt.errors import InputError
from onnxbolt.report.diff import Change
from onnxbolt.report.several import Outcome, Several

NAME = "<img src=x onerror=alert(1)>|`@you`\n# x.onnx"
SPAN = "`` <img src=x onerror=alert(1)>|`@you`\\n# x.onnx ``"
CELL = SPAN.replace("|", "\\|")
FOUND = Several((Outcome(NAME, 5, f"{NAME} is stale", 1.0, None),))
DIFFERENCE = Differences(
    tuple(Change(f"{NAME} {number}", None, NAME) for number in range(60)),
    (TimeChange(90, 4.0, 5.0), TimeChange(80, None, 2.0)),
    (ErrorChange("model", None, 0.25),),
)
COMPARED = [Compared(NAME, CHANGED, DIFFERENCE, NAME), Compared("b.onnx", NEW)]


def test_names_are_code() -> None:
    shown = markdown(FOUND, f"{NAME} (abc)", COMPARED)
    assert NAME not in shown
    # the model in two tables and its note, and what was chosen 50 times
    assert shown.count(CELL) == 2 + 1 + 50
    assert f"### Lock file of {SPAN}\n" in shown
    # a message, a heading, the base, and the choices
    assert shown.count("<img") == shown.count(CELL) + 1 + 1 + 1 + 50
    assert f"## Against {SPAN[:-3]} (abc) ``" in shown
    for line in shown.splitlines():
        assert line.startswith(("| ", "#", "and 10 more", "0 of 1 models")) or not line


def test_cells() -> None:
    shown = markdown(FOUND, "main (abc)", COMPARED)
    (row,) = [line for line in shown.splitlines() if " | changed | " in line]
    assert "| 60 choices differ |" in row
    assert "| sm_90: 4.0 to 5.0 us (+25.0%); sm_80: none to 2.0 us |" in row
    assert "| the whole model: none to 0.25 |" in row
    one = dataclasses.replace(DIFFERENCE, lock=DIFFERENCE.lock[:1])
    assert "1 choice differs" in text(FOUND, "main", [Compared("a", CHANGED, one)])


def test_without_a_base_nothing_is_compared() -> None:
    assert "gainst" not in markdown(FOUND, "", [])
    assert text(FOUND, "", []) == FOUND.text()


def test_a_long_summary_is_cut_at_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = ci.Result(FOUND, "main (abc)", tuple(COMPARED))
    path = tmp_path / "step.md"
    monkeypatch.setattr(ci, "_LARGEST", 1000)
    ci.append_summary(result, path)
    *lines, empty, last = path.read_text().splitlines()
    assert result.markdown().startswith("\n".join(lines) + "\n")
    assert sum(len(line.encode()) + 1 for line in lines) <= 1000
    assert (empty, last) == ("", "The rest is in the artifact's summary.md.")
    with pytest.raises(InputError, match="cannot be written"):
        ci.append_summary(result, tmp_path / "missing" / "step.md")
