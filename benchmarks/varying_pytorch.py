"""PyTorch at inputs of varying sizes, each of its ways in a process of its own, since its CUDA
libraries may be of other versions than those that ONNX Runtime has loaded; and the clock that all
sides of benchmarks/varying.py share. PyTorch may be missing."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from onnxbolt.tune.sessions import Arrays

# cudnn.benchmark, and whether the module is compiled
WAYS = {
    "PyTorch eager, cudnn.benchmark on": (True, False),
    "PyTorch eager, cudnn.benchmark off": (False, False),
    "torch.compile(dynamic=True)": (False, True),
}
Run = Callable[[Arrays], Any]  # arrays on the host in and out
LIMIT = 20.0  # seconds for the runs of a side, after which no further round begins


@dataclass(frozen=True)
class Times:
    """Seconds of a run at each size: the first one, and the median of so many later ones."""

    new: tuple[float, ...]
    revisited: tuple[float, ...]
    rounds: int = 1


def timed(run: Run, warm_up: Arrays, feeds: Sequence[Arrays], rounds: int) -> Times:
    """Each size once, all of them new, then all again `rounds` times, in seeded orders; no round
    but the first begins later than LIMIT seconds after the warm-up."""
    for _ in range(2):
        run(warm_up)
    end = time.monotonic() + LIMIT
    new = tuple(_seconds(run, arrays) for arrays in feeds)
    again = [list[float]() for _ in feeds]
    order, rng = list(range(len(feeds))), random.Random(0)
    for turn in range(rounds):
        if turn and time.monotonic() > end:
            break
        rng.shuffle(order)
        for place in order:
            again[place].append(_seconds(run, feeds[place]))
    return Times(new, tuple(map(statistics.median, again)), len(again[0]))


def in_steps(run: Run, warm_up: Arrays, feeds: Sequence[Arrays]) -> Iterator[Times]:
    """The times after each size. A step is a run at a new size and one more at the size before
    it."""
    new, again, before = list[float](), list[float](), warm_up
    run(warm_up)
    for arrays in feeds:
        new.append(_seconds(run, arrays))
        again.append(_seconds(run, before))
        before = arrays
        yield Times(tuple(new), tuple(again))


def _seconds(run: Run, arrays: Arrays) -> float:
    start = time.perf_counter()
    run(arrays)
    return time.perf_counter() - start


def ways(
    model: str, warm_up: Arrays, feeds: Sequence[Arrays], rounds: int, seconds: float
) -> dict[str, Times | str]:
    """The times of each way to run a model of benchmarks/pytorch.py, or why there are none within
    `seconds`."""
    return {way: _within(seconds, way, model, warm_up, feeds, rounds) for way in WAYS}


def _within(
    seconds: float, way: str, model: str, warm_up: Arrays, feeds: Sequence[Arrays], rounds: int
) -> Times | str:
    pool = concurrent.futures.ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), initializer=os.setsid
    )
    try:
        return pool.submit(_measure, way, model, warm_up, feeds, rounds).result(seconds)
    except concurrent.futures.TimeoutError:
        return f"not within {seconds:g} s"
    except Exception as error:  # any failure of PyTorch: there are other ways
        return f"failed: {type(error).__name__}: {error}"[:300]
    finally:
        for number in list(pool._processes or ()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(number, signal.SIGKILL)  # inductor's compilers as well
        pool.shutdown(wait=False, cancel_futures=True)


def _measure(way: str, model: str, warm_up: Arrays, feeds: Sequence[Arrays], rounds: int) -> Times:
    """In a process of its own."""
    from benchmarks.pytorch import host_run

    benchmark, compiled = WAYS[way]
    return timed(host_run(model, warm_up, benchmark, compiled), warm_up, feeds, rounds)
