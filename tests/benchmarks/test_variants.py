"""The benchmark of RepVGG's variants, on the CPU: function bodies in place of kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import variants, whole_models
from benchmarks.columns import TABLES
from benchmarks.variants import PLAIN, VARIANTS, main

VARIANT = "repvgg_a0_deploy_hard_swish"
PAPERS = ("Bolt, T4", "Bolt's top-1, %")


def test_a_variant_is_compared_with_the_plain_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "_OPENINGS", 2)
    monkeypatch.setattr(variants, "_ROUNDS", 1)
    monkeypatch.setattr(variants, "_RUNS", 2)
    out = tmp_path / "results.json"
    assert main([VARIANT, "--batch", "1", "--provider", "cpu", "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["name"], row["peer"], row["values"]["configurations"]) == (
        VARIANT,
        PLAIN,
        "predicted",
    )
    assert row["ratio"] == pytest.approx(row["peer_us"] / row["ours_us"], rel=1e-2)
    assert row["values"]["times_plain"] == pytest.approx(row["ours_us"] / row["peer_us"], rel=1e-2)
    assert len(row["values"]["of_sessions"]) == 2
    assert all(times > 0 for times in row["values"]["of_sessions"])
    assert 0 < row["error"] < 1e-2
    monkeypatch.setattr(whole_models, "LIMIT", 0.0)
    with pytest.raises(RuntimeError, match=rf"{PLAIN}: relative error .* exceeds 0.0"):
        main([VARIANT, "--batch", "1", "--provider", "cpu", "--out", str(out)])


def test_unknown_variants_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["repvgg_b0"])
    assert "repvgg_b0" in capsys.readouterr().err


def test_the_paper_s_numbers_stand_beside_every_row() -> None:
    columns = TABLES["variants"].columns
    for name in VARIANTS:
        shown = [columns[title]({"name": name, "values": {}}) for title in PAPERS]
        assert all(shown), name
    row: dict[str, object] = {"name": "repvggaug_a0_deploy", "values": {}}
    assert [columns[title](row) for title in PAPERS] == ["1.170", "73.05 to 73.87"]
