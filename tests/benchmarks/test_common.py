"""The clock and the result file."""
import json
from pathlib import Path

import pytest

from benchmarks import common
from benchmarks.common import ClockSampler, Row, write_results


def test_results_have_the_documented_keys_and_can_be_completed_in_parts(tmp_path: Path) -> None:
    out = tmp_path / "sub" / "results.json"
    write_results("gemm", [Row("a", 1, "fp16", 2.0, "peer", 4.0, 2.0)], out)
    write_results("gemm", [Row("b", 1, "fp16")], out, append=True)
    write_results("gemm", [Row("a", 1, "fp16", 1.0, "peer", 4.0, 4.0)], out, append=True)
    document = json.loads(out.read_text())
    assert set(document) == {"gpu", "driver", "versions", "commit", "command", "rows"}
    assert {(row["name"], row["ratio"]) for row in document["rows"]} == {("a", 4.0), ("b", None)}
    assert [path.name for path in out.parent.iterdir()] == ["results.json"]


def test_rows_of_another_commit_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "results.json"
    for commit, name in (("one", "a"), ("two", "b"), ("three", "c"), ("three", "d")):
        monkeypatch.setattr(common, "_commit", lambda commit=commit: commit)
        write_results("gemm", [Row(name, 1, "fp16")], out, append=True)
    document = json.loads(out.read_text())
    assert document["commit"] == "three"
    assert {row["name"]: row["values"].get("commit") for row in document["rows"]} == {"a": "one", "b": "two", "c": None, "d": None}


def test_clock_is_none_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with ClockSampler() as clock:
        pass
    assert clock.mhz is None
