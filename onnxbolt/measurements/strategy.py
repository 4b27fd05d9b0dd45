"""Tasks of the tuner, and strategies, which choose the configurations to measure for a task.

Extensions add strategies; the tuner's own is tune/scheduler.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from onnxbolt import checks
from onnxbolt.families import KernelConfig
from onnxbolt.measurements.records import Measurement
from onnxbolt.problems import Problem
from onnxbolt.registry import Registry

SPREAD = 0.25  # the spread of a formula's errors, as long as nothing is measured


@dataclass(frozen=True)
class Ranked:
    """A candidate with its predicted microseconds, and the expected spread of log(measured /
    predicted) among the candidates of its family for one problem."""

    config: KernelConfig
    us: float
    spread: float = SPREAD


@dataclass(frozen=True)
class Task:
    """A problem, how often the model has it, its candidates with the fastest predicted one
    first, and a bound that no kernel beats."""

    problem: Problem
    occurrences: int
    candidates: tuple[Ranked, ...]
    floor_us: float

    @property
    def kind(self) -> str:
        """A kind of problems; the report compares predictions with measurements for each kind."""
        operation = self.problem.operation
        return f"{operation} chain" if self.problem.inner else operation

    @property
    def name(self) -> str:
        return self.problem.description


@runtime_checkable
class Strategy(Protocol):
    """Chooses by `propose(task, measurements)` which configurations to measure next.

    It is asked at the start, with remembered measurements of the task, and again when all that it
    proposed is measured; when it proposes nothing new, the task ends. Its proposals are measured,
    those of the most expensive tasks first, while the budget and --trials last.
    """

    @property
    def name(self) -> str:
        """The name that --strategy takes."""

    def propose(
        self, task: Task, measurements: Sequence[Measurement]
    ) -> Iterable[KernelConfig]: ...


class _Strategies(Registry[str, Strategy]):
    """Strategies by name. Raises ValueError for a name that --strategy could not show, and for a
    class in the place of its object."""

    def add(self, entry: Strategy, owner: str) -> None:
        checks.name("strategy", entry.name)
        if isinstance(entry, type):
            raise ValueError(f"strategy {entry.name} is a class: give an object of it")
        super().add(entry, owner)


STRATEGIES: Registry[str, Strategy] = _Strategies("strategy", (), "name")
