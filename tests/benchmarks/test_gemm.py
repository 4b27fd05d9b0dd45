"""The GEMM benchmark's logic, with a GPU and a cuBLAS that take no time."""
from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gemm
from onnxbolt.codegen.render import Instance
from onnxbolt.kernels.config import GemmProblem, KernelConfig
from onnxbolt.tune.library import Result
from onnxbolt.tune.records import Measurement, Status
from tests.tune import fakes

SHAPES = "1280x768x768,1024x1024x1024"


class Profiler(fakes.Profiler):
    """The fake GPU; where `crashes`, all kernels of M = 1024 do."""

    machine = fakes.MACHINE
    crashes = False

    def __init__(self, arch: int) -> None:
        super().__init__(fakes.Clock())

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def measure(self, problem: Any, candidates: Sequence[tuple[KernelConfig, Path]], samples: int = 15) -> list[Measurement]:
        measured = super().measure(problem, candidates)
        if self.crashes and problem.m == 1024:
            return [dataclasses.replace(m, status=Status.CRASHED, us=0.0, detail="SIGSEGV") for m in measured]
        return measured


def build(instances: Sequence[Instance], stop: threading.Event | None = None) -> Iterator[Result]:
    return fakes.Builder()(instances, stop or threading.Event())


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(gemm.gpu, "local_arch", lambda: "sm_90a")
    monkeypatch.setattr(gemm, "Profiler", Profiler)
    monkeypatch.setattr(gemm, "build", build)
    monkeypatch.setattr(gemm, "cublas", lambda _: {"slow": lambda count: [20.0] * count, "fast": lambda count: [10.0] * count})
    monkeypatch.setattr(gemm.metadata, "version", lambda name: "1.0")

    def rows() -> list[dict[str, Any]]:
        assert gemm.main(["--shapes", SHAPES, "--out", str(tmp_path / "gemm.json")]) == 0
        return list(json.loads((tmp_path / "gemm.json").read_text())["rows"])

    return rows


def test_rows_compare_the_tuned_kernel_with_the_faster_peer(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = run()
    assert [first["name"], second["name"]] == SHAPES.split(",")
    for row in (first, second):
        assert row["peer"] == "cuBLAS (torch 1.0), bare product"
        assert (row["peer_us"], row["values"]["peer_config"]) == (10.0, "fast")
        assert row["ratio"] == pytest.approx(10.0 / row["ours_us"], rel=1e-3)
        assert row["ours_us"] == pytest.approx(row["values"]["tuned_us"], abs=1e-3)
        assert row["values"]["regret"] >= 1
        assert row["values"]["candidates"] > 1
        assert row["floor_us"] > 0
    assert "geometric mean" in capsys.readouterr().out


def test_a_problem_that_fails_costs_its_row_alone(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Profiler, "crashes", True)
    first, second = run()
    assert first["ratio"]
    assert second["ours_us"] is None
    assert second["values"]["failure"] == "no candidate ran right"


def test_turns_are_reversed_and_the_first_is_no_measurement() -> None:
    order: list[str] = []

    def measure(name: str) -> Any:
        return lambda count: order.append(name) or [float(len(order))] * count

    samples = gemm.take_turns({"a": measure("a"), "b": measure("b")}, 2, 3)
    assert "".join(order) == "abbaab"
    assert (samples["a"].times, samples["b"].times) == ((4.0, 5.0), (3.0, 6.0))


def test_operands_exceed_the_cache_and_graphs_are_long_enough() -> None:
    assert gemm.rotated_sets(10**6, 60 * 10**6) == 120
    assert gemm.rotated_sets(10**9, 60 * 10**6) == 1
    assert gemm.rotated_sets(10, 60 * 10**6) == 256
    assert gemm.graph_passes(50.0, 24) == 5
    assert gemm.graph_passes(1000.0, 1) == 1
    assert gemm.graph_passes(0.0, 256) == 8


def test_all_shapes_of_the_issue_are_measured() -> None:
    names = {gemm._shape(GemmProblem(*shape, fakes.DType.F16, fakes.DType.F16, gemm.CHAIN)) for shape in gemm.SHAPES}
    assert names == {"1280x3072x768", "1280x768x3072", "1280x768x768", "1024x1024x1024", "2048x2048x2048", "4096x4096x4096"}
