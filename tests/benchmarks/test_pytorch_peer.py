"""PyTorch's process for whole models: what it tells, and that a way that fails or takes too long
costs itself alone."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import ClassVar

import pytest

from benchmarks import pytorch_peer
from benchmarks.pytorch_peer import PLAIN, QUICK, THOROUGH, LostError, whole_model
from onnxbolt.tune.sessions import Measure

TIMES = {"eager": 40.0, "CUDA graph": 30.0, THOROUGH[0]: 10.0, THOROUGH[1]: 20.0, QUICK: 25.0}


def taking(us: float) -> Measure:
    """Runs that take so many microseconds each."""
    return lambda count: [us] * count


class Pipe:
    """Asks for times, then has gone."""

    def __init__(self, *asked: tuple[str, int]) -> None:
        self.asked, self.sent = iter(asked), list[object]()

    def recv(self) -> tuple[str, int]:
        try:
            return next(self.asked)
        except StopIteration:
            raise EOFError from None

    def send(self, value: object) -> None:
        self.sent.append(value)


def test_each_way_is_ready_or_has_a_failure_and_is_timed_when_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measures(
        model: str, feeds: object, ways: Sequence[str]
    ) -> Iterator[tuple[str, Measure | str]]:
        for way in ways:
            yield way, "failed: out of memory" if way == QUICK else taking(TIMES[way])

    monkeypatch.setitem(sys.modules, "benchmarks.pytorch", SimpleNamespace(measures=measures))
    monkeypatch.setattr("os.setsid", lambda: None)
    pipe = Pipe(("CUDA graph", 2))
    pytorch_peer.serve(pipe, "resnet50", {}, ("eager", QUICK, "CUDA graph"))  # type: ignore[arg-type]
    assert pipe.sent == ["", "failed: out of memory", "", [30.0, 30.0]]


class Server:
    """A process in which the ways of `slow` never end, and those of `broken` fail."""

    started: ClassVar[list[tuple[str, ...]]] = []
    slow: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()

    def __init__(self, model: str, feeds: object, ways: Sequence[str]) -> None:
        self.started.append(tuple(ways))
        self.ways, self.alive = iter(tuple(ways)), True

    def told(self, seconds: float) -> str:
        assert self.alive
        self.way = next(self.ways)
        if self.way in self.slow:
            raise LostError(f"not within {seconds:g} s")
        return "failed: no" if self.way in self.broken else ""

    def measure(self, way: str, count: int) -> list[float]:
        assert self.alive
        return [TIMES[way]] * count

    def end(self) -> None:
        self.alive = False


@pytest.mark.parametrize(
    ("slow", "broken", "best", "processes"),
    [
        ((), (), THOROUGH[0], 1),
        # the fastest is asked for anew, from inductor's cache
        ((THOROUGH[1],), (), THOROUGH[0], 2),
        ((THOROUGH[0],), (), QUICK, 2),  # freezing adds to the same search, and is not tried
        ((), THOROUGH[:1], THOROUGH[1], 1),
        ((), THOROUGH, QUICK, 2),
        ((THOROUGH[0], QUICK), (), "CUDA graph", 3),
    ],
)
def test_ways_that_do_not_end_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
    slow: tuple[str, ...],
    broken: tuple[str, ...],
    best: str,
    processes: int,
) -> None:
    monkeypatch.setattr(pytorch_peer, "Server", Server)
    monkeypatch.setattr(Server, "started", [])
    monkeypatch.setattr(Server, "slow", slow)
    monkeypatch.setattr(Server, "broken", broken)
    with whole_model("resnet50", {}, 60.0) as raced:
        measure, tried = raced()
        assert raced()[1] is tried  # nothing is tried again
        assert measure is not None
        assert measure(2) == [TIMES[best]] * 2
    assert len(Server.started) == processes
    assert Server.started[0] == (*PLAIN, *THOROUGH)
    assert {tried[way] for way in slow} <= {"not within 60 s"}
    assert {tried[way] for way in broken} <= {"failed: no"}
    assert (QUICK in tried) == all(isinstance(tried[way], str) for way in THOROUGH)


def test_a_quick_look_compiles_in_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch_peer, "Server", Server)
    with whole_model("resnet50", {}, 60.0, thorough=False) as raced:
        assert raced()[1] == {"eager": 40.0, "CUDA graph": 30.0, QUICK: 25.0}


def test_without_a_limit_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch_peer, "Server", Server)
    with whole_model("resnet50", {}, 0.0) as raced:
        assert raced()[1] == {"eager": 40.0, "CUDA graph": 30.0}


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is not None, reason="PyTorch is installed here"
)
def test_without_pytorch_there_is_no_time_and_a_reason() -> None:
    with whole_model("dlrm_mlp", {}, 0.0) as raced:
        measure, tried = raced()
        assert measure is None
        assert all("torch" in str(tried[way]) for way in PLAIN)


def test_masks_that_exclude_nothing_are_left_out_in_a_cuda_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    masks = pytest.importorskip("transformers.masking_utils")
    torch, pytorch = pytest.importorskip("torch"), pytest.importorskip("benchmarks.pytorch")
    monkeypatch.setitem(masks.AttentionMaskInterface._global_mapping, "sdpa", masks.sdpa_mask)
    monkeypatch.setattr(masks, "is_tracing", lambda *_: True)  # as it answers during a capture
    pytorch.leave_plain_masks_out()
    config = pytest.importorskip("transformers").DetrConfig(attn_implementation="sdpa")
    tokens = torch.zeros(1, 9, 256)
    assert masks.create_bidirectional_mask(config, tokens, None) is None
    padding = torch.arange(9)[None] < 7
    made = masks.create_bidirectional_mask(config, tokens, padding)
    assert made.shape == (1, 1, 9, 9)
    assert made[0, 0, 0].tolist() == padding[0].tolist()
