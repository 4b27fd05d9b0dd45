"""PyTorch's processes of the benchmark of varying sizes: a way that fails or takes too long costs
itself alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from benchmarks import varying_pytorch
from benchmarks.varying_pytorch import WAYS, Times, ways
from onnxbolt.tune.sessions import Arrays

FEEDS: list[Arrays] = [{"x": np.zeros(2, np.float32)}]


def by_way(way: str, model: str, warm_up: Arrays, feeds: Sequence[Arrays], rounds: int) -> Times:
    """In a process of its own: one way answers, one fails, one takes too long."""
    place = list(WAYS).index(way)
    if place == 1:
        raise ValueError(f"no {model}")
    if place == 2:
        time.sleep(600)
    return Times((1.0,), (0.5,))


def test_ways_that_fail_or_take_too_long_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varying_pytorch, "_measure", by_way)
    start = time.monotonic()
    assert list(ways("model", FEEDS[0], FEEDS, 1, 8.0).values()) == [
        Times((1.0,), (0.5,)),
        "failed: ValueError: no model",
        "not within 8 s",
    ]
    assert time.monotonic() - start < 60


class Torch:
    """A stand-in for benchmarks/pytorch.py."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def host_run(self, *arguments: Any) -> varying_pytorch.Run:
        self.asked.append(arguments)
        return lambda feeds: None


def test_each_way_of_pytorch_has_its_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch()
    monkeypatch.setitem(sys.modules, "benchmarks.pytorch", torch)
    feeds = FEEDS * 3
    for way in WAYS:
        times = varying_pytorch._measure(way, "model", feeds[0], feeds, 1)
        assert len(times.new) == 3
    assert [asked[2:] for asked in torch.asked] == [(True, False), (False, False), (False, True)]
