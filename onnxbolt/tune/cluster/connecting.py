"""Starts a cluster of this host's GPUs, or finds one by its scheduler's address."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dask
import psutil
from distributed import Client, Scheduler, SpecCluster
from distributed.deploy.spec import ProcessInterface

from onnxbolt.errors import InputError
from onnxbolt.spelling import option

_CONNECTING = 30.0  # seconds to reach a scheduler
_ENDING = 10.0  # seconds that killed processes may take to end
_SETTINGS = {
    # a library in a task is no mistake
    "distributed.admin.large-graph-warning-threshold": "1GiB",
    "distributed.comm.timeouts.connect": f"{_CONNECTING:.0f}s",
    "distributed.diagnostics.nvml": False,
}
# dask would ask the driver about the GPU twice a second while it measures
_UNWATCHED = {"DASK_DISTRIBUTED__DIAGNOSTICS__NVML": "False"}


@contextlib.contextmanager
def local_cluster(uuids: Sequence[str]) -> Iterator[Client]:
    """A cluster with a worker for each GPU of this host, by UUID, and one that compiles on all
    cores."""
    with tempfile.TemporaryDirectory(prefix="onnxbolt-") as directory, _settings():
        scratch = Path(directory)
        cores = len(os.sched_getaffinity(0))
        workers = {"compilers": _spec(scratch / "compilers", f"CPU={cores}", {})} | {
            uuid: _spec(scratch / uuid, "GPU=1", {"CUDA_VISIBLE_DEVICES": uuid}) for uuid in uuids
        }
        scheduler = {
            "cls": Scheduler,
            "options": {"host": "127.0.0.1", "port": 0, "dashboard": False},
        }
        with (
            SpecCluster(workers=workers, scheduler=scheduler, silence_logs=False) as cluster,
            Client(cluster) as client,
        ):
            yield client


@contextlib.contextmanager
def remote_cluster(address: str, insecure: bool) -> Iterator[Client]:
    """The cluster of the scheduler at this address. Raises InputError if it must not or cannot be
    reached."""
    check_address(address, insecure)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_settings())
        try:
            client = stack.enter_context(Client(address, timeout=_CONNECTING))
        except Exception as error:  # errors of sockets, TLS or dask
            raise InputError(
                f"{option('scheduler', address)}: no scheduler answers there"
                f" ({type(error).__name__}: {error}); start it with `dask scheduler`, and for tls://"
                " name the certificates in dask's configuration"
            ) from error
        yield client


def check_address(address: str, insecure: bool) -> None:
    """Raises InputError unless the address is one of TLS or of the loopback, or `insecure`."""
    named = option("scheduler", address)
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None or parts.scheme not in ("tls", "tcp") or parts.path:
        raise InputError(f"{named}: write it as tls://host:8786")
    if parts.scheme == "tcp" and not (insecure or _is_loopback(host)):
        raise InputError(
            f"{named}: without TLS, whoever is on the network can run code here and on the workers."
            f" Use tls://, or {option('insecure', True)} if you trust everyone on that network"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """Dask's settings while it is used here. It logs what the pool tells the user in a line."""
    logger = logging.getLogger("distributed")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with dask.config.set(_SETTINGS):
            yield
    finally:
        logger.setLevel(level)


def _spec(scratch: Path, resources: str, environment: Mapping[str, str]) -> dict[str, Any]:
    options = {"scratch": scratch, "resources": resources, "environment": environment}
    return {"cls": WorkerProcess, "options": options}


class WorkerProcess(ProcessInterface):
    """A worker that dask's own command starts, in a session of its own, so that Ctrl-C reaches the
    tuner alone."""

    def __init__(
        self,
        scheduler: str,
        scratch: Path,
        resources: str,
        environment: Mapping[str, str],
        name: str | None = None,
    ) -> None:
        super().__init__(scheduler=scheduler, name=name)
        self._scheduler, self._name, self._scratch = scheduler, str(name), scratch
        self._resources, self._environment = resources, environment
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        self._scratch.mkdir()
        with (self._scratch / "log").open("wb") as log:
            self._process = subprocess.Popen(
                worker_command(self._scheduler, self._name, self._resources, self._scratch),
                env={**os.environ, **_UNWATCHED, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        await super().start()

    async def close(self) -> None:
        if self._process is not None:
            await asyncio.to_thread(_end, self._process)
        await super().close()


def worker_command(
    scheduler: str, name: str, resources: str, scratch: Path, *more: str
) -> list[str]:
    """Dask's command for a worker with a thread for each unit of its resource, such as "GPU=1",
    whose files are in `scratch`."""
    threads = resources.partition("=")[2]
    return [
        *(sys.executable, "-m", "distributed.cli.dask_worker", scheduler),
        *("--name", name, "--resources", resources, "--nthreads", threads, "--host", "127.0.0.1"),
        *("--memory-limit", "0", "--no-dashboard", "--local-directory", str(scratch)),
        *("--death-timeout", "60"),
        *more,
    ]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a worker with its nanny, its profiler and its compilers."""
    with contextlib.suppress(psutil.NoSuchProcess):
        doomed = psutil.Process(process.pid).children(recursive=True)
        process.kill()  # the nanny first, which would start its worker again
        for child in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        last = time.monotonic() + _ENDING
        while any(map(_runs, doomed)) and time.monotonic() < last:
            time.sleep(0.01)
    process.wait(_ENDING)


def _runs(process: psutil.Process) -> bool:
    """False for what has ended, even if no parent asks for its exit status: the first process of a
    container may never do so."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
