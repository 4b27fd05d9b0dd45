"""The planner's cuts of random chains, on a GPU that takes no time, where kernels behind one
another take as long as each by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import chains
from onnxbolt.plan.cuts import segments
from tests.benchmarks import fakes


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fakes.install(monkeypatch, tmp_path / "cache")


def test_measured_costs_find_the_best_cover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "CHAINS", 6)
    *rows, total = fakes.rows(chains.main, tmp_path / "chains.json", "--trials", "4")
    assert len(rows) == 6
    for row in rows:
        assert row["ratio"] == pytest.approx(1.0)
        assert row["values"]["measured"] == row["values"]["best"]
        assert row["values"]["predicted_loss"] >= 0
    assert (total["name"], total["batch"]) == ("all", 0)
    assert total["ours_us"] == pytest.approx(sum(row["ours_us"] for row in rows), rel=1e-3)
    assert total["values"]["covers"] == sum(row["values"]["covers"] for row in rows) > len(rows)


def test_chains_are_random_and_of_two_to_five_layers() -> None:
    found = chains.chains()
    assert len(found) == 30
    assert {len(widths) - 1 for _, widths in found} == {2, 3, 4, 5}
    assert found == chains.chains()


def test_what_is_tuned_is_what_the_optimizer_would_tune() -> None:
    rows, widths = 8192, (64, 256, 64, 256)
    tuned = {
        problem
        for cut in chains.cuts(rows, widths)
        for problem, _ in chains.segments(rows, widths, cut)
    }
    assert set(segments(chains._graph(rows, widths), [90])) == tuned
