"""How workers of pytest-xdist share a machine with GPUs (`pytest -m gpu -n 8`): each uses one GPU,
and compiles into a cache of its own, since builds of one cache directory wait for each other."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

_DEVICES = Path("/dev")


def gpus(devices: Path = _DEVICES) -> list[str]:
    """The numbers of the machine's NVIDIA GPUs, from their device files."""
    found = [path.name.removeprefix("nvidia") for path in devices.glob("nvidia[0-9]*")]
    return sorted(found, key=int)


def choose_gpu(environment: MutableMapping[str, str], found: list[str]) -> None:
    """Set CUDA_VISIBLE_DEVICES and ONNXBOLT_CACHE_DIR for the worker PYTEST_XDIST_WORKER:
    "gw0", "gw1", .. take the GPUs in turn. A CUDA_VISIBLE_DEVICES that is set already lists the
    GPUs to choose from, in place of `found`."""
    worker = environment["PYTEST_XDIST_WORKER"]
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if choice := listed.split(",") if listed else found:
        environment["CUDA_VISIBLE_DEVICES"] = choice[int(worker.removeprefix("gw")) % len(choice)]
    cache = Path(environment["ONNXBOLT_CACHE_DIR"])
    environment["ONNXBOLT_CACHE_DIR"] = str(cache.with_name(f"{cache.name}-{worker}"))
