"""PyTorch as the peer of a whole model: every way to run it, each within its time, and the fastest
of them for the race.

PyTorch runs in a process of its own: its CUDA libraries may be of other versions than those that
ONNX Runtime has loaded. A compilation that does not end in time is ended with its process; a new
one goes on with what is left. What inductor has compiled and measured stays in its cache directory,
so that the same way is quick to have again. Nothing is timed before all ways are ready, so that a
benchmark can do other work meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import statistics
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.sessions import Arrays, Measure

_TRIAL_RUNS = 20
_PLAIN_SECONDS = 120.0  # for PyTorch's start, and a way that compiles nothing
OF_ZOO = "zoo: "  # begins the name of a model of tests/zoo/export
FIRST = ", channels first"  # ends the name of a model that is to run in NCHW
PLAIN = ("eager", "CUDA graph")
THOROUGH = ("torch.compile max-autotune", "torch.compile max-autotune, freezing")
QUICK = "torch.compile reduce-overhead"  # used if no thorough one ends in its time

Tried = dict[str, float | str]  # microseconds, or why there are none
# waits for PyTorch: a function that times its fastest way, and what was tried
Raced = Callable[[], tuple[Measure | None, Tried]]


def fastest_way(tried: Tried) -> str | None:
    """The fastest way, None if none ran."""
    ran = {way: us for way, us in tried.items() if isinstance(us, float)}
    return min(ran, key=lambda way: ran[way], default=None)


class LostError(Exception):
    """PyTorch's process ended, or took too long."""


class Server:
    """A process that prepares one model in some ways, one after the other, from now on, and then
    times whichever it is asked for. It tells of each way when it is ready, or why it failed."""

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


def whole_model_on(
    stream: Stream | None,
    model: str,
    feeds: Arrays,
    compile_seconds: float,
    thorough: bool = True,
) -> contextlib.AbstractContextManager[Raced]:
    """`whole_model` beside the sessions of `stream`. Without a stream, that is on the CPU, no way
    is tried."""
    if stream is None:
        return contextlib.nullcontext(lambda: (None, {}))
    return whole_model(model, feeds, compile_seconds, thorough)


@contextlib.contextmanager
def whole_model(
    model: str, feeds: Arrays, compile_seconds: float, thorough: bool = True
) -> Iterator[Raced]:
    """PyTorch with a model of benchmarks/pytorch.py. Its process begins at once; the function that
    is returned waits until all ways are ready, and gives the fastest of them and the median of each
    that was tried.

    torch.compile has `compile_seconds` for each of its ways, and is left out with 0; unless
    `thorough` it has reduce-overhead alone. A thorough compilation measures kernels: nothing else
    may use the GPU meanwhile.
    """
    race = _Race(model, feeds, compile_seconds, THOROUGH if thorough else (QUICK,))
    try:
        yield functools.cache(race.result)
    finally:
        race.end()


class _Race:
    def __init__(
        self, model: str, feeds: Arrays, compile_seconds: float, compiled: Sequence[str]
    ) -> None:
        self._model, self._feeds, self._seconds = model, feeds, compile_seconds
        self._compiled = tuple(compiled) if compile_seconds else ()
        self._tried: Tried = {}
        self._server = self._started((*PLAIN, *self._compiled))

    def _started(self, ways: Sequence[str]) -> Server:
        return Server(self._model, self._feeds, ways)

    def result(self) -> tuple[Measure | None, Tried]:
        """A function that times the fastest way, None where none ran; the median of each, or why
        there is none."""
        left = [*PLAIN, *self._compiled]
        while left:
            lost = self._run(left)
            if lost == THOROUGH[0] and THOROUGH[1] in left:  # freezing adds to the same search
                self._tried[THOROUGH[1]] = f"not tried, since {lost} did not end"
            left = [way for way in left if not isinstance(self._tried.get(way), str)]
            if self._compiled and QUICK not in self._tried and set(left) <= set(PLAIN):
                left.append(QUICK)
            elif not lost:
                break
            self.end()
            self._server = self._started(left)
        best = fastest_way(self._tried)
        measure = functools.partial(self._server.measure, best) if best else None
        return measure, self._tried

    def _run(self, ways: Sequence[str]) -> str | None:
        """Wait until `ways` are ready in the process that runs now, and time each. Returns the one
        that ended the process, None if none did."""
        way = ""
        try:
            for way in ways:
                if failure := self._server.told(self._allowed(way)):
                    self._tried[way] = failure
            for way in ways:
                if not isinstance(self._tried.get(way), str):
                    times = self._server.measure(way, _TRIAL_RUNS)
                    self._tried[way] = round(statistics.median(times), 1)
        except LostError as lost:
            self._tried[way] = str(lost)
            return way
        return None

    def _allowed(self, way: str) -> float:
        """The seconds that a way gets; compiling begins when PyTorch has started."""
        return _PLAIN_SECONDS if way in PLAIN else self._seconds

    def end(self) -> None:
        self._server.end()


def serve(pipe: Connection, model: str, feeds: Arrays, ways: Sequence[str]) -> None:
    """Prepare `ways`, tell of each when it is ready ("") or why it failed, then time those that are
    asked for."""
    with contextlib.suppress(OSError):
        os.setsid()
    prepared: dict[str, Measure] = {}
    try:
        from benchmarks.pytorch import measures
    except ImportError as error:
        for _ in ways:
            pipe.send(f"failed: {error}")
        return
    for way, measure in measures(model, feeds, ways):
        if isinstance(measure, str):
            pipe.send(measure)
            continue
        prepared[way] = measure
        pipe.send("")
    with contextlib.suppress(EOFError):
        while True:
            way, count = pipe.recv()
            pipe.send(prepared[way](count))
