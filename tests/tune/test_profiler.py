"""Measuring with a worker that is a script: it obeys the names of the libraries that it is told
to load."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxbolt.codegen.digest import kernel_sources_digest
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import MAX_PARAMS
from onnxbolt.errors import OnnxboltError
from onnxbolt.families.base import Schedule
from onnxbolt.families.gemm_2x import Gemm2xConfig
from onnxbolt.families.gemm_3x import Gemm3xConfig
from onnxbolt.families.gemm_sm90 import GemmSm90Config
from onnxbolt.measurements.keys import kernel_key
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.problems import ConvProblem, GemmProblem
from onnxbolt.tune.library import Uncompiled
from onnxbolt.tune.profiler import Profiler

SCRIPT = """
import json, os, sys, time
log = open({log!r}, "a")
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps(request), file=log, flush=True)
    reply = {{}}
    if request["do"] == "device":
        reply = dict(name="NVIDIA Test", sm=90, sm_count=132, power_limit=700, clock_mhz=1980)
    elif request["do"] == "problem":
        if request["extents"][0] == 13:
            reply = dict(failure="cudaMalloc: out of memory", lost=False)
    else:
        name, _, stage = os.path.basename(request["kernels"][-1]["library"]).partition("-in-")
        if stage in ("", request["do"]):
            if name == "crash":
                print("stack smashed", file=sys.stderr, flush=True)
                os._exit(11)
            if name == "hang":
                time.sleep(60)
            if name == "garbage":
                print("Segmentation fault", flush=True)
                continue
            if name == "refuse":
                reply = dict(failure="k is not aligned", lost=False)
            if name == "lost":
                reply = dict(failure="an illegal memory access was encountered", lost=True)
        if not reply and request["do"] == "check":
            error = float("inf") if name == "nan" else 0.5 if name == "wrong" else 1e-4
            excess = float("inf") if name == "nan" else 3.25 if name == "pixel" else 0.25
            reply = dict(error=error, excess=excess)
        elif not reply:
            us = float(name)
            reply = dict(samples=[us + i for i in range(request["samples"])], clock_mhz=1755)
            if stage == "nothing":
                reply = dict(samples=[], clock_mhz=1755)
    print(json.dumps(reply), flush=True)
