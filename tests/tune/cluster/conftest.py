"""A cluster of workers on the CPU, whose GPUs are those of fake_gpu.py."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.tune import stage
from onnxbolt.tune.cluster import gpus, opening
from onnxbolt.tune.library import Result

ROOT = Path(__file__).parents[3]
UUIDS = ("GPU-0", "GPU-1")


class Cluster:
    """The folder by which the workers tell what they did, and are told what to do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def measured(self) -> list[dict[str, Any]]:
        """A line for each request that reached a worker."""
        path = self.folder / "measured"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def tell(self, what: str) -> None:
        """Let the next worker that measures "die" or "hang"."""
        (self.folder / what).touch()

    def build(self, instances: Sequence[Instance], stop: threading.Event) -> Iterator[Result]:
        """Compiles at once."""
        for instance in instances:
            library = self.folder / f"{instance_name(instance)[:200]}.so"
            library.write_text(repr(instance))
            yield instance, library


def fake_cluster(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Cluster:
    """Let this process find two fake GPUs, and start workers that have one each."""
    connecting = pytest.importorskip("onnxbolt.tune.cluster.connecting")
    profiler = folder / "profiler.so"
    profiler.write_bytes(b"profiler")
    fake = folder / "fake"
    fake.mkdir()
    found = Cluster(fake)
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")
    monkeypatch.setenv("FAKE_GPU", str(fake))
    monkeypatch.setattr("onnxbolt.gpu.local_arch", lambda: "sm_90a")
    monkeypatch.setattr("onnxbolt.gpu.uuids", lambda: UUIDS)
    monkeypatch.setattr(opening, "stand_ins", lambda uuids: [])
    monkeypatch.setattr(gpus, "profiler_library", lambda arch: profiler)
    monkeypatch.setattr(stage, "_build", lambda _, *asked: found.build(*asked))
    command = connecting.worker_command

    def with_fake_gpu(*arguments: Any) -> list[str]:
        return command(*arguments, "--preload", "tests.tune.cluster.fake_gpu")

    monkeypatch.setattr(connecting, "worker_command", with_fake_gpu)
    return found


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    return fake_cluster(monkeypatch, tmp_path)


@pytest.fixture
def processes() -> Iterator[contextlib.ExitStack]:
    """Processes that end with the test, when it enters them here."""
    with contextlib.ExitStack() as stack:
        yield stack


@contextlib.contextmanager
def scheduler(folder: Path, *options: str) -> Iterator[str]:
    """Dask's scheduler, by its own command; its address."""
    file = folder / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard"]
    with running(
        [*command, "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file), *options]
    ):
        while not file.exists() or not file.read_text():
            time.sleep(0.1)
        yield str(json.loads(file.read_text())["address"])


@contextlib.contextmanager
def running(command: Sequence[str], **environment: str) -> Iterator[None]:
    """A process with its children, which are ended in the end."""
    connecting = pytest.importorskip("onnxbolt.tune.cluster.connecting")
    process = subprocess.Popen(
        ["env", *(f"{name}={value}" for name, value in environment.items()), *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        connecting._end(process)
