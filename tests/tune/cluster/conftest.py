"""A cluster of workers on the CPU, whose GPUs are those of fake_gpu.py."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.tune.cluster import gpus
from onnxbolt.tune.library import Result

ROOT = Path(__file__).parents[3]


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


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    connecting = pytest.importorskip("onnxbolt.tune.cluster.connecting")
    profiler = tmp_path / "profiler.so"
    profiler.write_bytes(b"profiler")
    folder = tmp_path / "fake"
    folder.mkdir()
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")
    monkeypatch.setenv("FAKE_GPU", str(folder))
    monkeypatch.setattr(gpus, "profiler_library", lambda arch: profiler)
    command = connecting.worker_command

    def with_fake_gpu(*arguments: Any) -> list[str]:
        return command(*arguments, "--preload", "tests.tune.cluster.fake_gpu")

    monkeypatch.setattr(connecting, "worker_command", with_fake_gpu)
    return Cluster(folder)
