"""The clock of ONNX Runtime's runs, on a device whose queue holds 1,024 launches."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onnxbolt.tune import cuda
from onnxbolt.tune.sessions import Session, Setting, Source
from tests.support import Net

_QUEUE, _HOST, _FILL = 1024, 5.0, 62.0  # launches; microseconds of a launch, and of a fill


class Driver:
    """Host and device in microseconds."""

    def __init__(self) -> None:
        self.now = self.busy_until = 0.0
        self.pending = deque[float]()  # the ends of launches
        self.events: list[float] = []
        self.fills = 0

    def launch(self, us: float) -> None:
        self.now += _HOST
        while self.pending and self.pending[0] <= self.now:
            self.pending.popleft()
        if len(self.pending) >= _QUEUE:
            self.now = self.pending.popleft()
        self.busy_until = max(self.busy_until, self.now) + us
        self.pending.append(self.busy_until)

    def fill(self, *_: Any) -> int:
        self.fills += 1
        self.launch(_FILL)
        return 0

    def synchronize(self, _: Any) -> int:
        self.now = max(self.now, self.busy_until)
        return 0

    def create(self, handle: Any, _: int) -> int:
        self.events.append(0.0)
        handle._obj.value = len(self.events)
        return 0

    def record(self, event: Any, _: Any) -> int:
        self.events[event.value - 1] = max(self.now, self.busy_until)
        return 0

    def query(self, event: Any) -> int:
        return 0 if self.events[event.value - 1] <= self.now else 600

    def elapsed(self, result: Any, start: Any, end: Any) -> int:
        result._obj.value = (self.events[end.value - 1] - self.events[start.value - 1]) / 1e3
        return 0

    @property
    def library(self) -> SimpleNamespace:
        """The driver's functions, as far as the clock calls them."""

        def nothing(*_: Any) -> int:
            return 0

        return SimpleNamespace(
            cuMemAlloc_v2=nothing,
            cuMemFree_v2=nothing,
            cuMemsetD8Async=self.fill,
            cuStreamCreate=nothing,
            cuStreamSynchronize=self.synchronize,
            cuEventCreate=self.create,
            cuEventDestroy_v2=nothing,
            cuEventRecord=self.record,
            cuEventQuery=self.query,
            cuEventElapsedTime=self.elapsed,
        )


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(cuda, "_driver", lambda: driver.library)
    return driver


def test_queued_runs_are_timed_without_the_host(driver: Driver) -> None:
    stream = cuda.Stream()
    assert stream.time_queued(lambda: driver.launch(2.0), 20) == pytest.approx(2.0)
    assert max(stream.time(lambda: driver.launch(2.0), 3)) > 2.0


def test_runs_of_more_launches_than_the_queue_holds_are_not_queued(driver: Driver) -> None:
    def run() -> None:
        for _ in range(300):
            driver.launch(2.0)

    stream = cuda.Stream()
    assert stream.time_queued(run, 20) is None
    assert stream.time_queued(run, 3) == pytest.approx(600.0)


def session(driver: Driver, monkeypatch: pytest.MonkeyPatch, launches: int, us: float) -> Session:
    """A session each of whose runs has so many launches."""
    net = Net({"x": (4, 8)})
    model = net.model(net.node("Neg", "x")).SerializeToString()
    made = Session(Source("", model), Setting(), {"x": np.ones((4, 8), np.float32)}, None)

    def run() -> None:
        for _ in range(launches):
            driver.launch(us)

    monkeypatch.setattr(made, "_stream", cuda.Stream())
    monkeypatch.setattr(made, "_run", run)
    return made


@pytest.mark.parametrize(("launches", "most"), [(1, 20), (300, 2), (800, 1)])
def test_as_many_runs_are_enqueued_at_a_time_as_the_queue_holds(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, launches: int, most: int
) -> None:
    timed = session(driver, monkeypatch, launches, 20.0)
    for _ in range(2):
        driver.fills = 0
        assert timed.measure_queued(20) == [pytest.approx(20.0 * launches)]
        assert timed.queues
    assert driver.fills == cuda._FILLS  # numbers that failed once are not tried again
    assert min(20, timed._most_queued) == most


def test_a_run_that_the_queue_cannot_hold_is_timed_by_itself(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = session(driver, monkeypatch, 3000, 20.0)
    assert timed.measure_queued(20) == [pytest.approx(60000.0, rel=1e-3)]
    assert not timed.queues
    driver.fills = 0
    timed.measure_queued(20)
    assert driver.fills == 0


def test_on_the_cpu_the_clock_tells() -> None:
    net = Net({"x": (4, 8)})
    source = Source("", net.model(net.node("Neg", "x")).SerializeToString())
    made = Session(source, Setting(), {"x": np.ones((4, 8), np.float32)}, None)
    assert made.measure_queued(3)[0] > 0
    assert made.queues


def test_memory_that_is_free_and_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def info(free: Any, total: Any) -> int:
        free._obj.value, total._obj.value = 30, 80
        return 0

    monkeypatch.setattr(cuda, "_driver", lambda: SimpleNamespace(cuMemGetInfo_v2=info))
    assert (cuda.free_memory(), cuda.taken_memory()) == (30, 50)
