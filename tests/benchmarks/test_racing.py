"""Parts that the benchmarks of single kernels share: choosing rows, taking turns, surviving
failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import gemm, peers, racing
from onnxbolt import gpu
from onnxbolt.dtypes import DType
from onnxbolt.problems import ConvProblem
from tests.benchmarks import fakes

SHAPES = "1280x768x768 Bias,1024x1024x1024 Bias"


def test_a_row_that_fails_costs_itself_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fakes.install(monkeypatch, tmp_path / "cache")
    monkeypatch.setattr(fakes.Profiler, "crashes", staticmethod(lambda problem: problem.m == 1024))
    first, second, *_ = fakes.rows(gemm.main, tmp_path / "gemm.json", "--shapes", SHAPES)
    assert first["ratio"]
    assert second["ours_us"] is None
    assert second["values"]["failure"].startswith(
        "OnnxboltError: no candidate ran right: gemm 1024x1024x1024, f16, Bias; crashed: SIGSEGV"
    )


def test_without_pytorch_rows_have_our_side(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fakes.install(monkeypatch, tmp_path / "cache")
    monkeypatch.setattr(peers, "pytorch", lambda: None)
    row, *_ = fakes.rows(gemm.main, tmp_path / "gemm.json", "--shapes", SHAPES)
    assert row["ours_us"] > 0
    assert (row["peer"], row["peer_us"], row["ratio"]) == ("", None, None)


def test_where_launches_cannot_be_kept_apart_a_row_goes_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes.install(monkeypatch, tmp_path / "cache")
    monkeypatch.setattr(fakes.Profiler, "serializes", False)
    row, *_ = fakes.rows(gemm.main, tmp_path / "gemm.json", "--shapes", SHAPES)
    assert row["ratio"]
    assert "serial_us" not in row["values"]
    assert (
        "not timed without overlapping launches: the chosen kernel failed"
        in capsys.readouterr().out
    )


def test_a_library_whose_list_failed_is_called_by_its_first_algorithm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> dict[str, peers.Operation]:
        raise RuntimeError("cublasLtCreate failed with cublasStatus_t 1")

    monkeypatch.setattr(peers, "pytorch", lambda: None)
    assert peers.where_listed(broken) == {}
    assert "first algorithm alone: cublasLtCreate failed" in capsys.readouterr().out
    assert peers.library("cuBLAS", ["first algorithm, weight [N, K]"]) == "cuBLAS's first algorithm"
    assert (
        peers.library(
            "cuBLAS", ["first algorithm, weight [N, K]", "cublasLt 3 of 8, weight [N, K]"]
        )
        == "cuBLAS"
    )
    assert peers.library("cuDNN", ["channels last"]) == "cuDNN"


def test_a_name_that_nothing_has_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("onnxbolt.gpu.local_arch", lambda: "sm_90a")
    assert gemm.main(["--shapes", "1x2x3"]) == 1
    assert "nothing is called 1x2x3; choose from 1280x3072x768" in capsys.readouterr().err


@pytest.mark.skipif(gpu.local_arch() is not None, reason="this machine has a GPU")
def test_no_gpu_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert gemm.main([]) == 1
    assert capsys.readouterr().err.startswith("error: no NVIDIA GPU")


def test_turns_are_reversed_and_the_first_is_no_measurement() -> None:
    order: list[str] = []

    def measure(name: str) -> Any:
        def run(count: int) -> list[float]:
            order.append(name)
            return [float(len(order))] * count

        return run

    samples = racing.take_turns({"a": measure("a"), "b": measure("b")}, 2, 3)
    assert "".join(order) == "abbaab"
    assert (samples["a"].times, samples["b"].times) == ((4.0, 5.0), (3.0, 6.0))


def test_operands_exceed_the_cache_and_graphs_are_long_enough() -> None:
    assert peers.rotated_sets(10**6, 60 * 10**6) == 120
    assert peers.rotated_sets(10**9, 60 * 10**6) == 1
    assert peers.rotated_sets(10, 60 * 10**6) == 256
    assert peers.graph_passes(1, 50.0, 24) == 20
    assert peers.graph_passes(20, 990.0, 24) == 40
    assert peers.graph_passes(20, 1000.0, 24) == 20
    assert peers.graph_passes(1, 10.0, 256) == 8
    assert peers.graph_passes(8, 80.0, 256) == 8


def test_uneven_padding_is_no_convolution_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "pytorch", lambda: None)
    monkeypatch.setattr(peers, "operand_sets", lambda size: 1)
    dtype = DType.F16
    uneven = ConvProblem(
        1, 8, 8, 8, 8, 3, 3, 7, 7, (0, 0, 1, 1), (1, 1), (1, 1), 1, dtype, dtype, ()
    )
    with pytest.raises(RuntimeError, match="no padding"):
        peers.convolution(uneven)
