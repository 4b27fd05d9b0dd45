"""Figure 9's benchmark, with a GPU and PyTorch's kernels that take no time."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import epilogue
from tests.benchmarks import fakes


def test_a_fused_kernel_is_compared_with_its_bare_form_and_an_elementwise_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fakes.install(monkeypatch, tmp_path / "cache")
    rows = fakes.rows(
        epilogue.main,
        tmp_path / "epilogue.json",
        "--shapes",
        "gemm 1280x3072x768,conv 56x56 64->64",
    )
    assert [row["values"]["activation"] for row in rows] == 2 * [
        "Relu",
        "GeluErf",
        "HardSwish",
        "Softplus",
    ]
    assert {row["batch"] for row in rows} == {1, 32}
    for row in rows:
        values = row["values"]
        assert row["peer_us"] == 11.0  # the fastest product with its activation, measured together
        assert values["apart_us"] == pytest.approx(values["bare_us"] + 1.0, abs=2e-3)
        assert values["serial_us"] == pytest.approx(row["ours_us"] + fakes.SERIAL, abs=2e-3)
        assert row["ratio"] == pytest.approx(row["peer_us"] / row["ours_us"], rel=1e-3)
        assert values["fused_over_bare"] == pytest.approx(
            row["ours_us"] / values["bare_us"], rel=1e-3
        )


def test_the_papers_workloads_are_there() -> None:
    names = [entry.name for entry in epilogue.entries()]
    assert len(names) == len(set(names)) == 4 * len(epilogue.PROBLEMS)
    assert {"gemm 1280x3072x768 Bias+Softplus", "conv 56x56 64->64 3x3 Bias+GeluErf"} <= set(names)
