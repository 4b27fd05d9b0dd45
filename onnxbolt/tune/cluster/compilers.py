"""Compiles candidates on the workers of a cluster that have the resource CPU. Their objects go into
the cache of this process, as if it had compiled them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from onnxbolt import checks
from onnxbolt.codegen.artifacts import Progress, Unit, compile_each, keep, known
from onnxbolt.codegen.nvcc import Toolchain
from onnxbolt.errors import BuildError, OnnxboltError
from onnxbolt.tune.cluster import tasks
from onnxbolt.tune.cluster.pool import Job, Pool, RefusedError, Worker
from onnxbolt.tune.library import cutlass_version, profiling_toolchain

_ASKING, _COMPILING = 60.0, 3600.0  # seconds after which a worker hangs
_LOOK = 0.5


def admit_compiler(pool: Pool, worker: Worker, _: dict[str, Any]) -> None:
    """Raises RefusedError for a worker whose objects would differ from ours."""
    theirs, ours = pool.ask(worker, tasks.compiler, _ASKING), profiling_toolchain()
    wanted = {"nvcc": ours.version, "CUTLASS": cutlass_version(ours)}
    for what, version in wanted.items():
        if theirs[what] != version:
            raise RefusedError(f"its {what} is {theirs[what]!s:.40}, and ours {version}")


class Compilers:
    """The compilers of a pool, in the place of this machine's own."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def compile_each(
        self,
        units: Sequence[Unit],
        toolchain: Toolchain,
        progress: Progress | None = None,
        stop: threading.Event | None = None,
    ) -> Iterator[tuple[Unit, Path | BuildError]]:
        """As `artifacts.compile_each`. Units that no worker can compile are compiled here: those
        with headers of an extension, and all where there is no worker."""
        here: list[Unit] = []
        away: dict[Job, Unit] = {}
        outbox: queue.SimpleQueue[tuple[Job, Any, float]] = queue.SimpleQueue()
        try:
            for unit in dict.fromkeys(units):
                if (outcome := known(unit, toolchain)) is not None:
                    yield unit, outcome
                elif unit.include_dirs:
                    here.append(unit)
                else:
                    job = Job(unit, None, partial(self._compile, unit), outbox)
                    away[job] = unit
                    self._pool.submit(job)
            while away and not self._pool.empty:
                if stop and stop.is_set():
                    return
                try:
                    job, outcome, _ = outbox.get(timeout=_LOOK)
                except queue.Empty:
                    continue
                unit = away.pop(job)
                if isinstance(outcome, OnnxboltError):
                    here.append(unit)
                else:
                    yield unit, keep(unit, toolchain, *outcome)
        finally:
            self._pool.cancel(away.keys())
        yield from compile_each([*here, *away.values()], toolchain, progress, stop=stop)

    def _compile(self, unit: Unit, worker: Worker, _: bool) -> tuple[bytes | None, str]:
        """The object, if there is one, and the compiler's log."""
        reply = self._pool.ask(
            worker, tasks.compile_unit, _COMPILING, name=unit.name, text=unit.text, arch=unit.arch
        )
        compiled = checks.boolean("compiled", reply["compiled"])
        log = reply["log"]
        if not isinstance(log, str):
            raise ValueError("a log that is no text")
        return reply["data"] if compiled else None, log
