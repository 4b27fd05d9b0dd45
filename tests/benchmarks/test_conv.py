"""The convolution benchmark, with a GPU and a cuDNN that take no time."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import conv, peers
from tests.benchmarks import fakes


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fakes.install(monkeypatch, tmp_path / "cache")


def test_a_residual_is_read_by_the_peer_too(tmp_path: Path) -> None:
    rows = {
        row["name"]: row
        for row in fakes.rows(
            conv.main, tmp_path / "conv.json", "--shapes", "7x7 512->512 3x3,7x7 512->2048"
        )
    }
    plain, residual = rows["7x7 512->512 3x3 Bias+Relu"], rows["7x7 512->2048 1x1 Bias+Add+Relu"]
    assert (plain["peer"], plain["peer_us"]) == ("cuDNN (torch 1.0), bare", 10.0)
    size = 32 * 7 * 7 * 2048 * 2
    assert residual["peer"] == "cuDNN (torch 1.0), bare + residual"
    assert residual["peer_us"] == pytest.approx(10.0 + size / peers.bytes_per_us(100.0), abs=2e-3)
    assert [row["values"]["occurrences"] for row in rows.values()] == [1, 2, 2]
    # behind the fastest form of the peer
    assert all(row["values"]["unfused_us"] == 11.0 for row in rows.values())
    assert "estimated" in residual["values"]
    assert "estimated" not in plain["values"]


def test_all_of_resnet50_is_measured_and_each_problem_once() -> None:
    names = [entry.name for entry in conv.entries()]
    assert len(names) == len(set(names))
    assert len(conv.convolutions("resnet50")) == 53
    assert {
        "56x56 64->64 3x3 Bias+Relu",
        "56x56 64->256 1x1 Bias+Add+Relu",
        "224x224 64->64 3x3 Bias+Relu",
    } <= set(names)
    assert sum("3x3" in name for name in names) == 14


def test_names_tell_stride_and_epilogue() -> None:
    assert conv.name(conv.same(112, 48, 48, stride=2)) == "112x112 48->48 3x3 /2 Bias+Relu"
    assert conv.name(conv.same(14, 256, 1024, 1, chain=())) == "14x14 256->1024 1x1"