"""
GEMM = GemmProblem(64, 64, 64, DType.F16, DType.F16, ("Bias", "LeakyRelu"))
CONFIG = Gemm2xConfig(
    arch=90, tile=(128, 64, 32), warp=(64, 32, 32), instruction=(16, 8, 16), stages=0
)


class Bench:
    """A profiler with the worker of this file, and what that was asked."""

    def __init__(self, directory: Path) -> None:
        self._log, script = directory / "requests", directory / "worker.py"
        script.write_text(SCRIPT.format(log=str(self._log)))
        self.profiler = Profiler(90, [sys.executable, str(script)])

    def measure(
        self, *names: str, problem: GemmProblem | ConvProblem = GEMM, **options: float
    ) -> list[Measurement]:
        """One candidate for each name; stages tell their configurations apart."""
        candidates = [
            (dataclasses.replace(CONFIG, stages=i), Path(name)) for i, name in enumerate(names)
        ]
        return self.profiler.measure(problem, candidates, **options)  # type: ignore[arg-type]

    def requests(self, kind: str) -> list[str]:
        return [line for line in self._log.read_text().splitlines() if f'"do": "{kind}"' in line]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    with bench.profiler:
        yield bench


def statuses(measurements: list[Measurement]) -> list[str]:
    return [measurement.status.value for measurement in measurements]


def test_launches_overlap_unless_asked_not_to(bench: Bench) -> None:
    bench.measure("10", samples=3)
    bench.measure("10", samples=3, overlap=False)
    asked = [json.loads(line)["overlap"] for line in bench.requests("time")]
    assert asked == [True] * 3 + [False] * 3


def test_machine_is_gpu_and_what_builds_for_it(bench: Bench) -> None:
    machine = bench.profiler.machine
    assert (machine.gpu, machine.arch, machine.power_limit) == ("NVIDIA Test", 90, 700)
    assert all(part.isdigit() for part in f"{machine.cuda}.{machine.cutlass}".split("."))
    assert machine.templates == kernel_sources_digest()
    assert bench.profiler.machine is machine


def test_cuda_starts_ahead_and_once(bench: Bench) -> None:
    bench.profiler.begin()
    assert bench.profiler.machine.gpu == "NVIDIA Test"
    assert len(bench.requests("device")) == 1


def test_medians_of_all_samples(bench: Bench) -> None:
    slow, fast = bench.measure("12", "10", samples=15)
    assert (slow.status, slow.us, slow.mad, slow.runs, slow.clock_mhz, slow.error) == (
        Status.OK,
        14.0,
        1.0,
        15,
        1755,
        1e-4,
    )
    assert (fast.us, fast.key) == (12.0, kernel_key(GEMM, bench.profiler.machine))
    assert (slow.config, fast.config) == (
        dataclasses.replace(CONFIG, stages=0),
        dataclasses.replace(CONFIG, stages=1),
    )


def test_candidates_take_turns(bench: Bench) -> None:
    bench.measure("12", "10")
    libraries = ["12" if '"12"' in line else "10" for line in bench.requests("time")]
    assert libraries == ["12", "10"] * 3


def test_hopeless_kernels_are_not_timed_again(bench: Bench) -> None:
    slow, fast = bench.measure("100", "10")
    assert (slow.status, slow.runs, fast.runs) == (Status.OK, 5, 15)
    (late,) = bench.measure("90")
    assert late.runs == 5


@pytest.mark.parametrize(
    ("name", "status", "detail"),
    [
        ("crash", "crashed", "status 11: stack smashed"),
        ("garbage", "crashed", "Segmentation fault"),
        ("lost", "crashed", "illegal memory"),
        ("hang", "timeout", "within 1 s"),
        ("refuse", "refused", "k is not aligned"),
    ],
)
@pytest.mark.parametrize("stage", ["check", "time"])
def test_a_bad_candidate_costs_itself_alone(
    bench: Bench, name: str, status: str, detail: str, stage: str
) -> None:
    first, bad, last = bench.measure("10", f"{name}-in-{stage}", "11", timeout=1.0)
    assert statuses([first, bad, last]) == ["ok", status, "ok"]
    assert (first.runs, last.runs) == (15, 15)
    assert detail in bad.detail
    assert (bad.us, bad.runs) == (0.0, 0)


def test_swizzles_of_good_3x_kernels_are_swept(bench: Bench) -> None:
    config = Gemm3xConfig(arch=90, tile=(128, 64, 32), cluster=(2, 1), schedule=Schedule.PINGPONG)
    slow, again = (dataclasses.replace(config, tile=(64, columns, 64)) for columns in (64, 128))
    measured = bench.profiler.measure(
        GEMM, [(config, Path("10")), (slow, Path("15")), (again, Path("10")), (CONFIG, Path("10"))]
    )
    assert [m.config for m in measured[:4]] == [config, slow, again, CONFIG]
    assert [m.config for m in measured[4:]] == [
        dataclasses.replace(c, swizzle=s) for c in (config, again) for s in (2, 4, 8)
    ]
    assert statuses(measured) == ["ok"] * 10


def test_splits_are_swept_with_the_best_swizzles(bench: Bench) -> None:
    config = GemmSm90Config(
        arch=90, rows=128, columns=64, k=32, schedule=Schedule.PINGPONG, consumers=2
    )
    measured = bench.profiler.measure(GEMM, [(config, Path("10"))])
    launches = [
        (m.config.swizzle, m.config.split_k)
        for m in measured
        if isinstance(m.config, GemmSm90Config)
    ]
    assert launches[:4] == [(1, 1), (2, 1), (4, 1), (8, 1)]
    assert len(launches) == len(set(launches)) == 4 + 3 * 2
    assert {m.config.instance() for m in measured if m.config} == {config}


def test_wrong_answers_are_not_timed(bench: Bench) -> None:
    wrong, nan = bench.measure("wrong", "nan")
    assert statuses([wrong, nan]) == ["wrong", "wrong"]
    assert (wrong.error, nan.error) == (0.5, float("inf"))
    assert "0.5 exceeds 0.001" in wrong.detail
    assert not bench.requests("time")


def test_one_wrong_value_among_many_is_a_wrong_answer(bench: Bench) -> None:
    """Its part of the output's norm is small."""
    (pixel,) = bench.measure("pixel")
    assert (pixel.status, pixel.error) == (Status.WRONG, 1e-4)
    assert "one element is 3.25 times its limit" in pixel.detail
    assert not bench.requests("time")


