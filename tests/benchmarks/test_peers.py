"""PyTorch's process for whole models: what it tells, and that it may fail without costing anything else."""
from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from benchmarks import peers
from onnxbolt.tune.sessions import Measure


class Pipe:
    """Asks for two times, then has gone."""

    def __init__(self) -> None:
        self.asked, self.sent = iter((2, 3)), list[object]()

    def recv(self) -> int:
        try:
            return next(self.asked)
        except StopIteration:
            raise EOFError from None

    def send(self, value: object) -> None:
        self.sent.append(value)


def serve(monkeypatch: pytest.MonkeyPatch, *times: float, fails: bool = False) -> list[object]:
    """What is sent where PyTorch takes `times`, one for each way to run the model."""
    def measures(model: str, feeds: object, max_autotune: bool) -> Iterator[tuple[str, Measure]]:
        for i, us in enumerate(times):
            yield f"way {i}", lambda count, us=us: [us] * count
        if fails:
            raise RuntimeError("out of memory")

    monkeypatch.setitem(sys.modules, "benchmarks.pytorch", SimpleNamespace(measures=measures))
    pipe = Pipe()
    if times:
        with pytest.raises(EOFError):
            peers._serve(pipe, "resnet50", {}, False)  # type: ignore[arg-type]
    else:
        peers._serve(pipe, "resnet50", {}, False)  # type: ignore[arg-type]
    return pipe.sent


def test_the_fastest_way_is_timed_as_often_as_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert serve(monkeypatch, 20.0, 10.0) == [{"way 0": 20.0, "way 1": 10.0}, [10.0, 10.0], [10.0, 10.0, 10.0]]


def test_a_failure_is_told_beside_what_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = {"way 0": 20.0, "failure": "RuntimeError: out of memory"}
    assert serve(monkeypatch, 20.0, fails=True)[0] == tried
    assert serve(monkeypatch, fails=True) == [{"failure": "RuntimeError: out of memory"}]


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed here")
def test_without_pytorch_there_is_no_time_and_a_reason() -> None:
    with peers.whole_model("dlrm_mlp", {}, False) as (measure, tried):
        assert measure is None
        assert "torch" in str(tried["failure"])
