"""The GPUs that measure candidates: the local one, or those of a cluster."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from onnxbolt.codegen.artifacts import compile_each
from onnxbolt.errors import OnnxboltError
from onnxbolt.families import KernelConfig
from onnxbolt.measurements.records import Machine, Measurement
from onnxbolt.problems import Problem
from onnxbolt.tune.library import Compiler
from onnxbolt.tune.racing import Racing

Candidates = Sequence[tuple[KernelConfig, Path]]


class Profiler(Protocol):
    """Measures candidates, and survives whatever they do."""

    def measure(self, problem: Problem, candidates: Candidates) -> Sequence[Measurement]:
        """One measurement for each candidate, including failures, and possibly of their kernels
        with other launches.

        Raises OnnxboltError if no candidate of the problem can be measured.
        """


@dataclass(frozen=True)
class Measured:
    """The measurements of candidates of a task, or why none can be measured, and the seconds that
    they took."""

    task: int
    outcome: Sequence[Measurement] | OnnxboltError
    seconds: float


class Gpus(ABC):
    """GPUs of one kind, which measure candidates that were submitted. All candidates of a task that
    are submitted together are measured on one GPU."""

    @property
    @abstractmethod
    def machine(self) -> Machine:
        """The machine that the measurements belong to."""

    @property
    def compile_each(self) -> Compiler:
        """The compilers of candidates."""
        return compile_each

    @property
    def racing(self) -> Racing | None:
        """A place for races of sessions; None: this process."""
        return None

    @abstractmethod
    def submit(self, task: int, problem: Problem, candidates: Candidates) -> None: ...

    @abstractmethod
    def done(self, timeout: float) -> list[Measured]:
        """The results since the last call, after waiting up to `timeout` seconds for
        something."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """True if `done` has not returned all that was submitted."""

    @abstractmethod
    def cancel(self, task: int | None = None) -> None:
        """Forget what has not begun of a task, or of all."""


class OneGpu(Gpus):
    """The profiler of this process: `done` measures what was submitted first."""

    def __init__(
        self, profiler: Profiler, machine: Machine, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._profiler, self._machine, self._clock = profiler, machine, clock
        self._submitted: dict[int, tuple[Problem, list[tuple[KernelConfig, Path]]]] = {}

    @property
    def machine(self) -> Machine:
        return self._machine

    def submit(self, task: int, problem: Problem, candidates: Candidates) -> None:
        """Candidates of a task that has not begun yet race together with the earlier ones: the best
        of a race are also measured with other launches."""
        self._submitted.setdefault(task, (problem, []))[1].extend(candidates)

    def done(self, timeout: float) -> list[Measured]:
        if not self._submitted:
            return []
        task = next(iter(self._submitted))
        problem, candidates = self._submitted.pop(task)
        start = self._clock()
        outcome: Sequence[Measurement] | OnnxboltError
        try:
            outcome = self._profiler.measure(problem, candidates)
        except OnnxboltError as error:
            outcome = error
        return [Measured(task, outcome, self._clock() - start)]

    @property
    def busy(self) -> bool:
        return bool(self._submitted)

    def cancel(self, task: int | None = None) -> None:
        if task is None:
            self._submitted.clear()
        else:
            self._submitted.pop(task, None)
