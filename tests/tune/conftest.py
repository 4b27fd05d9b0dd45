"""Fixtures that tests of the tuning stage share."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxbolt.tune import stage
from onnxbolt.verify.session import CUDA
from tests.tune import fakes
from tests.tune.local_gpu import Gpu


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gpu:
    found = Gpu()
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("onnxbolt.gpu.local_arch", lambda: "sm_90a")
    monkeypatch.setattr(stage, "Profiler", found.profiler)
    monkeypatch.setattr(stage, "compare", found.compare)
    monkeypatch.setattr(stage, "settle", found.settle)
    monkeypatch.setattr(stage, "Stream", object)
    monkeypatch.setattr(stage, "available_providers", lambda: [CUDA])
    monkeypatch.setattr(
        "onnxbolt.tune.library.build",
        lambda instances, stop, compiler: fakes.Builder()(instances, stop),
    )
    return found
