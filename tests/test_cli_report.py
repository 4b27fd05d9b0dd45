"""`onnxbolt report`: the page of a written report, and two reports compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onnxbolt.cli import main
from tests.report import reports

ALONE = ("--no-library", "--no-verify", "--arch", "sm_90a", "--quiet")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(reports.small()))
    return path


def test_the_page_of_a_run_and_of_its_report_are_the_same(
    small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json_file, page, again = (
        small_model.with_name(name) for name in ("r.json", "r.html", "s.html")
    )
    results = [f"--report={path}" for path in (json_file, page)]
    out = small_model.with_name("out.onnx")
    assert main(["optimize", str(small_model), str(out), *ALONE, *results]) == 0
    assert main(["report", str(json_file), str(again)]) == 0
    assert capsys.readouterr().out.strip() == str(again)
    assert page.read_bytes() == again.read_bytes()
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("{r}", "{d}/x.md"), 2, "ends in .html"),
        (("{r}", "{d}/none/x.html"), 2, "not the path of a file"),
        (("{r}",), 2, "Missing argument 'OUT.html'"),
        (("{d}/none.json", "{d}/x.html"), 1, "cannot be read"),
        (("diff", "{r}"), 2, "Missing argument 'B.json'"),
        (("diff", "{r}", "{d}"), 1, "regular file"),
        (("diff", "{r}", "{r}", "--json", "--markdown"), 2, "exclude each other"),
        (("page", "{r}", "{r}"), 2, "ends in .html"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(
    arguments: tuple[str, ...],
    code: int,
    words: str,
    written: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [argument.format(r=written, d=written.parent) for argument in arguments]
    before = sorted(written.parent.rglob("*"))
    assert main(["report", *given]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert sorted(written.parent.rglob("*")) == before


def test_differences(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = written.with_name("s.json")
    other.write_text(json.dumps(reports.small() | {"precision": "bf16"}))
    assert main(["report", "diff", str(written), str(written)]) == 0
    assert capsys.readouterr().out.strip() == "no differences"
    assert main(["report", "diff", str(written), str(other)]) == 0
    assert "precision" in capsys.readouterr().out
    assert main(["report", "diff", str(written), str(other), "--markdown"]) == 0
    assert "| `precision` | `fp16` | `bf16` |" in capsys.readouterr().out
    assert main(["report", "diff", str(written), str(other), "--json"]) == 0
    (change,) = json.loads(capsys.readouterr().out)["about"]
    assert change == {"what": "precision", "before": "fp16", "after": "bf16"}
    assert main(["report", "diff", str(written), str(other), "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_a_page_stays_where_no_page_can_be_written(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = written.with_name("x.html")
    page.write_text("before")
    written.write_text("{}")
    assert main(["report", str(written), str(page)]) == 1
    assert page.read_text() == "before"
