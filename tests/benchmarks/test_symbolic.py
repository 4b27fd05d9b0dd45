"""The benchmark of a symbolic batch, on the CPU: function bodies in place of kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import symbolic, whole_models
from benchmarks.symbolic import BATCHES, main
from onnxbolt.options import cache_directory


def test_one_session_serves_every_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another benchmark compiles into the same cache meanwhile."""
    shared = tmp_path / "cache"
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(shared))
    row = symbolic._row

    def beside_another(*arguments: object) -> object:
        shared.mkdir(exist_ok=True)
        (shared / "of_another.o").touch()
        return row(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(symbolic, "_row", beside_another)
    out = tmp_path / "results.json"
    assert main(["dlrm_bottom", "--provider", "cpu", "--fuse", "all", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [(row["name"], row["batch"]) for row in rows] == [
        ("dlrm_bottom", batch) for batch in BATCHES
    ]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["peer_us"] / row["ours_us"], rel=1e-2)
        assert 0 < row["error"] < 1e-2
        assert row["config"] == "one session"


def test_a_wrong_answer_and_a_compiler_at_work_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [
        "dlrm_bottom",
        "--provider",
        "cpu",
        "--fuse",
        "all",
        "--out",
        str(tmp_path / "results.json"),
    ]
    with monkeypatch.context() as strict:
        strict.setattr(whole_models, "LIMIT", 0.0)
        with pytest.raises(
            RuntimeError, match=r"dlrm_bottom, batch 1: relative error .* exceeds 0.0"
        ):
            main(arguments)
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(tmp_path / "cache"))
    row = symbolic._row

    def compiling(*arguments: object) -> object:
        cache_directory().mkdir(exist_ok=True)
        (cache_directory() / "new.o").touch()
        return row(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(symbolic, "_row", compiling)
    with pytest.raises(RuntimeError, match=r"compiled after the session was there: .*new\.o"):
        main(arguments)


def test_unknown_models_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["alexnet"])
    assert "alexnet" in capsys.readouterr().err
