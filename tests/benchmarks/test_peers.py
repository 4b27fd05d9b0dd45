"""The clock of PyTorch's kernels, on a device that is made of two numbers: what the host has done,
and what the device has to do."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from benchmarks import peers

_REPLAY, _START = 30.0, 4.0  # microseconds of the host for a graph, of the device until it begins


class Device:
    """Host and device in microseconds. `torch.cuda` of `module` is about it."""

    def __init__(self) -> None:
        self.now = self.busy_until = 0.0
        self.captured: list[float] | None = None
        self.graphs: list[int] = []  # launches of each
        cuda = SimpleNamespace(
            Stream=lambda: SimpleNamespace(wait_stream=lambda other: None),
            Event=lambda enable_timing: Event(self),
            CUDAGraph=lambda: Graph(self),
            current_stream=lambda: None,
            stream=lambda stream: contextlib.nullcontext(),
            graph=self._capture,
        )
        self.module = SimpleNamespace(cuda=cuda)

    @contextlib.contextmanager
    def _capture(self, graph: Graph, stream: object) -> Iterator[None]:
        self.captured = graph.launches
        yield
        self.captured = None
        self.graphs.append(len(graph.launches))

    def run(self, us: float) -> None:
        self.busy_until = max(self.busy_until, self.now) + us

    def operation(self, host: float, us: float, sets: int = 1) -> peers.Operation:
        """One whose launch takes the host `host`, and whose kernel takes the device `us`."""

        def launch(i: int) -> None:
            self.now += host
            if self.captured is None:
                self.run(us)
            else:
                self.captured.append(us)

        return peers.Operation(launch, sets)


class Graph:
    def __init__(self, device: Device) -> None:
        self.device, self.launches = device, list[float]()

    def replay(self) -> None:
        self.device.now += _REPLAY
        self.device.run(_START + sum(self.launches))


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device

    def record(self, stream: object) -> None:
        self.at = max(self.device.now, self.device.busy_until)

    def synchronize(self) -> None:
        self.device.now = max(self.device.now, self.device.busy_until)

    def elapsed_time(self, other: Event) -> float:
        return (other.at - self.at) / 1e3


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(peers, "pytorch", lambda: device.module)
    return device


@pytest.mark.parametrize("sets", [1, 24, 256])
@pytest.mark.parametrize("us", [1.5, 3.0, 40.0, 5000.0])
def test_the_host_s_time_for_a_launch_is_in_no_measurement(
    device: Device, us: float, sets: int
) -> None:
    for host in (2.0, 60.0, 300.0):
        (first, *others) = device.operation(host, us, sets).measure()(5)
        assert statistics.median([first, *others]) == pytest.approx(us, rel=0.005)
        assert first == pytest.approx(others[0])


def test_a_graph_is_as_long_as_it_needs_to_be(device: Device) -> None:
    device.operation(60.0, 3.0).measure()
    assert device.graphs[0] == 1
    assert 330 <= device.graphs[-1] <= 700
    device.graphs.clear()
    device.operation(60.0, 5000.0, sets=7).measure()
    assert device.graphs == [7]
    device.operation(5.0, 0.1, sets=256).measure()
    assert device.graphs[-1] == 2048
