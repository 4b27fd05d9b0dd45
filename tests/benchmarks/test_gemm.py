"""The GEMM benchmark, with a GPU and a cuBLAS that take no time."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import gemm
from tests.benchmarks import fakes


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fakes.install(monkeypatch, tmp_path / "cache")


def test_rows_compare_the_tuned_kernel_with_the_faster_peer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = fakes.rows(gemm.main, tmp_path / "gemm.json", "--shapes", "1280x768x768,1024x1024x1024")
    assert [row["name"] for row in rows] == [
        "1280x768x768",
        "1024x1024x1024",
        "1280x768x768 Bias",
        "1024x1024x1024 Bias",
        "1280x768x768 Bias+GeluErf",
        "1024x1024x1024 Bias+GeluErf",
    ]
    for row in rows:
        assert row["peer"] == "cuBLAS (torch 1.0), bare"
        assert (row["peer_us"], row["values"]["peer_config"]) == (10.0, "fast")
        assert row["ratio"] == pytest.approx(10.0 / row["ours_us"], rel=1e-3)
        assert row["ours_us"] == pytest.approx(row["values"]["tuned_us"], abs=1e-3)
        assert row["values"]["serial_us"] == pytest.approx(row["ours_us"] + fakes.SERIAL, abs=2e-3)
        assert row["values"]["serial_ratio"] == pytest.approx(
            10.0 / row["values"]["serial_us"], rel=1e-3
        )
        assert row["values"]["regret"] >= 1
        assert row["values"]["candidates"] > 1
        assert row["floor_us"] > 0
    assert "geometric mean" in capsys.readouterr().out


def test_all_shapes_of_the_paper_and_their_epilogues_are_measured() -> None:
    names = [entry.name for entry in gemm.entries()]
    assert names[:6] == [
        "1280x3072x768",
        "1280x768x3072",
        "1280x768x768",
        "1024x1024x1024",
        "2048x2048x2048",
        "4096x4096x4096",
    ]
    assert len(names) == len(set(names)) == 18
