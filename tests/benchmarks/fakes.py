"""A GPU, a compiler and PyTorch's kernels that take no time, for the benchmarks of single
kernels."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import peers, racing
from onnxbolt.codegen.render import Instance
from onnxbolt.epilogues import PRODUCT
from onnxbolt.families import KernelConfig
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.problems import GemmProblem, Problem
from onnxbolt.tune.library import Result
from tests.tune import fakes

# microseconds that a launch takes longer where it does not overlap with the one before
SERIAL = 1.5
Main = Callable[[Sequence[str]], int]


class Profiler(fakes.Profiler):
    """The fake GPU; kernels of problems for which `crashes` holds end badly."""

    machine = fakes.MACHINE
    crashes: Callable[[Problem], bool] = staticmethod(lambda _: False)
    serializes = True

    def __init__(self, arch: int) -> None:
        super().__init__(fakes.Clock())

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def measure(
        self,
        problem: Problem,
        candidates: Sequence[tuple[KernelConfig, Path]],
        samples: int = 15,
        sweep: bool = True,
        overlap: bool = True,
    ) -> list[Measurement]:
        measured = [
            m if overlap else dataclasses.replace(m, us=m.us + SERIAL)
            for m in super().measure(problem, candidates)
        ]
        if self.crashes(problem) or not (overlap or self.serializes):
            return [
                dataclasses.replace(m, status=Status.CRASHED, us=0.0, detail="SIGSEGV")
                for m in measured
            ]
        return measured

    def measure_apart(
        self,
        problem: Problem,
        kernels: Sequence[tuple[KernelConfig, Path, int]],
        samples: int = 15,
        overlap: bool = True,
    ) -> Measurement:
        """As long as all of them together."""
        first, parts = 0, list[Measurement]()
        for config, path, count in kernels:
            parts += super().measure(segment(problem, first, count), [(config, path)])
            first += count
        return dataclasses.replace(
            parts[0], us=sum(part.us + SERIAL * (not overlap) for part in parts)
        )


def segment(problem: Problem, first: int, count: int) -> Problem:
    """Some of a problem's layers as a problem."""
    begin, *behind = problem.layers[first : first + count]
    if not behind:
        return begin
    chain = [*begin.chain, *(step for layer in behind for step in (PRODUCT, *layer.chain))]
    columns = [layer.columns for layer in (begin, *behind)]
    last: dict[str, Any] = {"n" if isinstance(begin, GemmProblem) else "k": columns[-1]}
    return dataclasses.replace(
        begin, **last, out=behind[-1].out, chain=tuple(chain), inner=tuple(columns[:-1])
    )


class Operation:
    """An operation that takes `us` microseconds, and those behind it one microsecond each."""

    def __init__(self, us: float) -> None:
        self.us = us

    def then(self, function: object) -> Operation:
        return Operation(self.us + 1.0)

    def measure(self) -> Callable[[int], list[float]]:
        return lambda count: [self.us] * count


def install(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """In the place of everything that a GPU would be needed for."""

    def build(
        instances: Sequence[Instance], stop: threading.Event | None = None
    ) -> Iterator[Result]:
        return fakes.Builder()(instances, stop or threading.Event())

    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(cache))
    monkeypatch.setattr("onnxbolt.gpu.local_arch", lambda: "sm_90a")
    monkeypatch.setattr(racing, "Profiler", Profiler)
    monkeypatch.setattr(racing, "build", build)
    monkeypatch.setattr(peers, "pytorch", lambda: True)
    monkeypatch.setattr(peers, "release", lambda: None)
    monkeypatch.setattr(peers, "library", lambda name, forms=(): f"{name} (torch 1.0)")
    monkeypatch.setattr(
        peers, "bare", lambda problem: {"slow": Operation(20.0), "fast": Operation(10.0)}
    )
    monkeypatch.setattr(
        peers,
        "quickest",
        lambda operations: min(operations.values(), key=lambda operation: operation.us),
    )
    monkeypatch.setattr(peers, "unfused", lambda problem, operation: operation.then(None))
    monkeypatch.setattr(peers, "copy_rate", lambda: Operation(100.0).measure())


def rows(main: Main, out: Path, *arguments: str) -> list[dict[str, Any]]:
    """The rows that a run writes."""
    assert main([*arguments, "--out", str(out)]) == 0
    return list(json.loads(out.read_text())["rows"])
