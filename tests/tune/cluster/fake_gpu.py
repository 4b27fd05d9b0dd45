"""Preloaded by the workers of the tests: a GPU whose kernels run as in tests/tune/fakes.py.

Each measurement leaves a line in the file `measured` of the folder FAKE_GPU. A worker that finds
the file `die` or `hang` there removes it, and does so.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask

from onnxbolt import gpu
from onnxbolt.families import KernelConfig
from onnxbolt.measurements.keys import kernel_key
from onnxbolt.measurements.records import Machine, Measurement, Status
from onnxbolt.problems import Problem
from onnxbolt.tune.cluster import tasks
from tests.tune.fakes import true_us

FOLDER = Path(os.environ["FAKE_GPU"])
UUID = os.environ.get("CUDA_VISIBLE_DEVICES", "GPU-none")


class Profiler:
    """The tests' profiler in the place of the real one."""

    machine: Machine

    def __init__(self, arch: int, command: Sequence[str]) -> None:
        assert Path(command[-1]).read_bytes() == b"profiler"

    def device(self) -> dict[str, Any]:
        return {"name": "Fake", "power_limit": 700}

    def measure(
        self, problem: Problem, candidates: Sequence[tuple[KernelConfig, Path]]
    ) -> list[Measurement]:
        line = {
            "gpu": UUID,
            "pid": os.getpid(),
            "problem": repr(problem),
            "configs": [repr(config) for config, _ in candidates],
            "watched": dask.config.get("distributed.diagnostics.nvml"),
        }
        with (FOLDER / "measured").open("a") as file:
            file.write(f"{json.dumps(line)}\n")
        if _told_to("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if _told_to("hang"):
            time.sleep(600)
        time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
        assert all(library.read_bytes() for _, library in candidates)
        key = kernel_key(problem, self.machine)
        return [
            Measurement(key, config, Status.OK, true_us(problem, config), 0.1, 50)
            for config, _ in candidates
        ]


def _told_to(what: str) -> bool:
    try:
        (FOLDER / what).unlink()
    except FileNotFoundError:
        return False
    return True


gpu.local_arch = lambda: "sm_90a"
gpu.uuids = lambda: (UUID,)
setattr(tasks, "Profiler", Profiler)  # noqa: B010  not exported there
VERSIONS = tasks.versions() | json.loads(os.environ.get("FAKE_VERSIONS", "{}"))
tasks.versions = lambda: VERSIONS
