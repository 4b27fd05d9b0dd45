"""The comparison of two checkouts' processor time, with times that the tests make up."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import dry_run_times
from tests.conftest import ROOT

SMALL = "squeezenet1_1.ts"


def test_medians_of_checkouts_that_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "onnxbolt").mkdir()
    times = iter([99.0, 99.0, 2.0, 1.0, 9.0, 1.5, 2.5, 8.0])
    runs: list[Path] = []

    def dry_run(model: Path, checkout: Path) -> float:
        assert model.exists()
        runs.append(checkout)
        return next(times)

    monkeypatch.setattr(dry_run_times, "dry_run", dry_run)
    assert dry_run_times.main([str(tmp_path), "--only", SMALL, "--runs", "3"]) == 0
    assert runs == [tmp_path, ROOT] * 4
    assert f"| {SMALL} | 2.50 | 1.50 | 0.60 |" in capsys.readouterr().out


def test_the_mean_is_that_of_ratios() -> None:
    text = dry_run_times.table({"a": (1.0, 2.0), "b": (8.0, 4.0)})
    assert text.splitlines()[-1] == "| geometric mean | | | 1.00 |"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}", "--only", "no_such_model"], "no model of tests/zoo matches no_such_model"),
        (["{}/missing"], "missing is no checkout"),
    ],
)
def test_bad_arguments(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        dry_run_times.main([argument.format(tmp_path) for argument in arguments])
    assert message in capsys.readouterr().err


def test_a_run_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        dry_run_times.dry_run(tmp_path / "missing.onnx", ROOT)
