"""This process measures on GPUs of its own until their workers have joined."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from onnxbolt.errors import OnnxboltError
from onnxbolt.families import KernelConfig
from onnxbolt.measurements.keys import kernel_key
from onnxbolt.measurements.records import Machine, Measurement, Status
from onnxbolt.problems import Problem
from onnxbolt.tune.cluster import opening, pool, standing_in
from onnxbolt.tune.cluster.gpus import ClusterGpus
from onnxbolt.tune.cluster.pool import Pool
from onnxbolt.tune.cluster.standing_in import stand_ins
from onnxbolt.tune.profiler import machine_of
from onnxbolt.tune.racing import Race
from tests.tune.cluster.conftest import UUIDS, Cluster
from tests.tune.cluster.test_measuring import is_right, opened, tuned
from tests.tune.fakes import Records, true_us


class Profiler:
    """The tests' profiler, which remembers what it measured."""

    made: list[Profiler]

    def __init__(self, arch: int, command: Sequence[str]) -> None:
        self.command, self.problems, self.ended = command, list[Problem](), False
        self.machine: Machine = machine_of(arch, {"name": "Fake", "power_limit": 700})
        self.made.append(self)

    def begin(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.ended = True

    def measure(
        self, problem: Problem, candidates: Sequence[tuple[KernelConfig, Path]]
    ) -> list[Measurement]:
        assert not self.ended
        self.problems.append(problem)
        time.sleep(0.01)
        key = kernel_key(problem, self.machine)
        return [
            Measurement(key, config, Status.OK, true_us(problem, config), 0.1, 50)
            for config, _ in candidates
        ]


@pytest.fixture
def profilers(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Profiler]:
    """The profilers of this process, which has stand-ins again."""
    made: list[Profiler] = []
    monkeypatch.setattr(opening, "stand_ins", stand_ins)
    monkeypatch.setattr(standing_in, "Profiler", Profiler)
    monkeypatch.setattr(Profiler, "made", made, raising=False)
    monkeypatch.setattr(standing_in, "profiler_library", lambda arch: tmp_path / "profiler.so")
    return made


def test_kernels_are_measured_before_a_worker_has_joined(
    cluster: Cluster, profilers: list[Profiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pool, "_join", lambda *_: None)
    said: list[str] = []
    records = Records()
    with opened(said) as gpus:
        timings, tuning = tuned(cluster, gpus, records)
    assert (tuning.ended_by, said) == ("done", ["2 GPUs measure"])
    assert is_right(timings, records)
    assert cluster.measured == []
    assert [profiler.command[:2] for profiler in profilers] == [
        ("env", f"CUDA_VISIBLE_DEVICES={uuid}") for uuid in UUIDS
    ]
    assert all(profiler.problems and profiler.ended for profiler in profilers)


def test_workers_take_over(cluster: Cluster, profilers: list[Profiler]) -> None:
    said: list[str] = []
    records = Records()
    with opened(said) as gpus:
        _until_relieved(gpus)
        assert all(profiler.ended for profiler in profilers)
        timings, _ = tuned(cluster, gpus, records)
    assert is_right(timings, records)
    assert {line["gpu"] for line in cluster.measured} == set(UUIDS)
    assert not any(profiler.problems for profiler in profilers)


def test_races_wait_for_workers(
    cluster: Cluster, profilers: list[Profiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def ask(self: Pool, worker: pool.Worker, *_: Any, **__: Any) -> dict[str, Any]:
        asked.append(worker.address)
        return {"no race": "a test", "name": "Fake", "power_limit": 700}

    monkeypatch.setattr(Pool, "ask", ask)
    with opened([]) as gpus:
        monkeypatch.setattr("onnxbolt.tune.racing.cudnn_version", lambda: 92000)
        racing = gpus.racing
        assert racing.cudnn == 92000
        for number in range(4):
            racing.submit(number, Race([b""], None))
        assert sorted(racing.done()[0] for _ in range(4)) == list(range(4))
    assert not any(address.startswith("here/") for address in asked)


def test_races_do_not_wait_for_ever(
    cluster: Cluster, profilers: list[Profiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pool, "_join", lambda *_: None)
    monkeypatch.setattr(pool, "_ARRIVAL", 1.0)
    monkeypatch.setattr("onnxbolt.tune.racing.cudnn_version", lambda: 92000)
    with opened([]) as gpus:
        gpus.racing.submit(0, Race([b""], None))
        with pytest.raises(OnnxboltError, match="the cluster has had no worker for 1 s"):
            gpus.racing.done()


def test_gpus_of_two_architectures_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxbolt.gpu.local_arch", lambda: "sm_90a")
    monkeypatch.setattr("onnxbolt.gpu.compute_capability", lambda number: (9 - number, 0))
    assert standing_in.stand_ins(UUIDS) == []


def _until_relieved(gpus: ClusterGpus) -> None:
    last = time.monotonic() + 60
    while time.monotonic() < last:
        workers = gpus._pool.admitted(gpus.machine)
        if len(workers) == len(UUIDS) and not any(each.stand_in for each in workers):
            return
        time.sleep(0.1)
    raise AssertionError("no worker has taken over")


def test_a_stand_in_asks_a_child_that_sees_its_gpu_alone(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        '    name = os.environ["CUDA_VISIBLE_DEVICES"]\n'
        '    print(json.dumps({"name": name, "power_limit": 700}), flush=True)\n'
    )
    with standing_in.StandIn("GPU-1", 90, (sys.executable, str(script))) as stand_in:
        assert stand_in.machine.gpu == "GPU-1"


def test_a_stand_in_that_does_not_start_says_why() -> None:
    with (
        standing_in.StandIn("GPU-1", 90, (sys.executable, "-c", "raise SystemExit(3)")) as stand_in,
        pytest.raises(OnnxboltError, match="ended with status 3"),
    ):
        stand_in.machine  # noqa: B018
