"""The benchmark of tables of kernels, on a GPU that takes no time."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks import racing, regret
from benchmarks.columns import TABLES
from benchmarks.regret import (
    BEYOND,
    SIZES,
    drawn,
    is_beyond,
    main,
    named_for,
    nodes_at,
    without_range,
)
from benchmarks.varying import SUBJECTS
from onnxbolt.problems import Problem
from tests.benchmarks import fakes
from tests.tune.fakes import true_us

MODEL = "resnet50"


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fakes.install(monkeypatch, tmp_path / "cache")
    monkeypatch.setattr(regret, "Profiler", fakes.Profiler)
    monkeypatch.setattr(regret, "build", vars(racing)["build"])


def test_the_kernels_that_tables_name_against_the_fastest(tmp_path: Path) -> None:
    (row,) = fakes.rows(main, tmp_path / "regret.json", MODEL)
    values, sizes = row["values"], drawn(SUBJECTS[MODEL])
    assert values["sizes"] == len(values["regrets"]) == SIZES
    assert values["shapes"] == [list(map(list, at)) for at in sizes]
    assert values["beyond"] == BEYOND
    assert 1 <= values["regret"] <= values["worst_size"] <= values["worst_node"]
    assert values["worst_node"] > 1
    named, best = 0.0, 0.0
    for node in nodes_at(SUBJECTS[MODEL], "sm_90a", sizes[:1])[0]:
        named += true_us(node.problem, node.named)
        best += min(true_us(node.problem, kernel) for kernel in node.kernels)
    assert values["regrets"][0] == pytest.approx(named / best, abs=1e-3)
    cells = [cell(row) for cell in TABLES["regret"].columns.values()]
    assert cells[:3] == [MODEL, str(SIZES), str(BEYOND)]


def test_no_further_size_is_begun_when_the_time_is_over(tmp_path: Path) -> None:
    (row,) = fakes.rows(main, tmp_path / "regret.json", MODEL, "--within", "0.001s")
    assert row["values"]["sizes"] == len(row["values"]["shapes"]) == 1


def test_a_kernel_that_does_not_run_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crashes(problem: Problem) -> bool:
        return True

    monkeypatch.setattr(fakes.Profiler, "crashes", staticmethod(crashes))
    assert main([MODEL, "--out", str(tmp_path / "regret.json")]) == 1
    assert "the kernel of a table does not run: " in capsys.readouterr().err


def test_every_size_has_a_kernel_of_its_table() -> None:
    (nodes,) = nodes_at(SUBJECTS[MODEL], "sm_90a", [((100, 3, 224, 224),)])
    for node in nodes:
        assert len(node.kernels) > 1
        assert node.named in node.kernels
        ranges = [(0, 9), (10, 99), (100, 2**31 - 1)]
        table = [
            dataclasses.replace(kernel, min_m=low, max_m=high)
            for kernel, (low, high) in zip(node.kernels, ranges, strict=False)
        ]
        assert named_for(table, 0) == named_for(table, 9) == node.kernels[0]
        assert named_for(table, 10) == node.kernels[1]
        assert {without_range(row) for row in table} <= set(node.kernels)


@pytest.mark.parametrize("name", regret.MODELS)
def test_sizes_are_seeded_and_reach_beyond_the_points(name: str) -> None:
    subject = SUBJECTS[name]
    found = drawn(subject)
    assert found == drawn(subject)
    assert len(set(found)) == SIZES
    assert sum(is_beyond(subject, at) for at in found) == BEYOND
    assert len({is_beyond(subject, at) for at in found[: SIZES // 2]}) == 2


def test_unknown_models_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["alexnet"])
    assert "no model alexnet: choose from db_text_detector" in capsys.readouterr().err


def test_without_a_gpu_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("onnxbolt.gpu.local_arch", lambda: None)
    assert main([]) == 1
    assert "no NVIDIA GPU" in capsys.readouterr().err
