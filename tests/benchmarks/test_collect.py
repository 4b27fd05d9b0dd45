"""The problems of the collection, and what is left of it when it is interrupted."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from benchmarks import collect
from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import DEQUANTIZE, QUANTIZE
from onnxbolt.errors import OnnxboltError
from onnxbolt.families import KernelConfig
from onnxbolt.measurements.keys import kernel_key
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.options import Options
from onnxbolt.plan.cost import candidates
from onnxbolt.problems import ConvProblem, Problem, QuantizedConvProblem, QuantizedGemmProblem
from onnxbolt.tune.database import Database
from onnxbolt.tune.measuring import Candidates, OneGpu
from onnxbolt.tune.profiler import Profiler
from onnxbolt.tune.training import LEAST_PROBLEMS
from tests.tune import fakes
from tests.tune.fakes import conv, gemm

H200 = get(90)
PROBLEMS = collect.read()


def test_the_stored_problems_are_enough_and_have_kernels() -> None:
    counted = Counter(map(collect._kind, PROBLEMS))
    assert len(set(PROBLEMS)) == len(PROBLEMS) >= 300
    least = {kind: collect.COUNTS[kind] for kind in ("gemm", "attention", "norm")}
    least.update(collect.CODE_COUNTS)
    assert counted.keys() == collect.COUNTS.keys() | collect.CODE_COUNTS.keys()
    assert all(counted[kind] >= count for kind, count in least.items())
    for problem in PROBLEMS:
        assert problem.reference is not None
        assert candidates(problem, H200)
        if isinstance(problem, collect.Image):
            assert collect._with_output(problem) == problem


def test_any_beginning_has_all_kinds() -> None:
    first = Counter(map(collect._kind, PROBLEMS[: len(PROBLEMS) // 5]))
    assert first.keys() == collect.COUNTS.keys()
    assert first["gemm"] >= 15


def test_all_problems_of_a_whole_model_are_there() -> None:
    found = collect.of_model("bert_base", 32, Options(archs=("sm_90a",)))
    assert {each for each in found if each.reference is not None} <= set(PROBLEMS[:200])
    assert max(found.values()) >= 12  # layers


def test_products_of_codes_are_behind_all_others() -> None:
    found = [problem for problem in PROBLEMS if collect._kind(problem) in collect.CODE_COUNTS]
    assert found == PROBLEMS[-len(found) :]
    assert {problem.dtype for problem in found} == {DType.I8, DType.E4M3}
    by_channel = [p for p in found if isinstance(p, QuantizedConvProblem) and p.depthwise]
    assert len(by_channel) >= LEAST_PROBLEMS


@pytest.mark.parametrize("batch", [1, 32])
def test_all_products_of_a_quantized_model_are_there(batch: int) -> None:
    found = set(collect.of_quantized("resnet50", "int8", batch))
    assert len(found) == 27  # ResNet-50 has 53 convolutions, the first of values, and a product
    there = found & set(PROBLEMS)
    assert there == found if batch == 32 else 3 <= len(there) < len(found)


def test_a_product_of_codes_is_drawn_between_two() -> None:
    one, other = (_coded(m, 16 * m, 16) for m in (1, 64))
    found = collect.drawn([one, other], {"quantized gemm": 6}, (DType.I8,))
    assert len(found) == 6
    new = [problem for problem in found if problem not in (one, other)]
    assert all(problem.columns % 16 == 0 for problem in new)  # else no kernel stores them
    assert not collect.drawn([one, other], {"quantized gemm": 6})


def _coded(m: int, n: int, k: int) -> QuantizedGemmProblem:
    chain = (DEQUANTIZE, "Bias", QUANTIZE[DType.I8])
    return QuantizedGemmProblem(m, n, k, DType.I8, DType.I8, chain)


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
        self.builder = fakes.Builder()

    def measure(self, problems: Sequence[Problem], out: Path, within: float) -> int:
        gpu = OneGpu(self.profiler, fakes.MACHINE, self.clock)
        return collect.measure(problems, out, gpu, self.builder, within, self.clock)


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


def test_kernels_of_older_generations_come_last(tmp_path: Path) -> None:
    gpu = Gpu()
    gpu.measure(SOME, tmp_path / "out.jsonl.gz", 1e9)
    newest = [config.family.generation == 2 for _, config in gpu.profiler.measured]
    assert newest == sorted(newest, reverse=True)
    assert {True, False} <= set(newest)


def test_a_kernel_is_compiled_once_for_all_problems(tmp_path: Path) -> None:
    gpu = Gpu()
    gpu.measure(SOME, tmp_path / "out.jsonl.gz", 1e9)
    assert len(gpu.builder.compiled) == len(set(gpu.builder.compiled))


def test_a_kernel_that_does_not_compile_is_kept_as_such(tmp_path: Path) -> None:
    out, gpu = tmp_path / "out.jsonl.gz", Gpu()
    gpu.builder.refused = lambda instance: instance.config.family.name == "gemm_sm90"
    assert gpu.measure(SOME, out, 1e9) == len(SOME)
    rows = [row for found in kept(out, tmp_path / "kept.sqlite").values() for row in found]
    refused = {row.config for row in rows if row.status is Status.UNCOMPILED}
    assert refused
    assert all(config is not None and config.family.name == "gemm_sm90" for config in refused)


def test_kinds_can_be_measured_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Problem]()

    def measure(problems: Sequence[Problem], *_: object) -> int:
        asked.extend(problems)
        return 0

    monkeypatch.setattr(collect, "local_gpus", lambda count: contextlib.nullcontext())
    monkeypatch.setattr(collect, "measure", measure)
    collect.main(["measure", str(tmp_path / "out.jsonl.gz"), "--only", "quantized *"])
    assert {collect._kind(problem) for problem in asked} == collect.CODE_COUNTS.keys()


class Slow:
    """A profiler that takes a moment, and says which thread asked it for which problem."""

    def __init__(self, fails: Problem | None = None) -> None:
        self.asked: list[tuple[int, Problem]] = []
        self.fails = fails

    def measure(self, problem: Problem, found: Candidates) -> Sequence[Measurement]:
        self.asked.append((threading.get_ident(), problem))
        if problem == self.fails:
            raise OnnxboltError("no memory")
        time.sleep(0.02)
        return fakes.Profiler(fakes.Clock()).measure(problem, found)


def test_a_worker_is_started_again_before_it_has_too_many_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Restarted(Slow):
        def measure(self, problem: Problem, found: Candidates, **_: object) -> list[Measurement]:
            self.asked.append((0, problem))
            return []

        def restart(self) -> None:
            self.asked.append((1, SOME[0]))

    monkeypatch.setattr(collect, "_LIBRARIES", 3)
    restarted = Restarted()
    quick = collect.Quick(cast(Profiler, restarted))
    config = candidates(SOME[0], H200)[0]
    for names in ("ab", "bc", "cd", "d", "efghi", "a"):
        quick.measure(SOME[0], [(config, Path(name)) for name in names])
    assert [what for what, _ in restarted.asked] == [0, 0, 1, 0, 0, 1, 0, 1, 0]


def test_gpus_measure_side_by_side(tmp_path: Path) -> None:
    out, slow = tmp_path / "out.jsonl.gz", [Slow(), Slow()]
    with collect.SideBySide(slow, fakes.MACHINE) as gpus:
        assert collect.measure(SOME, out, gpus, fakes.Builder()) == len(SOME)
    assert all(len({thread for thread, _ in each.asked}) == 1 for each in slow)
    for problem, rows in kept(out, tmp_path / "kept.sqlite").items():
        assert {row.config for row in rows} == set(candidates(problem, H200))


def test_a_problem_that_cannot_be_measured_stops_no_other(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl.gz"
    with collect.SideBySide([Slow(SOME[1])], fakes.MACHINE) as gpus:
        assert collect.measure(SOME, out, gpus, fakes.Builder()) == len(SOME) - 1
    assert not kept(out, tmp_path / "kept.sqlite")[SOME[1]]


def test_side_by_side_forgets_what_has_not_begun() -> None:
    gpus = collect.SideBySide([Slow()], fakes.MACHINE)
    for number, problem in enumerate(SOME):
        gpus.submit(number, problem, [])
    gpus.cancel(1)
    with gpus:
        found = [measured.task for _ in SOME for measured in gpus.done(1.0)]
        assert sorted(found) == [0, 2, 3, 4]
        assert not gpus.busy


def test_an_error_of_the_program_ends_the_run(tmp_path: Path) -> None:
    class Broken:
        def measure(self, problem: Problem, found: Candidates) -> Sequence[Measurement]:
            raise ZeroDivisionError

    with (
        collect.SideBySide([Broken()], fakes.MACHINE) as gpus,
        pytest.raises(ZeroDivisionError),
    ):
        collect.measure(SOME, tmp_path / "out.jsonl.gz", gpus, fakes.Builder())
    assert (tmp_path / "out.jsonl.gz").exists()


def test_whole_models_come_in_turns_with_others() -> None:
    a, b, c, d = SOME[:4]
    assert collect.ordered([a, b], [b, c, d]) == [a, c, b, d]


def test_measuring_needs_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("onnxbolt.gpu.local_arch", lambda: None)
    assert collect.main(["measure", str(tmp_path / "out.jsonl.gz")]) == 1
    assert "no NVIDIA GPU" in capsys.readouterr().err
