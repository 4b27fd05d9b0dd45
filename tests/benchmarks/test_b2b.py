"""Layers in one kernel against a kernel for each, with a GPU and libraries that take no time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks import b2b, b2b_conv, b2b_gemm
from onnxbolt.plan.cost import supports
from onnxbolt.problems import Problem
from tests.benchmarks import fakes


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fakes.install(monkeypatch, tmp_path / "cache")


@pytest.mark.parametrize("bare_us", [1.0, 1e6])
def test_the_peer_is_ours_apart_unless_the_library_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare_us: float
) -> None:
    monkeypatch.setattr(
        b2b,
        "layers",
        lambda problem, epilogue: {"form": fakes.Operation(2e6 if epilogue else bare_us)},
    )
    rows = fakes.rows(b2b_gemm.main, tmp_path / "b2b_gemm.json", "--shapes", "256-64-16")
    assert [(row["name"], row["batch"]) for row in rows] == [
        ("256-64-16", 16384),
        *(
            (f"{k}256-64-16{n}", rows)
            for rows in (2048, 16384)
            for k, n in (("", "-8"), ("429-", ""), ("432-", ""))
        ),
    ]
    for row in rows:
        values, library_wins = row["values"], bare_us == 1.0
        assert row["peer"].startswith(
            "cuBLAS (torch 1.0), bare: faster" if library_wins else "our own kernels"
        )
        assert row["peer_us"] == (1.0 if library_wins else values["apart_us"])
        assert row["ratio"] == pytest.approx(row["peer_us"] / row["ours_us"], rel=1e-2)
        apart_serial = values["tried"]["apart, serial"]
        assert apart_serial == pytest.approx(
            values["apart_us"] + fakes.SERIAL * values["layers"], abs=2e-3
        )
        assert values["serial_ratio"] == pytest.approx(
            min(apart_serial, bare_us) / values["serial_us"], rel=1e-3, abs=1e-3
        )
        assert len(values["apart_configs"]) == values["layers"] == row["name"].count("-")
        assert values["full_ratio"] == pytest.approx(2e6 / row["ours_us"], rel=1e-2)


def _depths_and_columns(layers: Iterable[Problem]) -> list[tuple[int, int]]:
    return [(shape[2], shape[1]) for layer in layers if (shape := layer.gemm_shape)]


def test_all_pairs_of_the_paper_are_measured_and_padded_as_they_are_stored() -> None:
    assert [entry.name for entry in b2b_gemm.entries()][:4] == [
        "4-1-4",
        "256-64-16",
        "576-128-64",
        "96-32-96",
    ]
    first, *_, last = b2b_gemm.entries()
    assert _depths_and_columns(first.problems[0].layers) == [(4, 8), (8, 4)]
    assert _depths_and_columns(last.problems[1:]) == [(432, 256), (256, 64), (64, 16)]
    assert [entry.name for entry in b2b_conv.entries()] == [
        "224x224 3->48 3x3 /2, 48 1x1",
        "112x112 48->48 3x3 /2, 48 1x1",
        "56x56 48->48 3x3, 48 1x1",
        "224x224 3->64 3x3 /2, 64 1x1",
        "112x112 64->64 3x3 /2, 64 1x1",
        "56x56 64->64 3x3, 64 1x1",
    ]


def test_every_pair_of_convolutions_has_a_kernel_for_both() -> None:
    assert all(supports(entry.problems[0], 90) for entry in b2b_conv.entries())


def test_a_pair_without_a_kernel_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(b2b, "supports", lambda problem, arch: False)
    (row,) = fakes.rows(b2b_conv.main, tmp_path / "b2b_conv.json", "--shapes", "56x56 48->48")
    assert row["ours_us"] is None
    assert row["values"]["failure"] == "OnnxboltError: there is no kernel for these layers together"