def test_a_reply_without_samples_is_no_time(bench: Bench) -> None:
    assert statuses(bench.measure("1-in-nothing", "10")) == ["crashed", "ok"]


def test_what_was_not_compiled_is_recorded(bench: Bench) -> None:
    (measurement,) = bench.profiler.measure(GEMM, [(CONFIG, Uncompiled("9764 bytes spill stores"))])
    assert (measurement.status, measurement.detail) == (
        Status.UNCOMPILED,
        "9764 bytes spill stores",
    )


def test_a_problem_is_told_once_to_each_worker(bench: Bench) -> None:
    bench.measure("10")
    bench.measure("11")
    assert len(bench.requests("problem")) == 1
    bench.measure("crash", "10")
    assert len(bench.requests("problem")) == 2
    bench.measure("10", problem=dataclasses.replace(GEMM, m=128))
    assert len(bench.requests("problem")) == 3


def test_convolutions_say_all_of_their_extents(bench: Bench) -> None:
    conv = ConvProblem(
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        9,
        (10, 11, 12, 13),
        (14, 15),
        (16, 17),
        1,
        DType.F16,
        DType.F32,
        ("Bias", "Clip"),
    )
    bench.measure("10", problem=conv)
    assert f'"extents": {[*range(1, 18), 1, 0, 0, 0]}' in bench.requests("problem")[0]
    assert '"element": 10, "output": 1, "epilogue": "Bias,Clip"' in bench.requests("problem")[0]
    params = [0.0, 6.0, *[0.0] * (MAX_PARAMS - 2)]  # as many as the profiler reads
    assert f'"params": {params}' in bench.requests("problem")[0]


def test_no_memory_for_the_problem_is_no_candidates_fault(bench: Bench) -> None:
    with pytest.raises(OnnxboltError, match="out of memory"):
        bench.measure("10", problem=dataclasses.replace(GEMM, m=13))
    assert statuses(bench.measure("10")) == ["ok"]


def test_a_worker_that_does_not_start(tmp_path: Path) -> None:
    with (
        Profiler(90, [sys.executable, "-c", "raise SystemExit('no GPU')"]) as profiler,
        pytest.raises(OnnxboltError, match="no GPU"),
    ):
        profiler.measure(GEMM, [])


def test_kernels_one_after_the_other_are_one_candidate(bench: Bench) -> None:
    several = dataclasses.replace(GEMM, chain=("Bias", "Gemm", "Bias"), inner=(64,))
    (one,) = bench.measure("20", problem=several)
    apart = bench.profiler.measure_apart(several, [(CONFIG, Path("a"), 1), (CONFIG, Path("30"), 1)])
    assert (one.us, apart.us, apart.key) == (22.0, 32.0, one.key)
    first, *_, last = (json.loads(line)["kernels"] for line in bench.requests("time"))
    assert [kernel["layers"] for kernel in first] == [2]
    assert [(kernel["library"], kernel["layers"]) for kernel in last] == [("a", 1), ("30", 1)]
    (problem,) = map(json.loads, bench.requests("problem"))
    assert (problem["extents"], problem["columns"], problem["epilogue"]) == (
        [64, 64, 64],
        [64],
        "Bias,Gemm,Bias",
    )
