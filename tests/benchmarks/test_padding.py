"""Table 3's benchmark, with a GPU and PyTorch's kernels that take no time."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import padding, peers
from tests.benchmarks import fakes


def test_padding_counts_on_both_sides_and_the_faster_form_of_each_is_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fakes.install(monkeypatch, tmp_path / "cache")
    monkeypatch.setattr(
        peers, "convolution", lambda problem: fakes.Operation(90.0 if problem.c % 8 else 10.0)
    )
    monkeypatch.setattr(peers, "channel_padding", lambda problem, channels: fakes.Operation(3.0))
    (row,) = fakes.rows(padding.main, tmp_path / "padding.json", "--shapes", "20x26 46->32 3x3")
    values = row["values"]
    assert (row["batch"], row["peer"], row["peer_us"]) == (32, "cuDNN padded (torch 1.0)", 13.0)
    assert values["tried"] == {"cuDNN unpadded": 90.0, "cuDNN padded": 13.0}
    assert values["padding_share"] == pytest.approx(3.0 / (values["padded_us"] + 3.0), abs=1e-3)
    assert values["gain"] == pytest.approx(
        values["unpadded_us"] / (values["padded_us"] + 3.0), abs=1e-3
    )
    assert values["serial_ratio"] == pytest.approx(13.0 / (row["ours_us"] + fakes.SERIAL), rel=1e-3)
    assert row["ours_us"] == pytest.approx(
        min(values["unpadded_us"], values["padded_us"] + 3.0), abs=2e-3
    )


def test_the_papers_convolutions_are_there() -> None:
    assert [entry.name for entry in padding.entries()] == [
        "20x26 46->32 3x3",
        "20x26 46->32 5x5",
        "14x19 46->32 5x7",
        "11x15 46->32 5x7",
        "20x26 174->64 3x3",
        "20x26 174->64 5x5",
    ]
    assert [padding.padded(problem).c for problem in padding.SHAPES] == [48, 48, 48, 48, 176, 176]
    assert {(problem.p, problem.q) for problem in padding.SHAPES} == {(20, 26), (10, 13), (7, 9)}
