"""Compiling in the background, so that the GPU measures what is done while the cores make more."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from onnxbolt.codegen.render import Instance
from onnxbolt.tune.library import Result

# Each instance with its library, or why there is none, as soon as it is known; ends early once the
# event is set. Raises BuildError for what does not lie with the instances.
Build = Callable[[Sequence[Instance], threading.Event], Iterator[Result]]


class Compiling:
    """A thread that builds all that was submitted since it began its last batch; a context
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
        """What was finished since, after waiting up to `timeout` seconds for the first. Raises
        what the build raised."""
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
        except BaseException as error:  # it is the waiting thread's to handle
            self._done.put(error)

    def _next_batch(self) -> list[Instance]:
        """Everything submitted, waiting for the first; empty at the end."""
        batch = self._submitted.get()
        while batch is not None and not self._submitted.empty():
            more = self._submitted.get()
            batch = None if more is None else batch + more
        return batch or []
