"""PyTorch as the peer of a whole model: every way to run it, each within its time, and the fastest
of them for the race.

PyTorch runs in a process of its own: its CUDA libraries may be of other versions than those that
ONNX Runtime has loaded. A compilation that does not end in time is ended with its process; a new
one goes on with what is left. What inductor has compiled and measured stays in its cache directory,
so that the same way is quick to have again.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import statistics
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from onnxbolt.tune.sessions import Arrays, Measure

_TRIAL_RUNS = 20
_PLAIN_SECONDS = 120.0  # for PyTorch's start, and a way that compiles nothing
OF_ZOO = "zoo: "  # begins the name of a model of tests/zoo/export
PLAIN = ("eager", "CUDA graph")
THOROUGH = ("torch.compile max-autotune", "torch.compile max-autotune, freezing")
QUICK = "torch.compile reduce-overhead"  # used if no thorough one ends in its time

Tried = dict[str, float | str]  # microseconds, or why there are none


def fastest_way(tried: Tried) -> str | None:
    """The fastest way, None if none ran."""
    ran = {way: us for way, us in tried.items() if isinstance(us, float)}
    return min(ran, key=lambda way: ran[way], default=None)


class LostError(Exception):
    """PyTorch's process ended, or took too long."""


class Server:
    """A process that runs one model in some ways, one after the other, and then times whichever
    it is asked for."""

    def __init__(self, model: str, feeds: Arrays, ways: Sequence[str]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(theirs, model, dict(feeds), tuple(ways))
        )
        self._process.start()
        theirs.close()

    def told(self, seconds: float) -> Any:
        """The process's next message. Raises LostError if there is none."""
        try:
            if self._pipe.poll(seconds):
                return self._pipe.recv()
        except EOFError:
            raise LostError("failed: PyTorch's process ended without a word") from None
        raise LostError(f"not within {seconds:g} s")

    def measure(self, way: str, count: int) -> list[float]:
        """Microseconds of `count` runs. Raises LostError."""
        self._pipe.send((way, count))
        return list(self.told(_PLAIN_SECONDS))

    def end(self) -> None:
        self._pipe.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid or 0, signal.SIGKILL)  # inductor's compilers as well
        self._process.kill()
        self._process.join()


@contextlib.contextmanager
def whole_model(
    model: str, feeds: Arrays, compile_seconds: float, thorough: bool = True
) -> Iterator[tuple[Measure | None, Tried]]:
    """The fastest way in which PyTorch runs a model of benchmarks/pytorch.py, and the median of
    each that was tried.

    torch.compile has `compile_seconds` for each of its ways, and is left out with 0; unless
    `thorough` it has reduce-overhead alone.
    """
    race = _Race(model, feeds, compile_seconds, THOROUGH if thorough else ())
    try:
        best = race.run()
        yield (None if best is None else lambda count: race.measure(best, count)), race.tried
    finally:
        race.end()


class _Race:
    def __init__(
        self, model: str, feeds: Arrays, compile_seconds: float, thorough: Sequence[str]
    ) -> None:
        self._model, self._feeds, self._seconds, self._thorough = (
            model,
            feeds,
            compile_seconds,
            thorough,
        )
        self._server: Server | None = None
        self._served: set[str] = set()  # by the process that runs now
        self.tried: Tried = {}

    def run(self) -> str | None:
        """Try all ways; the fastest, ready to be measured, None where none ran."""
        compiled = (self._thorough or (QUICK,)) if self._seconds else ()
        self._try((*PLAIN, *compiled))
        if (
            compiled
            and QUICK not in compiled
            and fastest_way({way: self.tried[way] for way in compiled}) is None
        ):
            self._try((QUICK,))
        while (best := fastest_way(self.tried)) is not None:
            if best not in self._served:
                self._try((best,))
            if best in self._served:
                return best
        return None

    def _try(self, ways: Sequence[str]) -> None:
        """Each way in turn; one that is lost ends the process, and the next ones get a new one."""
        left = list(ways)
        while left:
            self.end()
            self._server = Server(self._model, self._feeds, left)
            try:
                while left:
                    way, us = self._server.told(self._allowed(left[0]))
                    self.tried[way] = us
                    self._served |= {way} if isinstance(us, float) else set()
                    left.remove(way)
            except LostError as lost:
                self.tried[way := left.pop(0)] = str(lost)
                if way == THOROUGH[0] and left:  # freezing adds to the same search
                    self.tried[left.pop(0)] = f"not tried, since {way} did not end"
                self.end()

    def _allowed(self, way: str) -> float:
        """The seconds that a way gets; compiling begins when PyTorch has started."""
        return _PLAIN_SECONDS if way in PLAIN else self._seconds

    def measure(self, way: str, count: int) -> list[float]:
        assert self._server is not None
        return self._server.measure(way, count)

    def end(self) -> None:
        if self._server:
            self._server.end()
        self._server, self._served = None, set()


def serve(pipe: Connection, model: str, feeds: Arrays, ways: Sequence[str]) -> None:
    """Try `ways`, tell the median of each or why it failed, then time those that are asked for."""
    with contextlib.suppress(OSError):
        os.setsid()
    measured: dict[str, Measure] = {}
    try:
        from benchmarks.pytorch import measures
    except ImportError as error:
        for way in ways:
            pipe.send((way, f"failed: {error}"))
        return
    for way, measure in measures(model, feeds, ways):
        if isinstance(measure, str):
            pipe.send((way, measure))
            continue
        measured[way] = measure
        pipe.send((way, round(statistics.median(measure(_TRIAL_RUNS)), 1)))
    with contextlib.suppress(EOFError):
        while True:
            way, count = pipe.recv()
            pipe.send(measured[way](count))
