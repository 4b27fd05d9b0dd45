"""Workers of pytest-xdist take the GPUs in turn, and a cache each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import workers


def test_gpus_are_found_by_their_device_files(tmp_path: Path) -> None:
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert workers.gpus(tmp_path) == ["2", "10"]


@pytest.mark.parametrize(
    ("worker", "listed", "found", "chosen"),
    [
        ("gw0", None, ["0", "1"], "0"),
        ("gw3", None, ["0", "1"], "1"),
        ("gw1", "4,GPU-5a", ["0"], "GPU-5a"),
        ("gw1", None, [], None),
    ],
)
def test_workers_take_gpus_in_turn(
    worker: str, listed: str | None, found: list[str], chosen: str | None
) -> None:
    environment = {"PYTEST_XDIST_WORKER": worker, "ONNXBOLT_CACHE_DIR": "/caches/tests"}
    if listed is not None:
        environment["CUDA_VISIBLE_DEVICES"] = listed
    workers.choose_gpu(environment, found)
    assert environment.get("CUDA_VISIBLE_DEVICES") == chosen
    assert environment["ONNXBOLT_CACHE_DIR"] == f"/caches/tests-{worker}"
