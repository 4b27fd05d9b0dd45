"""The problems of the collection, and what is left of it when it is interrupted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import collect
from onnxbolt.archs import get
from onnxbolt.families import KernelConfig
from onnxbolt.measurements.keys import kernel_key
from onnxbolt.measurements.records import Measurement
from onnxbolt.plan.cost import candidates
from onnxbolt.problems import ConvProblem, Problem
from onnxbolt.tune.database import Database
from tests.tune import fakes
from tests.tune.fakes import conv, gemm

H200 = get(90)
PROBLEMS = collect.read()


def test_the_stored_problems_are_enough_and_have_kernels() -> None:
    counted = Counter(map(collect._kind, PROBLEMS))
    assert len(set(PROBLEMS)) == len(PROBLEMS) >= 300
    assert counted.keys() == collect.COUNTS.keys()
    assert all(counted[kind] <= count for kind, count in collect.COUNTS.items())
    for problem in PROBLEMS:
        assert problem.reference is not None
        assert candidates(problem, H200)


def test_any_beginning_has_all_kinds() -> None:
    first = Counter(map(collect._kind, PROBLEMS[: len(PROBLEMS) // 5]))
    assert first.keys() == collect.COUNTS.keys()
    assert first["gemm"] >= 15


def test_drawing_is_the_same_each_time_and_in_any_order() -> None:
    known = [gemm(64 * i, 128, 8 * i) for i in range(1, 9)] + [conv(7 * i) for i in range(1, 6)]
    counts = {"gemm": 12, "conv": 9, "attention": 4}
    first = collect.drawn(known, counts)
    random.Random(0).shuffle(known)
    assert collect.drawn(known, counts) == first
    assert Counter(map(collect._kind, first)) == {"gemm": 12, "conv": 9}
    new = [problem for problem in first if problem not in known]
    assert len([problem for problem in new if problem.operation == "gemm"]) == 5
    assert all(64 <= problem.rows <= 512 for problem in new if problem.operation == "gemm")


def test_a_convolution_between_two_has_the_output_of_its_sizes() -> None:
    found = collect.between(conv(7, 64, 64), conv(56, 128, 256), random.Random(1))
    assert isinstance(found, ConvProblem)
    assert (found.p, found.q) == (found.h, found.w)  # 3x3, padded by 1
    assert 7 <= found.h <= 56
    assert found.c % 8 == found.k % 8 == 0
    assert collect.between(conv(7), gemm(), random.Random(1)) is None


class Gpu:
    """The tests' profiler and compiler, and the clock that both go by."""

    def __init__(self, seconds: float = 0.1) -> None:
        self.clock = fakes.Clock()
        self.profiler = fakes.Profiler(self.clock, seconds)

    def measure(self, problems: Sequence[Problem], out: Path, within: float) -> int:
        return collect.measure(
            problems, out, self.profiler, fakes.Builder(), fakes.MACHINE, within, self.clock
        )


def kept(out: Path, at: Path) -> dict[Problem, list[Measurement]]:
    with Database(at) as database:
        database.merge(out)
        return {p: database.measurements(kernel_key(p, fakes.MACHINE)) for p in SOME}


SOME = [gemm(256, 128, 64), conv(7), gemm(128, 64, 256), gemm(64, 64, 64), gemm(8, 64, 64)]


def test_every_feasible_kernel_is_measured(tmp_path: Path) -> None:
    out, gpu = tmp_path / "out.jsonl.gz", Gpu()
    assert gpu.measure(SOME, out, 1e9) == len(SOME)
    for problem, rows in kept(out, tmp_path / "kept.sqlite").items():
        configs: set[KernelConfig | None] = {row.config for row in rows}
        assert configs == set(candidates(problem, H200))
    assert out.read_bytes()[:2] == b"\x1f\x8b"


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    out, first, second = tmp_path / "out.jsonl.gz", Gpu(), Gpu()
    everything = sum(len(candidates(problem, H200)) for problem in SOME)
    assert first.measure(SOME, out, 0.1 * everything / 2) < len(SOME)
    done = len(first.profiler.measured)
    assert 0 < done < everything
    assert second.measure(SOME, out, 1e9) == len(SOME)
    assert len(second.profiler.measured) == everything - done
    again = Gpu()
    before = out.read_bytes()
    assert again.measure(SOME, out, 1e9) == len(SOME)
    assert (again.profiler.measured, out.read_bytes()) == ([], before)


def test_measuring_needs_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("onnxbolt.gpu.local_arch", lambda: None)
    assert collect.main(["measure", str(tmp_path / "out.jsonl.gz")]) == 1
    assert "no NVIDIA GPU" in capsys.readouterr().err
