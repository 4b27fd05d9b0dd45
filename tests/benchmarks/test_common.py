"""Statistics, interleaving and the result file."""
import json
from pathlib import Path

import pytest

from benchmarks.common import ClockSampler, Row, Sample, interleave, write_results


def test_sample_is_robust_against_an_outlier() -> None:
    sample = Sample((10.0,) * 99 + (1000.0,))
    assert sample.median == 10
    assert sample.spread == 0


def test_rounds_are_interleaved_and_their_first_runs_dropped() -> None:
    calls: list[tuple[str, int]] = []

    def measure(name: str, count: int) -> list[float]:
        calls.append((name, count))
        return [float(len(calls))] * count

    samples = interleave({name: lambda count, name=name: measure(name, count) for name in "ab"}, rounds=2, runs=3)
    assert calls == [("a", 1), ("a", 3), ("b", 1), ("b", 3)] * 2
    assert samples["a"].times == (2.0,) * 3 + (6.0,) * 3


def test_results_have_the_documented_keys_and_can_be_completed_in_parts(tmp_path: Path) -> None:
    out = tmp_path / "sub" / "results.json"
    write_results("gemm", [Row("a", 1, "fp16", 2.0, "peer", 4.0, 2.0)], out)
    write_results("gemm", [Row("b", 1, "fp16")], out, append=True)
    write_results("gemm", [Row("a", 1, "fp16", 1.0, "peer", 4.0, 4.0)], out, append=True)
    document = json.loads(out.read_text())
    assert set(document) == {"gpu", "driver", "versions", "commit", "command", "rows"}
    assert {(row["name"], row["ratio"]) for row in document["rows"]} == {("a", 4.0), ("b", None)}
    assert [path.name for path in out.parent.iterdir()] == ["results.json"]


def test_clock_is_none_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with ClockSampler() as clock:
        pass
    assert clock.mhz is None
