"""The tasks of a worker: functions that dask names by their module. Their arguments are JSON or a
bytes, and their replies are JSON, maybe with bytes behind it.

A reply is {"failure": message} where nothing can be measured, and {"busy": message} where another
process measures on the GPU. A worker with a GPU has one thread, so one object holds its state.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnxruntime
from filelock import FileLock, Timeout

from onnxbolt import checks, extensions, gpu
from onnxbolt.archs import by_name
from onnxbolt.codegen.artifacts import Unit, compile_alone
from onnxbolt.codegen.digest import present_sources_digest
from onnxbolt.codegen.nvcc import find_toolchain
from onnxbolt.errors import OnnxboltError
from onnxbolt.families import config_from
from onnxbolt.measurements.keys import problem_from
from onnxbolt.measurements.records import Machine
from onnxbolt.options import cache_directory
from onnxbolt.tune import racing
from onnxbolt.tune.cuda import CudaError, Stream
from onnxbolt.tune.library import cutlass_version
from onnxbolt.tune.profiler import Profiler, worker_command
from onnxbolt.tune.rows import values_of
from onnxbolt.tune.sessions import cudnn_version
from onnxbolt.verify.session import CUDA, available_providers

LOCK_SECONDS = 60.0  # that a task waits for the GPU
Task = Callable[..., bytes]


class BusyError(Exception):
    """Another process uses the GPU."""


def versions() -> dict[str, str]:
    """The versions that have to be equal on both sides."""
    return {
        "digest of sources": present_sources_digest(),
        "Python": platform.python_version(),
        "ONNX Runtime": onnxruntime.__version__,
    }


def hello() -> bytes:
    """{"versions", "arch": of the first GPU or null, "cuDNN": 0 without ONNX Runtime's CUDA
    provider}"""
    extensions.load()
    local = gpu.local_arch()
    return _reply(
        {
            "versions": versions(),
            "arch": by_name(local).number if local else None,
            "cuDNN": cudnn_version(),
        }
    )


def store(digest: str, data: bytes) -> bytes:
    """Keep a library under its digest."""
    if digest != digest_of(data):
        return _reply({"failure": "the library was damaged on its way"})
    path = _library(digest)
    scratch = path.with_suffix(".part")
    scratch.write_bytes(data)
    scratch.rename(path)
    return _reply({})


def identify(request: bytes) -> bytes:
    """{"arch", "profiler": digest} -> {"name", "power_limit"} of the GPU."""
    return _on_gpu(request, lambda values: _profiler(values).device())


def measure(request: bytes) -> bytes:
    """{"arch", "profiler", "machine", "kind", "problem", "candidates": [[row, digest], ..]} ->
    {"measurements": rows of the database, without time and origin}."""

    def measured(values: dict[str, Any]) -> dict[str, Any]:
        profiler = _profiler(values)
        profiler.machine = Machine(**values["machine"])
        found = profiler.measure(
            problem_from(values["kind"], values["problem"]),
            [(config_from(row), _library(digest)) for row, digest in values["candidates"]],
        )
        return {"measurements": [values_of(measurement) for measurement in found]}

    return _on_gpu(request, measured)


def race(request: bytes, *models: bytes) -> bytes:
    """{"library": digest or null, "left": seconds} and models -> {"laps": [[setting, times] or
    null, ..]}, or {"no race": why} where they do not run."""

    def raced(values: dict[str, Any]) -> dict[str, Any]:
        stream = Stream() if CUDA in available_providers() else None
        library = values["library"] and _library(values["library"])
        deadline = time.monotonic() + values["left"]
        try:
            laps = racing.run(racing.Race(models, library, deadline), stream)
        except racing.RaceError as error:
            return {"no race": str(error)}
        except CudaError:
            os._exit(1)  # the device is lost to this process; the next one races again
        return {"laps": [lap and [lap.setting, lap.sample.times] for lap in laps]}

    return _on_gpu(request, raced)


def compiler(request: bytes) -> bytes:
    """{} -> {"nvcc", "CUTLASS": versions}"""
    try:
        toolchain = find_toolchain()
        return _reply({"nvcc": toolchain.version, "CUTLASS": cutlass_version(toolchain)})
    except OnnxboltError as error:
        return _reply({"failure": str(error)})


def compile_unit(request: bytes) -> bytes:
    """{"name", "text", "arch"} -> {"compiled", "log"}, and the object."""
    try:
        made, log = compile_alone(Unit(**json.loads(request)), find_toolchain())
        return _reply({"compiled": made is not None, "log": log}, made or b"")
    except OnnxboltError as error:
        return _reply({"failure": str(error)})


def digest_of(data: bytes) -> str:
    """The name of a library on workers."""
    return hashlib.sha256(data).hexdigest()


def _on_gpu(request: bytes, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> bytes:
    """The reply to a request, while no other process measures on the GPU."""
    try:
        with alone_on((*gpu.uuids(), "none")[0]):
            return _reply(answer(json.loads(request)))
    except BusyError as error:
        return _reply({"busy": str(error)})
    except OnnxboltError as error:
        return _reply({"failure": str(error)})


def _reply(values: dict[str, Any], data: bytes = b"") -> bytes:
    """JSON on one line, and data behind it."""
    return json.dumps(values).encode() + b"\n" + data


def read_reply(reply: bytes) -> dict[str, Any]:
    """The values of a reply, with its data as "data". Raises ValueError."""
    line, _, data = reply.partition(b"\n")
    values = checks.parsed_json(line.decode())
    if not isinstance(values, dict):
        raise ValueError("a reply that is no object")
    return values | {"data": data}


@contextlib.contextmanager
def alone_on(uuid: str) -> Iterator[None]:
    """While this lasts, no other process measures on this host's GPU with this UUID. Raises
    BusyError."""
    try:
        lock = _gpu_lock(uuid).acquire(timeout=LOCK_SECONDS)
    except Timeout:
        raise BusyError("another process measures on the GPU") from None
    with lock:
        yield


@functools.cache
def _gpu_lock(uuid: str) -> FileLock:
    directory = cache_directory() / "gpus"
    directory.mkdir(exist_ok=True)
    return FileLock(directory / f"{uuid}.lock")


@functools.cache
def _libraries() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="onnxbolt-")


def _library(digest: str) -> Path:
    return Path(_libraries().name, f"{digest}.so")


def _profiler(values: dict[str, Any]) -> Profiler:
    return _profiler_of(values["arch"], str(_library(values["profiler"])))


@functools.cache
def _profiler_of(arch: int, library: str) -> Profiler:
    """The profiler of this worker, whose child process goes on from task to task."""
    return Profiler(arch, worker_command(library))
