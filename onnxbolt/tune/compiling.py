"""Compiling in the background, so that the GPU measures what is done while the cores make more."""
from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from onnxbolt.codegen.render import Instance


@dataclass(frozen=True)
class Built:
    """Kernels that are done: in a library that the profiler loads, or refused by the compiler, which `detail` tells."""

    instances: tuple[Instance, ...]
    library: Path | None
    detail: str = ""


class Builder(Protocol):
    """Compiles kernels, and hands them out as they are done."""

    capacity: int  # kernels that are compiled at a time

    def build(self, instances: Sequence[Instance]) -> Iterator[Built]:
        """What is not in the cache is compiled. Raises BuildError where that does not lie with the kernels."""

    def stop(self) -> None:
        """End compilers that run; called from another thread. `build` then ends, too."""


class Compiling:
    """A thread that feeds a builder with all that was submitted since it began its last batch."""

    def __init__(self, builder: Builder) -> None:
        self.capacity = builder.capacity
        self._builder = builder
        self._submitted: queue.SimpleQueue[list[Instance] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Built | BaseException] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="onnxbolt-compiling", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopped.set()
        self._submitted.put(None)
        self._builder.stop()
        self._thread.join()

    def submit(self, instances: Sequence[Instance]) -> None:
        self._submitted.put(list(instances))

    def done(self, timeout: float) -> list[Built]:
        """What was finished since, after waiting up to `timeout` seconds for the first. Raises what the builder raised."""
        found: list[Built] = []
        try:
            item = self._done.get(timeout=max(timeout, 0.0))
            while True:
                if isinstance(item, BaseException):
                    raise item
                found.append(item)
                item = self._done.get_nowait()
        except queue.Empty:
            return found

    def _work(self) -> None:
        while (batch := self._next_batch()) and not self._stopped.is_set():
            try:
                for built in self._builder.build(batch):
                    self._done.put(built)
                    if self._stopped.is_set():
                        return
            except BaseException as error:  # belongs to the thread that waits
                self._done.put(error)
                return

    def _next_batch(self) -> list[Instance]:
        """Everything submitted, waiting for the first; empty at the end."""
        batch = self._submitted.get()
        while batch is not None and not self._submitted.empty():
            more = self._submitted.get()
            batch = None if more is None else batch + more
        return batch or []
