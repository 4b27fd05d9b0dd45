"""Compiling in the background, so that the GPU measures finished kernels while the cores compile
others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from onnxbolt.codegen.render import Instance
from onnxbolt.tune.library import Result

# Yields each instance with its library, or with the reason why there is none, as soon as it is
# known; ends early once the event is set. Raises BuildError for failures that are not due to the
# instances.
Build = Callable[[Sequence[Instance], threading.Event], Iterator[Result]]


class Compiling:
    """A thread that builds, in batches, the instances that were submitted meanwhile; a context
    manager, whose end stops it."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._submitted: queue.SimpleQueue[list[Instance] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="onnxbolt-compiling", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._submitted.put(None)
        self._thread.join()

    def submit(self, instances: Sequence[Instance]) -> None:
        self._submitted.put(list(instances))

    def done(self, timeout: float) -> list[Result]:
        """The results since the last call, after waiting up to `timeout` seconds for the first one.
        Raises the build's exception."""
        found: list[Result] = []
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
        try:
            while (batch := self._next_batch()) and not self._stop.is_set():
                for result in self._build(batch, self._stop):
                    self._done.put(result)
        except BaseException as error:  # the waiting thread raises it
            self._done.put(error)

    def _next_batch(self) -> list[Instance]:
        """All submitted instances, after waiting for the first; empty at the end."""
        batch = self._submitted.get()
        while batch is not None and not self._submitted.empty():
            more = self._submitted.get()
            batch = None if more is None else batch + more
        return batch or []
